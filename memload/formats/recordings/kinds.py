"""Find out how the recording at a path is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from memload.formats.paths import named_in_errors, nothing_at
from memload.formats.recordings.experanto import is_experanto, read_experanto
from memload.formats.recordings.folder import holds_recording, read_folder
from memload.formats.recordings.found import Found
from memload.formats.recordings.nifti import is_run, read_nifti
from memload.formats.recordings.nwb import is_nwb, read_nwb
from memload.formats.recordings.spikeglx import is_spikeglx, read_spikeglx
from memload.formats.recordings.temporaldata import is_temporaldata, read_temporaldata

Reader = Callable[[Path, Sequence[str] | None], Found]
"""Reads a recording: where, and the names of the fields that are wanted."""

KINDS: tuple[tuple[str, Callable[[Path], bool], Reader], ...] = (
    ("a folder that memload.write made of a recording", holds_recording, read_folder),
    ("an NWB file, or a folder of Zarr with one", is_nwb, read_nwb),
    ("a folder of experanto", is_experanto, read_experanto),
    ("a .bin file of SpikeGLX with its .meta file", is_spikeglx, read_spikeglx),
    ("a NIfTI file of several volumes", is_run, read_nifti),
    ("an HDF5 file of temporaldata", is_temporaldata, read_temporaldata),
)
"""For each kind its name, a test whether a path has it, and its reader."""


def reader_of(path: Path) -> Reader | None:
    """Return the reader of the recording at a path; None if it is none.

    Raises:
        FileNotFoundError: there is nothing.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: {nothing_at(path)}")
    with named_in_errors(path):
        return next((read for _, is_one, read in KINDS if is_one(path)), None)
