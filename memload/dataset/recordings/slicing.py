"""Which slices of time a recording has, and the dataset whose rows they are.

For each field, the starts of slices that it covers are ranges of nanoseconds. Those of all fields and of the intervals
are intersected; starts at every hop, at given times, or drawn at random are then taken out of what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memload import _core
from memload.columns.clocks import SECOND, SLACK, Clock, Nanoseconds, fraction, nanoseconds, periods
from memload.columns.fields import Field
from memload.columns.intervals import Intervals
from memload.columns.numbers import kind
from memload.columns.ragged_fields import RaggedField
from memload.columns.spikes import Spikes
from memload.dataset.dataset import Dataset
from memload.dataset.recordings.grids import Grid, Sampling, SliceRequest, grid_of
from memload.dataset.recordings.ranges import Ranges
from memload.dtypes import code_of
from memload.formats.ragged_arrays import field_of

_FROM, _UNTIL = -(2**62), 2**62
_OWN = ("interval", "onset")
_WIDE = (torch.float64, torch.int32, torch.int64)


def sliced(
    fields: Mapping[str, Field | Spikes], clocks: Mapping[str, Clock], within: Intervals | None, request: SliceRequest
) -> Dataset:
    """Return the dataset of `Recording.slices`, described there."""
    request.check_names(fields)
    _check_columns(fields, within, request.columns)
    for name, one in fields.items():
        if isinstance(one, Field) and not one.rows:
            raise ValueError(f"field {name!r} has no rows, and so no slices: choose the others by Recording.only")
    grids = {name: grid_of(name, one, clocks.get(name), request) for name, one in fields.items()}
    if within is not None:
        within.check_apart("intervals that slices are cut from")
    chosen = _chosen(fields, clocks, grids, within, request)
    made: dict[str, Field] = {}
    for name, one in fields.items():
        _add(made, _columns(name, one, clocks.get(name), grids[name], chosen, request))
    _add(made, _labels(chosen, within, request))
    return Dataset(made)


def _add(made: dict[str, Field], more: Iterable[tuple[str, Field]]) -> None:
    for name, field in more:
        if name in made:
            raise ValueError(
                f"slices would have two fields {name!r}: one is made beside another field or of a column; "
                "give that of the recording another name"
            )
        made[name] = field


def _check_columns(fields: Mapping[str, Any], within: Intervals | None, columns: tuple[str, ...]) -> None:
    if isinstance(columns, str):
        raise TypeError(f"columns= is a list of names, got {columns!r}")
    if columns and within is None:
        raise TypeError("columns= are those of the intervals of within=, which is not given")
    for name in columns:
        if within is not None and name not in within.columns:
            raise KeyError(f"columns= names {name!r}; the intervals have {list(within.columns)}")
        if name in fields:
            raise ValueError(f"columns= names {name!r}, which is the name of a field, too")
    for name in _OWN:
        if name in fields:
            raise ValueError(f"a field may not be named {name!r}, which is the name of a number of each slice")


@dataclass(frozen=True)
class Chosen:
    """The slices that were chosen.

    Attributes:
        starts: nanoseconds, int64 (n,).
        spans: by how much later a slice may start, int64 (n,); empty if nothing is drawn.
        lows: the beginning of the interval of each, int64 (n,); empty without intervals. No row before it is read, and
            with padding, zeros stand there.
        highs: the end of the interval of each.
        labels: the number of the interval or of the onset of each, int64 (n,).
    """

    starts: Nanoseconds
    spans: Nanoseconds
    lows: Nanoseconds
    highs: Nanoseconds
    labels: Nanoseconds

    @property
    def native(self) -> _core.SliceTimes:
        """The slices as the engine reads them."""
        return _core.SliceTimes(self.starts, self.spans, self.lows, self.highs, [len(self.starts)])


_NONE = np.empty(0, dtype=np.int64)


def _chosen(
    fields: Mapping[str, Field | Spikes],
    clocks: Mapping[str, Clock],
    grids: Mapping[str, Grid],
    within: Intervals | None,
    request: SliceRequest,
) -> Chosen:
    pieces = {name: pieces_of(one, clocks.get(name)) for name, one in fields.items()}
    ranges = _allowed(within, pieces, grids, request)
    if request.at is not None:
        found = _at(nanoseconds(request.at, "at="), ranges, within, request)
    elif request.random:
        found = _drawn(ranges, within, int(request.random))
    else:
        found = _hopping(ranges, within, pieces, request)
    if not len(found.starts):
        raise ValueError(_nothing(pieces, grids, within, request))
    return found


def pieces_of(one: Field | Spikes, clock: Clock | None) -> tuple[Nanoseconds, Nanoseconds]:
    """Return the beginning and the end of each piece of time that a field covers: nanoseconds, int64 (n,)."""
    if isinstance(one, Spikes):
        return one.pieces
    assert clock is not None
    return clock.pieces(one.rows)


def _around(within: Intervals | None, pieces: Mapping[str, tuple[Nanoseconds, Nanoseconds]]) -> Ranges:
    """The intervals that slices are cut from; without any, the time that all fields cover, gaps included."""
    if within is not None:
        order = np.argsort(within.begins, kind="stable")
        return Ranges(within.begins[order], within.ends[order], order)
    low = max(int(begins[0]) for begins, _ in pieces.values())
    high = min(int(ends[-1]) for _, ends in pieces.values())
    return Ranges(np.array([low]), np.array([high]), np.array([0]))


def _allowed(
    within: Intervals | None,
    pieces: Mapping[str, tuple[Nanoseconds, Nanoseconds]],
    grids: Mapping[str, Grid],
    request: SliceRequest,
) -> Ranges:
    """The ranges of starts whose slices lie in their interval and are covered by all fields."""
    around = _around(within, pieces)
    if within is None:  # the fields say how far it goes
        around = Ranges(np.array([_FROM]), np.array([_UNTIL]), np.array([0]))
    else:
        duration = int(np.rint(float(request.duration) * SECOND))
        offsets = [grid.offset for grid in grids.values()]
        around = Ranges(
            around.low - min(offsets) - SLACK, around.high - max(offsets) - duration + SLACK, around.tag
        ).sorted()
    for name, grid in grids.items():
        around = around.within(*grid.starts(*pieces[name])).sorted()
    return around


def _at(starts: Nanoseconds, ranges: Ranges, within: Intervals | None, request: SliceRequest) -> Chosen:
    if starts.ndim != 1:
        raise TypeError(f"at= is one start for each slice, got {kind(request.at)} of shape {starts.shape}")
    onsets = np.arange(len(starts)) if request.pad else np.flatnonzero(ranges.holds(starts))
    if within is None:
        return Chosen(starts[onsets], _NONE, _NONE, _NONE, onsets)
    if not request.pad:
        lows, highs = _limits(within, ranges.tag_of(starts[onsets]))
        return Chosen(starts[onsets], _NONE, lows, highs, onsets)
    order = np.argsort(within.begins, kind="stable")
    place = np.searchsorted(within.begins[order], starts + SLACK, side="right") - 1
    inside = (place >= 0) & (starts + SLACK < within.ends[order][np.maximum(place, 0)])
    return Chosen(starts[inside], _NONE, *_limits(within, order[place[inside]]), onsets[inside])


def _limits(within: Intervals | None, numbers: Nanoseconds) -> tuple[Nanoseconds, Nanoseconds]:
    """The beginnings and ends of these intervals; none without intervals."""
    return (_NONE, _NONE) if within is None else (within.begins[numbers], within.ends[numbers])


def _drawn(ranges: Ranges, within: Intervals | None, repeats: int) -> Chosen:
    starts = np.minimum(ranges.low + SLACK, ranges.high)  # the last that is allowed may be nearer than the slack
    spans = np.maximum(ranges.high - ranges.low - 2 * SLACK, 0)
    starts, spans, labels = (np.repeat(one, repeats) for one in (starts, spans, ranges.tag))
    return Chosen(starts, spans, *_limits(within, labels), labels)


def _hopping(
    ranges: Ranges,
    within: Intervals | None,
    pieces: Mapping[str, tuple[Nanoseconds, Nanoseconds]],
    request: SliceRequest,
) -> Chosen:
    around = _around(within, pieces)
    hop = fraction(request.duration if request.hop is None else request.hop, "hop=")
    found = []
    for low, high, tag in zip(*around, strict=True):
        first = low if request.pad else max(low, _first_in(ranges, low, high))
        count = int((high - first) / SECOND / float(hop)) + 2 if high > first else 0
        starts = first + periods(1 / hop, np.arange(count))
        found.append((starts[starts + SLACK < high], tag))
    starts = np.concatenate([one for one, _ in found]) if found else _NONE
    labels = np.repeat(np.array([tag for _, tag in found], dtype=np.int64), [len(one) for one, _ in found])
    if not request.pad:
        kept = ranges.holds(starts)
        starts, labels = starts[kept], labels[kept]
    return Chosen(starts, _NONE, *_limits(within, labels), labels)


def _first_in(ranges: Ranges, low: int, high: int) -> int:
    """The first start in an interval: its beginning, or later where offsets or fields that begin later ask for it."""
    at = int(np.searchsorted(ranges.high, low))
    if at == len(ranges.low) or ranges.low[at] > high:
        return low
    return int(ranges.low[at]) + SLACK


def _nothing(
    pieces: Mapping[str, tuple[Nanoseconds, Nanoseconds]],
    grids: Mapping[str, Grid],
    within: Intervals | None,
    request: SliceRequest,
) -> str:
    if request.at is not None and not np.size(request.at):
        return "at= has no starts: give at least one, in seconds"
    if within is not None and not len(within):
        return "within= has no intervals, so there are no slices"
    longest = {name: float((ends - begins).max() / SECOND) for name, (begins, ends) in pieces.items()}
    shortest = min(longest, key=lambda name: longest[name])
    spans = ", ".join(
        f"{name} {begins[0] / SECOND:.3f} to {ends[-1] / SECOND:.3f} s" for name, (begins, ends) in pieces.items()
    )
    offsets = [grid.offset / SECOND for grid in grids.values()]
    inside = ""
    if within is not None:
        most = float((within.ends - within.begins).max() / SECOND) if len(within) else 0.0
        inside = f"; the longest of the {len(within):,} intervals has {most:g} s"
    further = "" if request.pad or request.random else ". pad=True keeps slices that reach further"
    return (
        f"no slice of {float(request.duration):g} s with offsets from {min(offsets):g} to {max(offsets):g} s lies "
        f"where all fields are: {spans}; the longest piece of {shortest!r} without a gap has {longest[shortest]:g} s"
        f"{inside}{further}"
    )


def _columns(
    name: str, one: Field | Spikes, clock: Clock | None, grid: Grid, chosen: Chosen, request: SliceRequest
) -> Iterator[tuple[str, Field]]:
    """The field of the slices, and with padding its mask."""
    if isinstance(one, Spikes) and request.sampling_of(name) == "times":
        yield from _listed(name, one, grid, chosen, pad=request.pad)
        return
    if isinstance(one, Spikes):
        counts = _core.EventCounts([one.events], len(one.names), chosen.native, grid.native)
        yield name, Field(torch.int16, (grid.samples, len(one.names)), counts)
    else:
        assert clock is not None
        yield name, _slices(one, clock.native(one.rows), grid, chosen, request.sampling_of(name), pad=request.pad)
    if request.pad:
        yield f"{name}_mask", _mask(pieces_of(one, clock), grid, chosen)


def _listed(name: str, one: Spikes, grid: Grid, chosen: Chosen, *, pad: bool) -> Iterator[tuple[str, Field]]:
    """The times of spikes and their units, and with padding from when to when spikes were recorded."""
    times = chosen.native
    yield name, RaggedField(torch.float64, (None,), _core.EventItems([one.events], times, grid.window, "time"))
    units = _core.EventItems([one.events], times, grid.window, "unit")
    yield f"{name}_unit_index", RaggedField(torch.int64, (None,), units)
    if pad:
        yield f"{name}_span", field_of(f"{name}_span", _spans(one, grid, chosen))


def _spans(one: Spikes, grid: Grid, chosen: Chosen) -> Any:
    """From when to when spikes were recorded in each slice, in seconds from its beginning: float64 (n, 2)."""
    offset, duration = grid.window
    starts = chosen.starts + offset
    lows, highs = starts, starts + duration
    if len(chosen.lows):
        lows, highs = np.maximum(lows, chosen.lows), np.minimum(highs, chosen.highs)
    begins, ends = one.pieces
    first = np.minimum(np.searchsorted(ends, lows, side="right"), len(ends) - 1)  # that ends in the slice, or later
    last = np.maximum(np.searchsorted(begins, highs) - 1, 0)  # that begins in the slice, or before
    edges = np.stack([np.maximum(begins[first], lows), np.minimum(ends[last], highs)], axis=1)
    inside = np.clip(edges - starts[:, None], 0, duration)
    return np.maximum(inside, inside[:, :1]) / SECOND  # a slice that lies elsewhere has a span of no length


def _slices(one: Field, clock: _core.Clock, grid: Grid, chosen: Chosen, sampling: Sampling, *, pad: bool) -> Field:
    frames: Any = (Field.concat([one, _zeros(one)]) if pad else one).column
    computed = sampling in ("linear", "mean")
    element = code_of(one.dtype) if computed else "U8"  # which is read only for computed samples
    recordings = [(clock, 0, one.rows if pad else -1)]
    column = _core.Slices(frames, recordings, chosen.native, grid.native, sampling, element)
    dtype = (torch.float64 if one.dtype in _WIDE else torch.float32) if computed else one.dtype
    return Field(dtype, (grid.samples, *one.shape), column, owners=one.owners, meant=one.meant)


def _zeros(one: Field) -> Field:
    """One row of zeros in the form of a field."""
    memory = np.zeros(max(1, one.row_bytes), dtype=np.uint8)
    storage = _core.Storage.borrow(memory, memory.ctypes.data, memory.nbytes, "padding")
    return Field(one.dtype, one.shape, _core.Column(one.row_bytes, [(storage, 0, 1, one.row_bytes)]))


def _mask(pieces: tuple[Nanoseconds, Nanoseconds], grid: Grid, chosen: Chosen) -> Field:
    """Whether each sample lies in one of these pieces of time."""
    begins, ends = pieces
    apart = begins[1:] > ends[:-1]
    begins, ends = begins[np.append(True, apart)], ends[np.append(apart, True)]
    edges = np.stack([begins, ends], axis=1).reshape(-1)  # a piece begins, ends, the next one begins, and so on
    memory = np.zeros(len(edges) + 1, dtype=np.uint8)
    memory[:-1:2] = 1
    storage = _core.Storage.borrow(memory, memory.ctypes.data, memory.nbytes, "a mask")
    flags = _core.Column(1, [(storage, 0, len(memory), 1)])
    clock = _core.Clock.at_times(edges, 1, max(1, int(np.diff(edges).max(initial=1))))
    column = _core.Slices(flags, [(clock, 0, len(edges))], chosen.native, grid.native, "previous", "U8")
    return Field(torch.bool, (grid.samples,), column)


def _labels(chosen: Chosen, within: Intervals | None, request: SliceRequest) -> Iterator[tuple[str, Field]]:
    if request.at is not None:
        yield "onset", field_of("onset", chosen.labels)
        return
    if within is None:
        return
    yield "interval", field_of("interval", chosen.labels)
    for name in request.columns:
        values = within.columns[name][chosen.labels]
        yield name, field_of(name, [str(one) for one in values] if values.dtype.kind in "OUS" else values)
