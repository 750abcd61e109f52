"""Recordings of files, which are read in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from memload.casts.rule import Cast
from memload.dataset.recordings.recording import Recording
from memload.formats.nwb import read_nwb


def open_nwb(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Recording:
    """Return the recording that an NWB file holds; h5py alone reads it, and rows stay in the file.

    Fields are the series of ``acquisition``, ``stimulus/presentation``, ``processing``, ``analysis`` and ``scratch``,
    named by the last part of their path, or by as many as make the name unique, such as "plane1/RoiResponseSeries". An
    IndexSeries gives the images that it chooses. The units are spikes named "units", and the tables of ``intervals``
    keep their names and columns. Stored values are read as they are; `Recording.casts` applies conversion and offset.
    What cannot be read, such as frames in other files, is in `Recording.left_out` with the reason.

    Args:
        path: the file.
        fields: the names of the series that are wanted, and "units"; default: all that can be read.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is no NWB file; nothing in it can be read, or a field that `fields` names cannot.
        KeyError: there is no field that `fields` names; the message lists those that are there.
        ImportError: h5py is not installed: ``pip install "memload[hdf5]"``.

    Example:
        >>> import memload
        >>> session = memload.open_nwb("session.nwb")  # doctest: +SKIP
        >>> slices = session.slices(2.0, within="trials", rates={"units": 50})  # doctest: +SKIP
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"{place}: no such file")
    found = read_nwb(place, fields)
    casts = {name: Cast(torch.float32, scale=scale, offset=offset) for name, (scale, offset) in found.scales.items()}
    return Recording(found.fields, found.clocks, found.intervals, found.name, casts, found.left_out)
