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

from memload.columns.clocks import Clock
from memload.columns.fields import Field
from memload.columns.intervals import Intervals
from memload.columns.spikes import Spikes
from memload.errors import FormatError
from memload.formats.hdf5 import fields_of_datasets, opened_hdf5
from memload.formats.recordings.found import Found, one_row
from memload.formats.recordings.nwb_zarr import ZarrDataset, ZarrGroup, is_nwb_zarr

_SERIES = ("acquisition", "stimulus/presentation", "processing", "analysis", "scratch")
_SPIKES = "units"


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
        version = _text(file.attrs.get("nwb_version", ""))
        if not version:
            raise FormatError(
                f"{path}: {'a folder' if path.is_dir() else 'an HDF5 file'}, but no NWB file: it has no "
                f"nwb_version; its groups are {list(file)[:12]}. memload.open(path, key=...) reads datasets of any such"
            )
        found = Found(name=_text(file["identifier"][()]) if "identifier" in file else path.stem)
        names = _names(dict(_series(file)))
        there = [*names, *([_SPIKES] if _SPIKES in file else [])]
        for name in there if wanted is None else [name for name in wanted if name in there]:
            if name in names:
                _add(found, path, name, file[names[name]], strict=wanted is not None)
            else:
                _add_units(found, path, file[_SPIKES], strict=wanted is not None)
        for name, table in _tables(file):
            _add_table(found, name, table)
    for name in wanted or ():
        if name not in there:
            raise KeyError(f"{path}: no series {name!r}; there are {there}")
    if not found.fields:
        listed = (
            "; ".join(f"{place}: {why}" for place, why in found.left_out.items()) or "it has no series and no units"
        )
        raise FormatError(f"{path}: nothing in it can be read as a recording: {listed}")
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
    try:
        clock = _clock(group)
        rows, scale = _rows(group)
        clock.check_rows(name, rows.rows)
    except (FormatError, TypeError, ValueError) as error:
        if strict:
            raise FormatError(f"{path}, series {name!r}: {error}") from error
        found.left_out[group.name] = str(error)
        return
    found.fields[name], found.clocks[name] = rows, clock
    if scale != (1.0, 0.0):
        found.scales[name] = scale


def _clock(group: Any) -> Clock:
    unit = _text(group["data"].attrs.get("unit", "")) if "data" in group else ""
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
        first = _text(group["external_file"][0])
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
    if "spike_times" not in group or not len(group["spike_times"]):
        why = f"units without spikes: their columns are {[_text(one) for one in group.attrs.get('colnames', ())]}"
        if strict:
            raise FormatError(f"{path}: {why}")
        found.left_out[group.name] = why
        return
    start = stop = None
    if "obs_intervals" in group and len(group["obs_intervals"]):
        observed = group["obs_intervals"][()]
        start, stop = float(observed.min()), float(observed.max())
    found.fields[_SPIKES] = Spikes(functools.partial(_spike_times, path, group.name), start, stop)


def _spike_times(path: Path, place: str) -> dict[Any, Any]:
    with _opened(path) as file:
        group = file[place]
        times, ends = group["spike_times"][()], group["spike_times_index"][()].astype(np.int64)
        names = group["id"][()].tolist() if "id" in group else list(range(len(ends)))
    if (np.diff(ends, prepend=0) < 0).any() or (len(ends) and ends[-1] > len(times)):
        raise FormatError(f"{path}: spike_times_index does not fit the {len(times):,} spike_times")
    return dict(zip(names, np.split(times, ends)[: len(ends)], strict=True))


def _tables(file: Any) -> Iterator[tuple[str, Any]]:
    if "intervals" in file:
        for name in file["intervals"]:
            table = file["intervals"][name]
            if "start_time" in table and "stop_time" in table:
                yield name, table


def _add_table(found: Found, name: str, table: Any) -> None:
    start, stop = table["start_time"][()], table["stop_time"][()]
    columns = {}
    for column in table.attrs.get("colnames", ()):
        one = _text(column)
        if one in ("start_time", "stop_time") or one not in table or f"{one}_index" in table:
            continue
        values = table[one]
        if values.dtype.kind == "O":
            texts = values.dtype.metadata is None or "vlen" in values.dtype.metadata
            if not texts:
                continue
            columns[one] = np.array([_text(each) for each in values[()]], dtype=object)
        elif values.dtype.kind in "biuf":
            columns[one] = values[()]
    try:
        found.intervals[name] = Intervals(start, stop, columns)
    except (TypeError, ValueError) as error:
        found.left_out[table.name] = str(error)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
