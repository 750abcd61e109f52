"""Neurodata Without Borders (NWB 2): the series, units and intervals of a file of HDF5, or of a folder of Zarr.

    TimeSeries           group with `data`, and `timestamps` or `starting_time` (attribute `rate`)
    IndexSeries          `data` are numbers of images of `indexed_images` or of `indexed_timeseries`
    units                `spike_times`, all units one after the other; `spike_times_index`, where each ends
    TimeIntervals        `start_time`, `stop_time` and further columns

The schema: https://nwb-schema.readthedocs.io. Objects are recognised by what they hold, so that types of extensions are
read, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.clocks import SECOND, Clock, Nanoseconds, nanoseconds
from memload.columns.fields import Field
from memload.columns.intervals import Intervals, covered
from memload.columns.spikes import Spikes, Units
from memload.errors import FormatError
from memload.formats.hdf5 import fields_of_datasets, opened_hdf5
from memload.formats.recordings.found import Found, one_row, text
from memload.formats.recordings.nwb_zarr import ZarrDataset, ZarrGroup, is_nwb_zarr
from memload.sizes import counted

_SERIES = ("acquisition", "stimulus/presentation", "processing", "analysis", "scratch")
_SPIKES = "units"
_EDGES = ("start_time", "stop_time")


def is_nwb(path: Path) -> bool:
    """Return whether a path is that of an NWB file, or of a folder of Zarr that holds one."""
    return (path.is_file() and path.suffix == ".nwb") or is_nwb_zarr(path)


def read_nwb(path: Path, wanted: Sequence[str] | None = None) -> Found:
    """Return what an NWB file holds; series are read in place, spikes when they are first used.

    Args:
        path: the file, or the folder.
        wanted: the names of series, or "units"; all that can be read if not given.

    Raises:
        FormatError: it is no NWB file, or a series that is wanted cannot be read; the message says what there is.
        KeyError: there is no such series.
        ImportError: h5py, or zarr for a folder, is not installed.
    """
    if isinstance(wanted, str):
        raise TypeError(f"fields= is a list of names, got {wanted!r}")
    with _opened(path) as file:
        version = text(file.attrs.get("nwb_version", ""))
        if not version:
            raise FormatError(
                f"{path}: {'a folder' if path.is_dir() else 'an HDF5 file'}, but no NWB file: it has no "
                f"nwb_version; its groups are {list(file)[:12]}. memload.open(path, key=...) reads datasets of any such"
            )
        found = Found(name=text(file["identifier"][()]) if "identifier" in file else path.stem)
        names = _names(dict(_series(file)))
        there = [*names, *([_SPIKES] if _SPIKES in file else [])]
        for name in there if wanted is None else [name for name in wanted if name in there]:
            if name in names:
                _add(found, path, name, file[names[name]], strict=wanted is not None)
            else:
                _add_units(found, path, file[_SPIKES], strict=wanted is not None)
        for name, table in _tables(file):
            found.add_table(name, table, _EDGES, _columns(table))
    for name in wanted or ():
        if name not in there:
            raise KeyError(f"{path}: no series {name!r}; there are {there}")
    found.check(path, "it has no series and no units")
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The groups and datasets of a file, or of a folder."""
    if path.is_dir():
        yield ZarrGroup(path.absolute())
        return
    with opened_hdf5(path) as file:
        yield file


def _is_group(one: Any) -> bool:
    return hasattr(one, "keys")


def _own(group: Any) -> list[str]:
    """The names of the members of a group that are no links."""
    if isinstance(group, ZarrGroup):
        return list(group.own())
    import h5py

    return [name for name in group if isinstance(group.get(name, getlink=True), h5py.HardLink)]


def _fields_of(datasets: Mapping[str, Any]) -> dict[str, Field]:
    """Datasets of a file or of a folder, as fields that read them in place."""
    in_folder = {name: one.field() for name, one in datasets.items() if isinstance(one, ZarrDataset)}
    return in_folder or fields_of_datasets(datasets)


def _series(file: Any) -> Iterator[tuple[str, Any]]:
    """The groups that are series, by their paths in the file."""
    for root in _SERIES:
        if root in file:
            yield from _below(file[root], root)


def _below(group: Any, place: str) -> Iterator[tuple[str, Any]]:
    if not _is_group(group):
        return
    if "data" in group or "external_file" in group:
        yield place, group
        return
    for name in _own(group):
        yield from _below(group[name], f"{place}/{name}")


def _names(places: Mapping[str, Any]) -> dict[str, str]:
    """A name for each place: its last part, with as many parts before it as make it the only one of that name."""
    names: dict[str, str] = {}
    for place in places:
        parts = place.split("/")
        for count in range(1, len(parts) + 1):
            name = "/".join(parts[-count:])
            if sum(other == place or other.endswith(f"/{name}") for other in places) == 1:
                break
        names[name] = place
    return names


def _add(found: Found, path: Path, name: str, group: Any, *, strict: bool) -> None:
    """Add a series, or say why it is left out."""
    with found.telling(group.name, f"{path}, series {name!r}" if strict else ""):
        clock = _clock(group)
        rows, scale = _rows(group)
        clock.check_rows(name, rows.rows)
        found.fields[name], found.clocks[name] = rows, clock
        if scale != (1.0, 0.0):
            found.scales[name] = scale


def _clock(group: Any) -> Clock:
    unit = text(group["data"].attrs.get("unit", "")) if "data" in group else ""
    if "timestamps" in group:
        return Clock(timestamps=group["timestamps"][()], unit=unit)
    if "starting_time" not in group:
        raise FormatError("it has neither timestamps nor a starting_time with a rate")
    start = group["starting_time"]
    if "rate" not in start.attrs:
        raise FormatError("its starting_time has no rate")
    return Clock(rate=float(start.attrs["rate"]), start=float(start[()]), unit=unit)


def _rows(group: Any) -> tuple[Field, tuple[float, float]]:
    """The rows of a series, and conversion and offset."""
    if "data" not in group:
        first = text(group["external_file"][0])
        raise FormatError(f"its frames are in other files, such as {first!r}: read these as a field of their own")
    if "indexed_images" in group or "indexed_timeseries" in group:
        return _indexed(group)
    data = group["data"]
    if data.ndim and not data.shape[0]:
        external = " (its frames are in other files)" * ("external_file" in group)
        raise FormatError(f"it has no rows{external}")
    if "channel_conversion" in group:
        factors = group["channel_conversion"][()]
        if not np.all(factors == factors[0]):
            raise FormatError("its channels differ in channel_conversion, which no cast of memload applies")
        conversion, offset = _scale(data)
        return _fields_of({"data": data})["data"], (conversion * float(factors[0]), offset)
    return _fields_of({"data": data})["data"], _scale(data)


def _scale(data: Any) -> tuple[float, float]:
    conversion, offset = float(data.attrs.get("conversion", 1.0)), float(data.attrs.get("offset", 0.0))
    if not (math.isfinite(conversion) and math.isfinite(offset)):
        raise FormatError(f"its conversion is {conversion}, and its offset {offset}")
    return conversion, offset


def _indexed(group: Any) -> tuple[Field, tuple[float, float]]:
    """The images that the numbers of an IndexSeries choose."""
    numbers = np.asarray(group["data"][()])
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise FormatError(f"its data are {numbers.dtype} {numbers.shape}; an IndexSeries has one whole number a row")
    if "indexed_timeseries" in group:
        images, scale = _rows(group["indexed_timeseries"])
    else:
        images, scale = _images(group["indexed_images"]), (1.0, 0.0)
    outside = (numbers < 0) | (numbers >= images.rows)
    if outside.any():
        row = int(outside.argmax())
        raise FormatError(f"row {row:,} is image {numbers[row]}, and there are {images.rows:,}")
    return images.select(numbers.astype(np.int64)), scale


def _images(group: Any) -> Field:
    """The images of a container, in its order: datasets of one shape."""
    if "order_of_images" in group:
        members = [group.file[reference] for reference in group["order_of_images"][()]]
    else:
        members = [group[name] for name in group if not _is_group(group[name])]
    kinds = {(one.shape, one.dtype.str) for one in members}
    if len(kinds) != 1:
        shown = sorted(f"{dtype} {shape}" for shape, dtype in kinds)[:4]
        raise FormatError(f"its {len(members):,} images differ in shape or dtype ({', '.join(shown)})")
    found = _fields_of({str(number): one for number, one in enumerate(members)})
    return Field.concat([one_row(one) for one in found.values()])


def _add_units(found: Found, path: Path, group: Any, *, strict: bool) -> None:
    with found.telling(group.name, f"{path}, {_SPIKES}" if strict else ""):
        if "spike_times" not in group or not len(group["spike_times"]):
            columns = [text(one) for one in group.attrs.get("colnames", ())]
            raise FormatError(f"units without spikes: their columns are {columns}")
        count = len(_ends_of_units(group))
        ids = group["id"][()].tolist() if "id" in group else list(range(count))
        if len(ids) != count:
            raise FormatError(
                f"{counted(len(ids), 'unit has', 'units have')} an id, and {counted(count, 'has', 'have')} spikes"
            )
        names = found.names_of_units(f"{group.name}/id", ids)
        spikes = functools.partial(_spike_times, path, group.name, names)
        found.fields[_SPIKES] = Spikes(spikes, recorded=_observed(found, group))


def _spike_times(path: Path, place: str, names: tuple[Any, ...]) -> Units:
    with _opened(path) as file:
        group = file[place]
        times, ends = group["spike_times"][()], _ends_of_units(group)
    units = Units.of_file(names, np.split(times, ends)[: len(ends)])
    if units.lost == len(times):
        raise FormatError(f"{path}, {place}: none of the {len(times):,} spike_times is a number")
    return units


def _ends_of_units(group: Any) -> NDArray[np.int64]:
    """Up to which of all spikes those of each unit go."""
    if "spike_times_index" not in group:
        raise FormatError("it has spike_times, but no spike_times_index, which says where each unit ends")
    ends: NDArray[np.int64] = group["spike_times_index"][()].astype(np.int64)
    count = len(group["spike_times"])
    if not len(ends) or (np.diff(ends, prepend=0) < 0).any() or ends[-1] > count:
        raise FormatError(f"spike_times_index does not fit the {count:,} spike_times")
    return ends


def _observed(found: Found, group: Any) -> Intervals | None:
    """When spikes were recorded: while all units were observed, or any of them if they never were together."""
    tables = _observations(group)
    if not tables:
        return None
    begins, ends = (np.concatenate([table[edge] for table in tables]) for edge in (0, 1))
    pieces = covered(begins, ends, times=len(tables))
    where = "all of them were"
    if not len(pieces[0]):
        pieces = covered(begins, ends)
        where = "one of them was, since they never were together; the others count as silent"
    if len(tables) > 1:
        seconds = (pieces[1] - pieces[0]).sum() / SECOND
        found.left_out[f"{group.name}/obs_intervals"] = (
            f"units were observed at different times: spikes are read where {where} ({seconds:g} s)"
        )
    return Intervals.at_nanoseconds(*pieces, {})


def _observations(group: Any) -> list[tuple[Nanoseconds, Nanoseconds]]:
    """The pieces of time in which units were observed: once for all units that have the same ones."""
    if "obs_intervals" not in group:
        return []
    times = group["obs_intervals"][()]
    if times.ndim != 2 or times.shape[1] != 2:
        raise FormatError(f"obs_intervals are pairs of a start and a stop, got shape {times.shape}")
    ends = group["obs_intervals_index"][()].astype(np.int64) if "obs_intervals_index" in group else [len(times)]
    stored = {one.tobytes(): one for one in np.split(times, ends)[: len(ends)]}  # mostly the same ones for all units
    found = {}
    for one in stored.values():
        one = one[np.isfinite(one).all(axis=1)]
        pieces = covered(nanoseconds(one[:, 0], "obs_intervals"), nanoseconds(one[:, 1], "obs_intervals"))
        if len(pieces[0]):
            found[np.stack(pieces).tobytes()] = pieces
    return list(found.values())


def _tables(file: Any) -> Iterator[tuple[str, Any]]:
    if "intervals" in file:
        for name in file["intervals"]:
            table = file["intervals"][name]
            if all(edge in table for edge in _EDGES):
                yield name, table


def _columns(table: Any) -> list[str]:
    """The names of columns with one value in each row; those with an index differ in length from row to row."""
    names = map(text, table.attrs.get("colnames", ()))
    return [name for name in names if f"{name}_index" not in table]
