"""Slices of time on other frames, and on their way to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Clock, EventCounts, Events, Slices, SliceTimes

PackedClock = tuple[Any, ...]
"""Rows, start and rate of a regular clock; or times, period and longest step."""


@dataclass(frozen=True)
class PackedTimes:
    """When slices start: the arguments of `SliceTimes`."""

    starts: NDArray[np.int64]
    spans: NDArray[np.int64]
    lows: NDArray[np.int64]
    highs: NDArray[np.int64]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class PackedSlices:
    """Slices of frames, which are packed by others; `selection` is None or the stored rows in order."""

    frames: Any
    recordings: tuple[tuple[PackedClock, int, int], ...]
    times: PackedTimes
    grid: tuple[int, tuple[int, int], int]
    sampling: str
    element: str
    selection: NDArray[np.int64] | None


@dataclass(frozen=True)
class PackedCounts:
    """Counts of events; `selection` is None or the stored rows in order."""

    events: tuple[tuple[NDArray[np.int64], NDArray[np.int32]], ...]
    units: int
    times: PackedTimes
    grid: tuple[int, tuple[int, int], int]
    selection: NDArray[np.int64] | None


def on_frames(column: Slices, frames: Any) -> Slices:
    """Return the same slices of other frames, which are in the same order."""
    made = Slices(frames, column.recordings, column.times, column.grid, column.sampling, column.element)
    return made if column.selection is None else made.select(column.selection)


def pack_slices(column: Slices, frames: Any) -> PackedSlices:
    """Return slices in a form that can be pickled, with their frames as they were packed."""
    recordings = tuple((_pack_clock(clock), first, padding) for clock, first, padding in column.recordings)
    times = _pack_times(column.times)
    return PackedSlices(frames, recordings, times, column.grid, column.sampling, column.element, column.selection)


def unpack_slices(packed: PackedSlices, frames: Any) -> Slices:
    """Return the slices of these frames."""
    recordings = [(_unpack_clock(clock), first, padding) for clock, first, padding in packed.recordings]
    times = _unpack_times(packed.times)
    made = Slices(frames, recordings, times, packed.grid, packed.sampling, packed.element)
    return made if packed.selection is None else made.select(packed.selection)


def pack_counts(column: EventCounts) -> PackedCounts:
    """Return counts of events in a form that can be pickled."""
    events = tuple((one.times, one.units) for one in column.events)
    return PackedCounts(events, column.units, _pack_times(column.times), column.grid, column.selection)


def unpack_counts(packed: PackedCounts) -> EventCounts:
    """Return the counts."""
    events = [Events(times, units) for times, units in packed.events]
    made = EventCounts(events, packed.units, _unpack_times(packed.times), packed.grid)
    return made if packed.selection is None else made.select(packed.selection)


def _pack_clock(clock: Clock) -> PackedClock:
    times = clock.times
    return (clock.rows, clock.start, clock.rate) if times is None else (times, clock.period, clock.longest)


def _unpack_clock(packed: PackedClock) -> Clock:
    first, second, third = packed
    return Clock.at_times(first, second, third) if isinstance(first, np.ndarray) else Clock(first, second, third)


def _pack_times(times: SliceTimes) -> PackedTimes:
    return PackedTimes(times.starts, times.spans, times.lows, times.highs, tuple(times.counts))


def _unpack_times(packed: PackedTimes) -> SliceTimes:
    return SliceTimes(packed.starts, packed.spans, packed.lows, packed.highs, list(packed.counts))
