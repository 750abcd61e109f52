"""HDF5 files of temporaldata, as torch_brain's data sets are: their series, spikes and intervals, read in place.

    Data                  group with attribute `object`, of the groups below and of further Data
    RegularTimeSeries     attribute `sampling_rate`, `domain/start`, `domain/end`; arrays with a row for each sample
    IrregularTimeSeries   `timestamps`, arrays with a row for each; with `unit_index` they are spikes
    Interval              `start`, `end` and further columns
    ArrayDict             arrays without times, such as `units/id`, the names of units

A series whose domain has gaps is stored with rows in its gaps, which are left out. The layout is that of
https://github.com/neuro-galaxy/temporaldata.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memload.columns.clocks import SLACK, Clock, nanoseconds
from memload.columns.fields import Field
from memload.columns.intervals import Intervals, covered
from memload.columns.spikes import Spikes, Units
from memload.errors import FormatError
from memload.formats.hdf5 import fields_of_datasets, is_hdf5, opened_hdf5
from memload.formats.recordings.found import Found, text
from memload.sizes import counted

_OF_TIMES = ("timestamps", "timestamp_indices_1s", "domain", "unit_index")


def is_temporaldata(path: Path) -> bool:
    """Return whether a path is that of an HDF5 file of temporaldata."""
    if not path.is_file() or not is_hdf5(path):
        return False
    with opened_hdf5(path) as file:
        return _object(file) == "Data"


def read_temporaldata(path: Path, wanted: Sequence[str] | None = None) -> Found:
    """Return what a file of temporaldata holds; series are read in place, spikes when they are first used.

    Args:
        path: the file.
        wanted: names of fields, such as "spikes" and "cursor.pos"; all that can be read if not given.

    Raises:
        FormatError: it is no such file, or a field that is wanted cannot be read; the message says what there is.
        KeyError: there is no such field.
        ImportError: h5py is not installed.
    """
    with opened_hdf5(path) as file:
        if _object(file) != "Data":
            raise FormatError(f"{path}: an HDF5 file, but not of temporaldata; its groups are {list(file)[:12]}")
        found = Found(name=_name(file) or path.stem)
        there = []
        for place, group in _below(file, ""):
            kind = _object(group)
            if kind == "Interval":
                found.add_table(place, group, ("start", "end"), group)
            for name in _names(place, kind, group):
                there.append(name)
                if wanted is None or name in wanted:
                    _add(found, path, name, group, strict=wanted is not None)
    for name in wanted or ():
        if name not in there:
            raise KeyError(f"{path}: no field {name!r}; there are {there}")
    found.check(path, "it has no series")
    return found


def _object(group: Any) -> str:
    return text(group.attrs.get("object", ""))


def _name(file: Any) -> str:
    """The name of the session, where the file says it: temporaldata leaves that to its users."""
    groups = [file, *(file[name] for name in ("session",) if name in file)]
    found = [group.attrs[name] for group in groups for name in ("session_id", "id") if name in group.attrs]
    return text(found[0]) if found else ""


def _below(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    """The series and intervals in a Data, with the names by which users reach them."""
    for name in group:
        kind = _object(group[name])
        if kind == "Data":
            yield from _below(group[name], f"{above}{name}.")
        elif kind:
            yield f"{above}{name}", group[name]


def _names(place: str, kind: str, group: Any) -> list[str]:
    """The fields that a series becomes: one for each array, or spikes."""
    if kind not in ("RegularTimeSeries", "IrregularTimeSeries"):
        return []
    arrays = [f"{place}.{name}" for name in group if name not in _OF_TIMES]
    return [place] if kind == "IrregularTimeSeries" and ("unit_index" in group or not arrays) else arrays


def _add(found: Found, path: Path, name: str, group: Any, *, strict: bool) -> None:
    """Add a field, or say why it is left out."""
    with found.telling(name, f"{path}, field {name!r}" if strict else ""):
        if _is_spikes(name, group):
            found.fields[name] = _spikes(found, path, name, group)
            return
        array = group[name.rpartition(".")[2]]
        if "sampling_rate" in group.attrs:
            rows, clock = _regular(group, array)
        else:
            rows, clock = fields_of_datasets({"x": array})["x"], Clock(timestamps=group["timestamps"][()])
        clock.check_rows(name, rows.rows)
        found.fields[name], found.clocks[name] = rows, clock


def _is_spikes(name: str, group: Any) -> bool:
    return "sampling_rate" not in group.attrs and group.name.rpartition("/")[2] == name.rpartition(".")[2]


def _regular(group: Any, array: Any) -> tuple[Field, Clock]:
    rate, starts, ends = float(group.attrs["sampling_rate"]), group["domain/start"][()], group["domain/end"][()]
    rows = fields_of_datasets({"x": array})["x"]
    if len(starts) == 1:
        return rows, Clock(rate=rate, start=float(starts[0]))
    first, stop = (np.rint((one - starts[0]) * rate).astype(np.int64) for one in (starts, ends))
    there = np.concatenate([np.arange(begin, end) for begin, end in zip(first, stop, strict=True)])
    return rows.select(there), Clock(timestamps=starts[0] + there / rate)


def _spikes(found: Found, path: Path, name: str, group: Any) -> Spikes:
    if not len(group["timestamps"]):
        raise FormatError("it has no spikes")
    for array in group:
        if array not in _OF_TIMES:
            found.left_out[f"{name}.{array}"] = "an array beside spikes, of which times and units are read alone"
    held = "unit_index" in group and "units" in group.parent and "id" in group.parent["units"]
    names = ()
    if held:
        ids = [one.decode() if isinstance(one, bytes) else one for one in group.parent["units/id"][()].tolist()]
        names = found.names_of_units(f"{name.rpartition('.')[0]}.units.id".lstrip("."), ids)
    return Spikes(functools.partial(_spike_times, path, group.name, names), recorded=_domain(group))


def _domain(group: Any) -> Intervals:
    """The pieces of time in which a series was recorded; one that ends with its last row contains it."""
    if "domain" not in group:
        raise FormatError("it has no domain, which says when it was recorded")
    begins, ends = (nanoseconds(group[f"domain/{edge}"][()], "domain") for edge in ("start", "end"))
    last = nanoseconds(group["timestamps"][-1], "timestamps")
    return Intervals.at_nanoseconds(*covered(begins, np.where(ends == last, last + SLACK + 1, ends)), {})


def _spike_times(path: Path, place: str, names: tuple[Any, ...]) -> Units:
    """The times of each unit, by names, or by numbers where there are none."""
    with opened_hdf5(path) as file:
        group = file[place]
        times = group["timestamps"][()]
        units = group["unit_index"][()] if "unit_index" in group else np.zeros(len(times), np.int64)
    if len(units) != len(times) or units.min() < 0 or (len(names) and units.max() >= len(names)):
        raise FormatError(
            f"{path}, {place}: unit_index does not fit the {counted(len(times), 'timestamp')} and "
            f"{counted(len(names), 'unit')}"
        )
    names = names or tuple(range(int(units.max()) + 1))
    order = np.argsort(units, kind="stable")
    cuts = np.searchsorted(units[order], np.arange(1, len(names)))
    return Units.of_file(names, np.split(times[order], cuts))
