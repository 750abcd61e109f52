"""Slices of time on other frames, and on their way to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Clock, EventCounts, EventItems, Events, Slices, SliceTimes

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
class PackedEvents:
    """Events: the arguments of `Events`."""

    times: NDArray[np.int64]
    units: NDArray[np.int32]


@dataclass(frozen=True)
class PackedCounts:
    """Counts of events; `selection` is None or the stored rows in order."""

    events: tuple[PackedEvents, ...]
    units: int
    times: PackedTimes
    grid: tuple[int, tuple[int, int], int]
    selection: NDArray[np.int64] | None


@dataclass(frozen=True)
class PackedItems:
    """Events as rows that differ in length; `selection` is None or the stored rows in order."""

    events: tuple[PackedEvents, ...]
    times: PackedTimes
    window: tuple[int, int]
    item: str
    selection: NDArray[np.int64] | None


class EventsPacker:
    """Packs events, those of several columns once."""

    def __init__(self) -> None:
        self._packed: dict[Events, PackedEvents] = {}

    def __call__(self, column: EventCounts | EventItems) -> tuple[PackedEvents, ...]:
        """Return the events of each recording of a column."""
        for one in column.events:
            if one not in self._packed:
                self._packed[one] = PackedEvents(one.times, one.units)
        return tuple(self._packed[one] for one in column.events)


class EventsUnpacker:
    """Unpacks events, those of several columns once."""

    def __init__(self) -> None:
        self._unpacked: dict[int, Events] = {}  # by the id of what was packed, which the caller keeps

    def __call__(self, packed: tuple[PackedEvents, ...]) -> list[Events]:
        """Return the events of each recording again."""
        for one in packed:
            if id(one) not in self._unpacked:
                self._unpacked[id(one)] = Events(one.times, one.units)
        return [self._unpacked[id(one)] for one in packed]


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


def pack_events(column: EventCounts | EventItems, events: EventsPacker) -> PackedCounts | PackedItems:
    """Return a column of events in a form that can be pickled."""
    packed, times = events(column), _pack_times(column.times)
    if isinstance(column, EventItems):
        return PackedItems(packed, times, column.window, column.item, column.selection)
    return PackedCounts(packed, column.units, times, column.grid, column.selection)


def unpack_events(packed: PackedCounts | PackedItems, events: EventsUnpacker) -> EventCounts | EventItems:
    """Return the column."""
    found, times = events(packed.events), _unpack_times(packed.times)
    made: EventCounts | EventItems
    if isinstance(packed, PackedItems):
        made = EventItems(found, times, packed.window, packed.item)
    else:
        made = EventCounts(found, packed.units, times, packed.grid)
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
