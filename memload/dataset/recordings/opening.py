"""Recordings of files, which are read in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import torch

from memload.casts.rule import Cast
from memload.dataset.recordings.recording import Recording
from memload.errors import FormatError
from memload.formats.nifti import is_compressed, is_nifti
from memload.formats.paths import is_url, no_file, nothing_at
from memload.formats.recordings.bids import Entity, check_fetched, chosen_runs, name_of, runs_in
from memload.formats.recordings.experanto import read_experanto
from memload.formats.recordings.folder import holds_recording
from memload.formats.recordings.found import Found
from memload.formats.recordings.kinds import KINDS, reader_of
from memload.formats.recordings.nifti import in_place, run_of
from memload.formats.recordings.nwb import read_nwb
from memload.formats.recordings.spikeglx import read_spikeglx
from memload.formats.recordings.temporaldata import read_temporaldata


def open_nwb(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Recording:
    """Return the recording that an NWB file of HDF5, or a folder of Zarr, holds; rows stay where they are.

    h5py alone reads a file, and zarr a folder, which hdmf-zarr writes.

    Fields are the series of ``acquisition``, ``stimulus/presentation``, ``processing``, ``analysis`` and ``scratch``,
    named by the last part of their path, or by as many as make the name unique, such as "plane1/RoiResponseSeries". An
    IndexSeries gives the images that it chooses. The units are spikes named "units", and the tables of ``intervals``
    keep their names and columns. Stored values are read as they are; `Recording.casts` applies conversion and offset.
    What cannot be read, such as frames in other files, is in `Recording.left_out` with the reason.

    Args:
        path: the file, or the folder.
        fields: the names of the series that are wanted, and "units"; default: all that can be read.

    Raises:
        FileNotFoundError: there is nothing.
        FormatError: it is no NWB file; nothing in it can be read, or a field that `fields` names cannot.
        KeyError: there is no field that `fields` names; the message lists those that are there.
        ImportError: h5py, or zarr for a folder, is not installed: ``pip install "memload[hdf5]"`` or "memload[zarr]".

    Example:
        >>> import memload
        >>> session = memload.open_nwb("session.nwb")  # doctest: +SKIP
        >>> slices = session.slices(2.0, within="trials", rates={"units": 50})  # doctest: +SKIP
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"{place}: {nothing_at(place)}")
    return _recording(read_nwb(place, fields))


def open_experanto(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Recording:
    """Return the recording in a folder of experanto, such as a session of the Sensorium competition.

    Each folder with a ``meta.yml`` becomes a field of its name: sequences such as ``responses`` and ``eye_tracker``,
    the frames of ``screen``, and spikes. Rows stay in their .npy and .mem files. The files of ``screen`` are the
    intervals "trials", with what their entries say, such as ``tier``; time intervals keep their labels. experanto's
    "nearest_neighbor" takes the row that has begun: that is ``sampling="previous"`` here.

    Args:
        path: the folder of the session.
        fields: the names of the folders that are wanted; default: all that can be read.

    Raises:
        FileNotFoundError: there is no such folder.
        FormatError: none of its folders has a ``meta.yml``; or a field that `fields` names cannot be read.
        KeyError: there is no folder that `fields` names; the message lists those that are there.
        ImportError: PyYAML is not installed: ``pip install "memload[experanto]"``.

    Example:
        >>> import memload
        >>> session = memload.open_experanto("dynamic29513/")  # doctest: +SKIP
        >>> trials = session.intervals["trials"]  # doctest: +SKIP
        >>> train = session.slices(2.0, within=trials.select(trials.columns["tier"] == "train"))  # doctest: +SKIP
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"{place}: {nothing_at(place)}")
    return _recording(read_experanto(place, fields))


def open_temporaldata(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Recording:
    """Return the recording in an HDF5 file of temporaldata, such as a session of torch_brain's data sets.

    Each array of a time series is a field, named as users of that library reach it, such as "cursor.pos"; irregular
    series with a ``unit_index`` are spikes, such as "spikes", with the names of ``units.id``. Intervals are tables of
    their names, such as "trials" and "train_domain". h5py alone reads the file, and rows stay there.

    Args:
        path: the file.
        fields: the names of the fields that are wanted; default: all that can be read.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        FormatError: it is not of temporaldata; nothing in it can be read, or a field that `fields` names cannot.
        KeyError: there is no field that `fields` names; the message lists those that are there.
        ImportError: h5py is not installed: ``pip install "memload[hdf5]"``.

    Example:
        >>> import memload
        >>> session = memload.open_temporaldata("t_20130819_center_out_reaching.h5")  # doctest: +SKIP
        >>> slices = session.only("spikes", "cursor.vel").slices(1.0, rates={"spikes": 100})  # doctest: +SKIP
    """
    place = Path(path)
    if not place.is_file():
        raise no_file(place)
    return _recording(read_temporaldata(place, fields))


def open_spikeglx(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Recording:
    """Return the recording in a .bin file of SpikeGLX, such as that of a Neuropixels probe; its .meta file lies beside.

    The channels of one kind are a field (samples, channels) of int16, read in place: "ap", "lf" and "sync" of a probe;
    "mn", "ma", "xa" and "digital" of an NI card. `Recording.casts` makes volts of them. The first sample is at 0 s.

    Args:
        path: the .bin or the .meta file.
        fields: the kinds of channels that are wanted; default: all.

    Raises:
        FileNotFoundError, IsADirectoryError: one of the two files is missing.
        FormatError: the .meta file lacks a key, or does not fit the .bin file.
        KeyError: there are no channels that `fields` names; the message lists those that are there.

    Example:
        >>> import memload
        >>> session = memload.open_spikeglx("run_g0_t0.imec0.ap.bin", fields=["ap"])  # doctest: +SKIP
        >>> loader = memload.FastLoader(session.slices(0.1), 32, cast=session.casts)  # doctest: +SKIP
    """
    return _recording(read_spikeglx(Path(path), fields))


def open_nifti(path: str | os.PathLike[str], *, tr: float | None = None) -> Recording:
    """Return the recording in a NIfTI file, such as a run of fMRI; volumes are read in place from a .nii file.

    Its field has a row for each volume, (z, y, x): the transpose of nibabel's ``img.dataobj[..., t]``. It is called by
    the suffix of a BIDS name, such as "bold", else "volumes". `Recording.casts` applies scl_slope and scl_inter. A file
    with a BIDS name, such as ``sub-01_task-rest_bold.nii``, has the RepetitionTime of the .json files that apply to it,
    and the events of its ``_events.tsv`` as the intervals "events"; others have the time of their header.

    Args:
        path: the file, NIfTI-1 or NIfTI-2.
        tr: seconds from one volume to the next, where side-car and header do not say it, or say it wrongly.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        FormatError: it is compressed (`memload.write_nifti` decodes it once), is damaged or has one volume alone;
            nothing says when volumes were taken; or a side-car is damaged.

    Example:
        >>> import memload
        >>> run = memload.open_nifti("sub-01_task-rest_bold.nii")  # doctest: +SKIP
        >>> loader = memload.FastLoader(run.slices(20.0, hop=2.0), 8, cast=run.casts)  # doctest: +SKIP
    """
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"{place}: a folder; open_nifti takes one run, and open_bids the folder of a data set")
    if not place.is_file():
        raise FileNotFoundError(f"{place}: {nothing_at(place)}")
    return _recording(in_place(run_of(place, tr)))


def open_bids(
    path: str | os.PathLike[str],
    *,
    subject: Entity = None,
    session: Entity = None,
    task: Entity = None,
    run: Entity = None,
    suffix: str = "bold",
    raw: str | os.PathLike[str] | None = None,
    **entities: Entity,
) -> dict[str, Recording]:
    """Return the runs in a folder of BIDS, each as `open_nifti` opens it, by the names of their files.

    The folder is a data set, such as one of OpenNeuro or ``derivatives/fmriprep``, or a subject or session in it; or
    the folder in which `memload.write_nifti` wrote such runs.

    Args:
        path: the folder.
        subject, session, task, run: which runs: the value that their names have, such as "01", or several in a list. A
            number is the value without leading zeros.
        suffix: the suffix of the runs.
        raw: the data set from which the one at `path` was derived, whose events and side-cars are used where it has
            none of its own.
        entities: further parts of names, by their keys, such as space="MNI152NLin2009cAsym", desc="preproc", echo=1.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such folder, or a run in it is a link to a file that datalad
            has not fetched.
        FormatError: it has no runs, or one that is chosen cannot be opened; the message says why.
        KeyError: no run has such a value; the message lists those that are there.

    Example:
        >>> import memload
        >>> runs = memload.open_bids("ds000114/", task="fingerfootlips", session=["test", "retest"])  # doctest: +SKIP
        >>> parts = [one.slices(20.0, hop=5.0) for one in runs.values()]  # doctest: +SKIP
        >>> train = memload.concat(parts)  # doctest: +SKIP
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"{place}: {nothing_at(place)}")
    if not place.is_dir():
        raise NotADirectoryError(f"{place}: a file; open_bids takes the folder of a data set, and open_nifti one run")
    wanted = {"subject": subject, "session": session, "task": task, "run": run, **entities}
    found = runs_in(place, suffix)
    chosen = chosen_runs(place, found or _written_runs(place), suffix, wanted)
    check_fetched(place, list(chosen.values()))
    if packed := [one for one in chosen.values() if is_nifti(one) and is_compressed(one)]:
        raise FormatError(
            f"{place}: {len(packed):,} of {len(chosen):,} runs are compressed by gzip, such as {packed[0].name}; "
            f"decode them once: memload write {place} DST, or memload.write_nifti, and open DST by memload.open_bids"
        )
    beside = None if raw is None else Path(raw)
    return {
        name: _recording(in_place(run_of(one, raw=beside))) if is_nifti(one) else open_recording(one)
        for name, one in chosen.items()
    }


def _written_runs(place: Path) -> list[Path]:
    """Return the recordings in a folder whose names are those of BIDS."""
    return sorted(one for one in place.iterdir() if name_of(one) is not None and holds_recording(one))


def open_recording(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Recording:
    """Return the recording at `path`, whatever its format.

    That is a folder that `memload.write` made of one, or what `open_nwb`, `open_experanto`, `open_temporaldata`,
    `open_spikeglx` or `open_nifti` opens.

    Rows stay where they are.

    Args:
        path: the file or folder.
        fields: the names of the fields that are wanted; default: all that can be read.

    Raises:
        FileNotFoundError: there is nothing, or the path is a URL.
        FormatError: it is no recording, or a damaged one; the message says what there is.
        KeyError: there is no field that `fields` names; the message lists those that are there.

    Example:
        >>> import memload, numpy, tempfile
        >>> session = memload.recording({"stim": numpy.arange(600)}, clocks={"stim": 60}, name="mouse1")
        >>> place = tempfile.mkdtemp() + "/mouse1"
        >>> memload.write(place, session)
        <Recording 'mouse1' of stim: 10.0 s>
        >>> memload.open_recording(place).clocks["stim"]
        Clock(rate=60 Hz, start=0 s)
    """
    place, text = Path(path), os.fspath(path)
    if is_url(text) and not place.exists():
        there = (
            f"give its path, {urlsplit(text).path}" if text.startswith("file:") else "download it, or mount its storage"
        )
        raise FileNotFoundError(f"{text}: a URL, but recordings are opened in the file system: {there}")
    read = reader_of(place)
    if read is None:
        raise FormatError(f"{place}: no recording; expected {_known(place)}")
    return _recording(read(place, fields))


def _recording(found: Found) -> Recording:
    casts = {name: Cast(torch.float32, scale=scale, offset=offset) for name, (scale, offset) in found.scales.items()}
    return Recording(found.fields, found.clocks, found.intervals, found.name, casts, found.left_out)


def _known(place: Path) -> str:
    """Say which recordings there are, and in a folder of several where they lie."""
    listed = ", ".join(name for name, *_ in KINDS)
    if not place.is_dir():
        return listed
    inside = sorted(one.name for one in place.iterdir() if reader_of(one) is not None)
    return f"{listed}; recordings in it are {', '.join(inside[:12])}" if inside else listed
