"""Folders of experanto, as those of Sensorium: a folder for each device, read in place.

    responses/     meta.yml (modality: sequence), data.npy or data.mem: (timestamps, signals)
    screen/        meta.yml (modality: screen), timestamps.npy, data/00000.npy ..., and combined_meta.json or
                   meta/00000.yml ...: what each file shows
    spikes/        meta.yml (modality: spikes), spikes.npy: bare float64, all units one after the other
    intervals/     meta.yml (modality: time_interval), an array (n, 2) for each label

Rows of a sequence have the times start_time + row / sampling_rate, as for experanto. The layout is that of
https://github.com/sensorium-competition/experanto.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memload.columns.clocks import Clock
from memload.columns.fields import Field
from memload.columns.intervals import Intervals
from memload.columns.spikes import Spikes
from memload.dtypes import as_torch_dtype
from memload.errors import FormatError
from memload.formats.arrays import borrow_array
from memload.formats.npy import open_npy
from memload.formats.packages import package
from memload.formats.raw import open_raw
from memload.formats.recordings.found import Found, one_row
from memload.sizes import counted

_META = "meta.yml"
_GENERATED = ("blank", "invalid")
_ENCODED = "its frames are encoded ({name}): decode them to .npy once, as memload write does with images"


def is_experanto(path: Path) -> bool:
    """Return whether a folder has folders of devices."""
    return path.is_dir() and any(path.glob(f"*/{_META}"))


def read_experanto(path: Path, wanted: Sequence[str] | None = None) -> Found:
    """Return what the folders of devices hold; rows are read in place, spikes when they are first used.

    Args:
        path: the folder of the session.
        wanted: the names of folders that become fields; all if not given.

    Raises:
        FormatError: there is no folder of a device, or one that is wanted cannot be read; the message says why.
        KeyError: there is no such folder.
        ImportError: PyYAML is not installed.
    """
    folders = {meta.parent.name: meta.parent for meta in sorted(path.glob(f"*/{_META}"))}
    if not folders:
        listed = sorted(one.name for one in path.iterdir())[:12] if path.is_dir() else "no folder"
        raise FormatError(f"{path}: no folder of experanto: none of its folders has a {_META}; there are {listed}")
    found = Found(name=path.absolute().name)
    for name in wanted or ():
        if name not in folders:
            raise KeyError(f"{path}: no folder {name!r}; there are {list(folders)}")
    for name, folder in folders.items():
        meta = _yaml(folder / _META)
        if wanted is not None and name not in wanted and meta.get("modality") != "time_interval":
            continue
        try:
            _reader(meta)(found, name, folder, meta)
        except (FormatError, FileNotFoundError, LookupError, TypeError, ValueError) as error:
            if wanted is not None and name in wanted:
                raise FormatError(f"{path}, {name!r}: {_said(error)}") from error
            found.left_out[name] = _said(error)
    if not found.fields:
        listed = "; ".join(f"{place}: {why}" for place, why in found.left_out.items())
        raise FormatError(f"{path}: nothing in it can be read as a recording: {listed or list(folders)}")
    return found


def _said(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no {Path(error.filename).name}"
    return f"{_META} has no {error}" if isinstance(error, KeyError) else str(error)


def _yaml(path: Path) -> dict[str, Any]:
    yaml = package("yaml", "experanto", str(path))
    try:
        found = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: no YAML: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected names and values, got {type(found).__name__}")
    return found


_Adds = Callable[[Found, str, Path, Mapping[str, Any]], None]


def _reader(meta: Mapping[str, Any]) -> _Adds:
    modality = meta.get("modality")
    if modality not in _READERS:
        raise FormatError(f"its modality is {modality!r}; known are {', '.join(_READERS)}")
    return _READERS[modality]


def _add_sequence(found: Found, name: str, folder: Path, meta: Mapping[str, Any]) -> None:
    clock = Clock(rate=meta["sampling_rate"], start=float(meta["start_time"]))
    if meta.get("is_mem_mapped", False):
        dtype, signals = as_torch_dtype(meta["dtype"]), int(meta["n_signals"])
        if signals < 1:
            raise FormatError(f"{_META} says that it has {signals} signals")
        rows = open_raw(folder / "data.mem", name, dtype, (signals,), 0)[name]
    else:
        rows = open_npy(folder / "data.npy", name)[name]
    if rows.rows != int(meta.get("n_timestamps", rows.rows)):
        raise FormatError(f"its data have {counted(rows.rows, 'row')}, and {_META} says {meta['n_timestamps']:,}")
    found.fields[name], found.clocks[name] = rows, clock
    shifts = folder / "meta" / "phase_shifts.npy"
    if meta.get("phase_shift_per_signal", False) and shifts.exists() and len(given := np.load(shifts)):
        found.left_out[f"{name}/meta/{shifts.name}"] = (
            f"shifts of single signals by {given.min():.4g} to {given.max():.4g} s are not applied"
        )


def _add_screen(found: Found, name: str, folder: Path, meta: Mapping[str, Any]) -> None:  # noqa: ARG001 - as others
    times = np.load(folder / "timestamps.npy")
    shown = list(_shown(folder))
    if not shown:
        raise FormatError("nothing is shown: neither combined_meta.json nor meta/ has an entry")
    frames = _frames(folder, shown)
    if frames.rows != len(times):
        raise FormatError(
            f"{counted(len(shown), 'file has', 'files have')} {counted(frames.rows, 'frame')}, and "
            f"{counted(len(times), 'timestamp is', 'timestamps are')} there"
        )
    # A frame stays until the next one.
    clock = Clock(timestamps=times, gap=max(1.0, 2 * float(np.ptp(times))))
    found.fields[name], found.clocks[name] = frames, clock
    first = np.array([one["first_frame_idx"] for _, one in shown])
    edges = np.append(times[first], times[-1] + clock.period / 1e9)
    found.intervals[f"{name}_trials" if "trials" in found.intervals else "trials"] = Intervals(
        edges[:-1], edges[1:], _columns([one for _, one in shown])
    )


def _shown(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each file in its order its number and its entry."""
    combined = folder / "combined_meta.json"
    if combined.exists():
        entries: dict[str, dict[str, Any]] = json.loads(combined.read_bytes())
    else:
        numbered = [one for one in (folder / "meta").glob("*.yml") if one.stem.isdecimal()]
        entries = {one.stem: _yaml(one) for one in sorted(numbered, key=lambda one: int(one.stem))}
    rows = 0
    for number, entry in entries.items():
        entry.setdefault("first_frame_idx", rows)
        if entry["first_frame_idx"] != rows:
            raise FormatError(f"{number} begins with frame {entry['first_frame_idx']:,}; expected {rows:,}")
        rows += int(entry.get("num_frames", 1)) if entry.get("modality") == "video" else 1
        yield number, entry


def _frames(folder: Path, shown: Sequence[tuple[str, Mapping[str, Any]]]) -> Field:
    """All frames in order. What is generated, such as a blank, has the form of those that are stored."""
    stored = {number: _stored(folder, number, entry) for number, entry in shown if not _is_generated(entry)}
    if not stored:
        raise FormatError("it shows blanks alone")
    forms = {number: (one.kind, one.shape) for number, one in stored.items()}
    like = next(iter(stored.values()))
    for number, (dtype, shape) in forms.items():
        if (dtype, shape) != (like.kind, like.shape):
            raise FormatError(
                f"frames differ: data/{next(iter(forms))} has {like.kind} {like.shape}, data/{number} {dtype} {shape}"
            )
    blanks: dict[float, Field] = {}
    return Field.concat(
        [stored[number] if number in stored else _blank(number, entry, like, blanks) for number, entry in shown]
    )


def _is_generated(entry: Mapping[str, Any]) -> bool:
    return str(entry["modality"]).lower() in _GENERATED


def _stored(folder: Path, number: str, entry: Mapping[str, Any]) -> Field:
    ending = entry.get("file_format") or entry.get("format") or ".npy"
    if entry.get("encoded") or ending != ".npy":
        raise FormatError(_ENCODED.format(name=f"data/{number}{ending}"))
    rows = open_npy(folder / "data" / f"{number}.npy", "frames")["frames"]
    if str(entry["modality"]).lower() == "image":
        return rows if rows.rows == 1 and len(rows.shape) >= len(entry["image_size"]) else one_row(rows)
    if rows.rows != int(entry["num_frames"]):
        raise FormatError(f"data/{number}.npy has {counted(rows.rows, 'frame')}, expected {entry['num_frames']:,}")
    return rows


def _blank(number: str, entry: Mapping[str, Any], like: Field, made: dict[float, Field]) -> Field:
    """A frame of one value, rounded to what frames can hold; a value is made once."""
    value = float(entry["interleave_value"])
    if value not in made:
        made[value] = borrow_array("blank", torch.full((1, *like.shape), _held(number, value, like), dtype=like.dtype))
    return made[value]


def _held(number: str, value: float, like: Field) -> float:
    """The value of a blank as frames have it. Raises FormatError if they cannot hold it."""
    if like.dtype.is_floating_point:
        return value
    least, most = (0, 1) if like.dtype == torch.bool else (torch.iinfo(like.dtype).min, torch.iinfo(like.dtype).max)
    if not (math.isfinite(value) and least <= round(value) <= most):
        raise FormatError(f"data/{number}: a blank of {value:g}, and its frames are {like.kind}: {least} to {most}")
    return round(value)


def _columns(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all files say of themselves: numbers and texts."""
    names = [name for name in entries[0] if all(name in one for one in entries)]
    values = {name: [one[name] for one in entries] for name in names}
    texts = {name for name, one in values.items() if all(isinstance(each, str) for each in one)}
    numbers = {name for name, one in values.items() if all(isinstance(each, int | float) for each in one)}
    return {name: np.array(one) for name, one in values.items() if name in texts | numbers}


def _add_spikes(found: Found, name: str, folder: Path, meta: Mapping[str, Any]) -> None:
    ends = np.asarray(meta["spike_indices"], dtype=np.int64)
    path = folder / "spikes.npy"
    if ends.ndim != 1 or len(ends) < 2:
        raise FormatError(
            f"spike_indices has the shape {ends.shape}; expected 0 and the end of the spikes of each unit, two numbers "
            "or more"
        )
    if (np.diff(ends) < 0).any() or ends[0] != 0 or ends[-1] * 8 != path.stat().st_size:
        raise FormatError(f"spike_indices go to {ends[-1]:,}, and {path.name} has {path.stat().st_size / 8:,} spikes")
    start, stop = float(meta["start_time"]), float(meta["end_time"])
    if not (math.isfinite(start) and math.isfinite(stop)):
        raise FormatError(f"it goes from {start} to {stop} s")
    found.fields[name] = Spikes(functools.partial(_spike_times, path, ends), start, stop)


def _spike_times(path: Path, ends: Any) -> list[Any]:
    return np.split(np.fromfile(path), ends[1:-1])


def _add_intervals(found: Found, name: str, folder: Path, meta: Mapping[str, Any]) -> None:
    for label, file in meta["labels"].items():
        pairs = np.load(folder / file)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise FormatError(f"{file} has the shape {pairs.shape}; expected a start and a stop for each interval")
        table = label if label not in found.intervals else f"{name}_{label}"
        found.intervals[table] = Intervals(pairs[:, 0], pairs[:, 1])


_READERS: dict[Any, _Adds] = {
    "sequence": _add_sequence,
    "screen": _add_screen,
    "spikes": _add_spikes,
    "time_interval": _add_intervals,
}
