"""Events of several units, such as the spikes of neurons: a time for each, and no rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from memload import _core
from memload.columns.clocks import SECOND, Nanoseconds, nanoseconds
from memload.columns.numbers import kind

MOST_IN_A_BIN = 2**15 - 1


class Units(NamedTuple):
    """The names of units, and the nanoseconds of the spikes of each, rising."""

    names: tuple[Any, ...]
    times: list[Nanoseconds]


@dataclass(frozen=True, eq=False, repr=False)
class Spikes:
    """The times of spikes, or of other events, of several units.

    They take 12 bytes of memory each. `Recording.slices` counts them in bins: int16 (bins, units).

    Args:
        times: for each unit the times of its spikes in seconds, in any order: a sequence of arrays, or a mapping from
            the names of units to arrays; or a function without arguments that returns one of these when it is needed.
        start: the second from which on spikes were recorded; default: that of the first spike.
        stop: the second up to which spikes were recorded; default: that of the last spike.

    Raises:
        TypeError: `times` is neither a sequence nor a mapping of arrays.
        ValueError: there are no units, none of them has a spike, or a time is NaN.

    Example:
        >>> import memload
        >>> memload.Spikes([[0.1, 0.25, 0.9], [0.5]])
        Spikes(4 of 2 units from 0.1 to 0.9 s)
    """

    times: Any
    start: float | None = None
    stop: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.times, Callable):  # type: ignore[arg-type]  # of collections.abc
            _ = self.events
            object.__setattr__(self, "times", None)  # which `events` has

    @classmethod
    def at_nanoseconds(cls, units: Callable[[], Units], begin: int, end: int) -> Spikes:
        """Return the spikes that a function gives when they are needed, recorded between two nanoseconds."""
        spikes = cls(units, begin / SECOND, end / SECOND)
        vars(spikes).update(begin=begin, end=end)
        return spikes

    @functools.cached_property
    def units(self) -> Units:
        """The names of the units, and their spikes in nanoseconds."""
        given = self.times() if callable(self.times) else self.times
        found = given if isinstance(given, Units) else _in_nanoseconds(given)
        if not sum(map(len, found.times)):
            what = f"{len(found.names):,} units have no spikes" if found.names else "there are no units"
            raise ValueError(f"{what}: leave such spikes out of the recording")
        return found

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

    @functools.cached_property
    def begin(self) -> int:
        """The nanosecond from which on spikes were recorded."""
        if self.start is not None:
            return int(nanoseconds(self.start, "start="))
        return min(int(one[0]) for one in self.units.times if len(one))

    @functools.cached_property
    def end(self) -> int:
        """The nanosecond up to which spikes were recorded."""
        if self.stop is not None:
            return max(int(nanoseconds(self.stop, "stop=")), self.begin + 1)
        return max(int(one[-1]) for one in self.units.times if len(one)) + 1

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
        for unit, times in zip(*self.units, strict=True):
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
        every = [one for one in self.units.times if len(one)]
        first, last = min(one[0] for one in every) / SECOND, max(one[-1] for one in every) / SECOND
        silent = f", {self.silent:,} of them silent" if self.silent else ""
        return f"Spikes({len(self):,} of {len(self.names):,} units{silent} from {first} to {last} s)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Spikes.at_nanoseconds, (functools.partial(Units, *self.units), self.begin, self.end)


def _in_nanoseconds(given: Any) -> Units:
    names, arrays = _by_unit(given)
    found = [nanoseconds(one, f"the spikes of unit {name!r}") for name, one in zip(names, arrays, strict=True)]
    for name, one in zip(names, found, strict=True):
        if one.ndim != 1:
            raise ValueError(f"the spikes of unit {name!r} are one number each, got shape {one.shape}")
    return Units(names, [np.sort(one) for one in found])


def _by_unit(times: Any) -> tuple[tuple[Any, ...], list[Any]]:
    if isinstance(times, Mapping):
        return tuple(times), list(times.values())
    if isinstance(times, Sequence) or (isinstance(times, np.ndarray) and times.dtype == object):
        arrays = list(times)
        if any(np.ndim(one) == 0 for one in arrays):
            raise TypeError("spikes are one array of times for each unit, such as [[0.1, 0.2], [0.5]]")
        return tuple(range(len(arrays))), arrays
    raise TypeError(f"spikes are one array of times for each unit, as a list or a mapping; got {kind(times)}")
