"""Events of several units, such as the spikes of neurons: a time for each, and no rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from memload import _core
from memload.columns.clocks import SECOND, SLACK, Nanoseconds, nanoseconds, one_time
from memload.columns.intervals import Intervals, as_intervals
from memload.columns.numbers import kind
from memload.sizes import counted

MOST_IN_A_BIN = 2**15 - 1
_FROM, _UNTIL = -(2**62), 2**62  # an edge that the spikes themselves give


class Units(NamedTuple):
    """The names of units, and the nanoseconds of the spikes of each, rising."""

    names: tuple[Any, ...]
    times: list[Nanoseconds]
    lost: int = 0
    """How many times of a file are no finite numbers, and left out."""
    outside: int = 0
    """How many times lie outside of what was recorded, and are left out."""

    @classmethod
    def of_file(cls, names: Sequence[Any], arrays: Sequence[Any]) -> Units:
        """Return units of times in seconds, in any order; those that are no finite numbers are left out."""
        finite = [one[np.isfinite(one)] for one in arrays]
        return cls.of_seconds(names, finite, sum(map(len, arrays)) - sum(map(len, finite)))

    @classmethod
    def of_seconds(cls, names: Sequence[Any], arrays: Sequence[Any], lost: int = 0) -> Units:
        """Return units of times in seconds, in any order. Raises ValueError if one is no time."""
        found = [nanoseconds(one, f"the spikes of unit {name!r}") for name, one in zip(names, arrays, strict=True)]
        for name, one in zip(names, found, strict=True):
            if one.ndim != 1:
                raise ValueError(f"the spikes of unit {name!r} are one number each, got shape {one.shape}")
        return cls(tuple(names), [np.sort(one) for one in found], lost)


@dataclass(frozen=True, eq=False, repr=False)
class Spikes:
    """The times of spikes, or of other events, of several units.

    They take 12 bytes of memory each. `Recording.slices` counts them in bins: int16 (bins, units). Spikes outside of
    what was recorded are left out.

    Args:
        times: for each unit the times of its spikes in seconds, in any order: a sequence of arrays, or a mapping from
            the names of units to arrays; or a function without arguments that returns one of these when it is needed.
        start: the second from which on spikes were recorded; default: that of the first spike.
        stop: the second before which spikes were recorded; default: that of the last spike, which is kept.
        recorded: the pieces of time in which spikes were recorded, if there are gaps between them, instead of `start`
            and `stop`: `memload.Intervals`, or pairs (start, stop) in seconds.

    Raises:
        TypeError: `times` is neither a sequence nor a mapping of arrays; or `recorded` comes with `start` or `stop`.
        ValueError: there are no units, none of them has a spike, or a time is NaN; `stop` comes before `start`.

    Example:
        >>> import memload
        >>> memload.Spikes([[0.1, 0.25, 0.9], [0.5]])
        Spikes(4 of 2 units from 0.1 to 0.9 s)
    """

    times: Any
    start: float | None = None
    stop: float | None = None
    recorded: Any = None
    _edges: tuple[Nanoseconds, Nanoseconds] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edges", _edges(self.start, self.stop, self.recorded))
        if not isinstance(self.times, Callable):  # type: ignore[arg-type]  # of collections.abc
            _ = self.events
            object.__setattr__(self, "times", None)  # which `events` has

    @classmethod
    def at_nanoseconds(cls, units: Callable[[], Units], begins: Any, ends: Any) -> Spikes:
        """Return the spikes that a function gives when they are needed.

        They were recorded in pieces between these nanoseconds, which rise: one each, or int64 (pieces,).
        """
        spikes = cls(units)
        object.__setattr__(spikes, "_edges", (np.atleast_1d(np.int64(begins)), np.atleast_1d(np.int64(ends))))
        return spikes

    @functools.cached_property
    def units(self) -> Units:
        """The names of the units, and those of their spikes that lie in what was recorded, in nanoseconds."""
        given = self.times() if callable(self.times) else self.times
        found = given if isinstance(given, Units) else Units.of_seconds(*_by_unit(given))
        if not sum(map(len, found.times)):
            several = counted(len(found.names), "unit has no spikes", "units have no spikes")
            what = several if found.names else "there are no units"
            raise ValueError(f"{what}: leave such spikes out of the recording")
        kept = [_inside(one, *self._edges) for one in found.times]
        outside = sum(map(len, found.times)) - sum(map(len, kept))
        return found._replace(times=kept, outside=found.outside + outside)

    @functools.cached_property
    def pieces(self) -> tuple[Nanoseconds, Nanoseconds]:
        """The beginning and the end of each piece of time in which spikes were recorded: nanoseconds, int64 (n,)."""
        begins, ends = (one.copy() for one in self._edges)
        if begins[0] == _FROM or ends[-1] == _UNTIL:
            every = [one[[0, -1]] for one in self.units.times if len(one)]
            if not every:
                edge = f"from {self.start} s on" if self.start is not None else f"before {self.stop} s"
                raise ValueError(f"there are no spikes {edge}: give start= and stop=, or leave the spikes out")
            first, last = np.min(every), np.max(every)
            begins[0] = first if begins[0] == _FROM else begins[0]
            ends[-1] = last + SLACK + 1 if ends[-1] == _UNTIL else ends[-1]
        return begins, ends

    @functools.cached_property
    def events(self) -> _core.Events:
        """All spikes in the order of their times, as the engine reads them."""
        found = self.units.times
        every = np.concatenate(found)
        units = np.repeat(np.arange(len(found), dtype=np.int32), [len(one) for one in found])
        order = np.argsort(every, kind="stable")
        return _core.Events(every[order], units[order])

    @property
    def names(self) -> tuple[Any, ...]:
        """The names of the units, in the order of counts."""
        return self.units.names

    @property
    def begin(self) -> int:
        """The nanosecond from which on spikes were recorded."""
        return int(self.pieces[0][0])

    @property
    def end(self) -> int:
        """The nanosecond before which spikes were recorded."""
        return int(self.pieces[1][-1])

    def __len__(self) -> int:
        return sum(map(len, self.units.times))

    @property
    def silent(self) -> int:
        """How many units have no spike."""
        return sum(not len(one) for one in self.units.times)

    def of_unit(self, position: int) -> Any:
        """Return the times of one unit in seconds, rising: float64 (spikes,)."""
        return self.units.times[position] / SECOND

    def check_bins(self, name: str, nanoseconds_of_bin: int) -> None:
        """Raise ValueError if more spikes of a unit could lie in one bin than its counts can hold."""
        for unit, times in zip(self.units.names, self.units.times, strict=True):
            if len(times) <= MOST_IN_A_BIN:
                continue
            if (times[MOST_IN_A_BIN:] - times[:-MOST_IN_A_BIN]).min() < nanoseconds_of_bin:
                raise ValueError(
                    f"{name!r}: a bin of {nanoseconds_of_bin / SECOND:g} s may have more than {MOST_IN_A_BIN:,} spikes "
                    f"of unit {unit!r}, which counts cannot hold: give a higher rate"
                )

    def __repr__(self) -> str:
        if "units" not in vars(self):
            return "Spikes(not yet read)"
        every = [one[[0, -1]] for one in self.units.times if len(one)]
        seconds = f" from {np.min(every) / SECOND} to {np.max(every) / SECOND} s" if every else ""
        silent = f", {self.silent:,} of them silent" if self.silent else ""
        return f"Spikes({len(self):,} of {counted(len(self.names), 'unit')}{silent}{seconds})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Spikes.at_nanoseconds, (functools.partial(Units, *self.units), *self.pieces)


def _edges(start: float | None, stop: float | None, recorded: Any) -> tuple[Nanoseconds, Nanoseconds]:
    """The beginnings and ends of the pieces that were recorded, as far as they are given."""
    if recorded is not None:
        if start is not None or stop is not None:
            raise TypeError("recorded= gives the pieces of time that were recorded: leave out start= and stop=")
        return _joined(as_intervals("recorded=", recorded))
    begin = _FROM if start is None else one_time(start, "start=")
    end = _UNTIL if stop is None else one_time(stop, "stop=")
    if end < begin:
        raise ValueError(f"spikes are recorded from start= to a later stop=, got {start} to {stop} s")
    return np.array([begin]), np.array([max(end, begin + 1)])


def _joined(pieces: Intervals) -> tuple[Nanoseconds, Nanoseconds]:
    """Pieces in the order of their times; those that touch are one."""
    if not len(pieces):
        raise ValueError("recorded= has no pieces of time: give at least one, such as (0.0, 60.0)")
    pieces.check_apart("the pieces of recorded=")
    order = np.argsort(pieces.begins)
    begins, ends = pieces.begins[order], pieces.ends[order]
    apart = begins[1:] - ends[:-1] > 2 * SLACK
    return begins[np.append(True, apart)], ends[np.append(apart, True)]


def _inside(times: Nanoseconds, begins: Nanoseconds, ends: Nanoseconds) -> Nanoseconds:
    """Those of these times that lie in one of the pieces."""
    at = np.searchsorted(begins - SLACK, times, side="right") - 1
    return times[(at >= 0) & (times < ends[np.maximum(at, 0)])]


def _by_unit(times: Any) -> tuple[tuple[Any, ...], list[Any]]:
    if isinstance(times, Mapping):
        return tuple(times), list(times.values())
    if isinstance(times, Sequence) or (isinstance(times, np.ndarray) and times.dtype == object):
        arrays = list(times)
        if any(np.ndim(one) == 0 for one in arrays):
            raise TypeError("spikes are one array of times for each unit, such as [[0.1, 0.2], [0.5]]")
        return tuple(range(len(arrays))), arrays
    raise TypeError(f"spikes are one array of times for each unit, as a list or a mapping; got {kind(times)}")
