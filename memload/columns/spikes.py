"""Events of several units, such as the spikes of neurons: a time for each, and no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memload import _core
from memload.columns.clocks import SECOND, Nanoseconds, nanoseconds
from memload.columns.numbers import kind

MOST_IN_A_BIN = 2**15 - 1


@dataclass(frozen=True, eq=False)
class Spikes:
    """The times of spikes, or of other events, of several units.

    They take 12 bytes of memory each. `Recording.slices` counts them in bins: int16 (bins, units).

    Args:
        times: for each unit the times of its spikes in seconds, in any order: a sequence of arrays, or a mapping from
            the names of units to arrays.
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
    names: tuple[Any, ...] = field(init=False, default=())
    """The names of the units, in the order of counts."""
    events: _core.Events = field(init=False, repr=False)
    """All spikes in the order of their times, as the engine reads them."""
    begin: int = field(init=False, default=0)
    """The nanosecond from which on spikes were recorded."""
    end: int = field(init=False, default=0)
    """The nanosecond up to which spikes were recorded."""
    _sorted: tuple[Nanoseconds, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        names, arrays = _by_unit(self.times)
        found = [nanoseconds(one, f"the spikes of unit {name!r}") for name, one in zip(names, arrays, strict=True)]
        for name, one in zip(names, found, strict=True):
            if one.ndim != 1:
                raise ValueError(f"the spikes of unit {name!r} are one number each, got shape {one.shape}")
        every = np.concatenate(found) if found else np.empty(0, np.int64)
        if not len(every):
            what = f"{len(names):,} units have no spikes" if names else "there are no units"
            raise ValueError(f"{what}: leave such spikes out of the recording")
        units = np.repeat(np.arange(len(found), dtype=np.int32), [len(one) for one in found])
        order = np.argsort(every, kind="stable")
        object.__setattr__(self, "times", None)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "events", _core.Events(every[order], units[order]))
        object.__setattr__(self, "_sorted", tuple(np.sort(one) for one in found))
        first, last = int(every[order[0]]), int(every[order[-1]])
        object.__setattr__(self, "begin", _limit(self.start, "start=", first))
        object.__setattr__(self, "end", max(_limit(self.stop, "stop=", last + 1), self.begin + 1))

    def __len__(self) -> int:
        return sum(map(len, self._sorted))

    @property
    def silent(self) -> int:
        """How many units have no spike."""
        return sum(not len(one) for one in self._sorted)

    def of_unit(self, position: int) -> Any:
        """Return the times of one unit in seconds, rising: float64 (spikes,)."""
        return self._sorted[position] / SECOND

    def check_bins(self, name: str, nanoseconds_of_bin: int) -> None:
        """Raise ValueError if more spikes of a unit could lie in one bin than its counts can hold."""
        for unit, times in zip(self.names, self._sorted, strict=True):
            if (
                len(times) > MOST_IN_A_BIN
                and (times[MOST_IN_A_BIN:] - times[:-MOST_IN_A_BIN]).min() < nanoseconds_of_bin
            ):
                raise ValueError(
                    f"{name!r}: a bin of {nanoseconds_of_bin / SECOND:g} s may have more than {MOST_IN_A_BIN:,} spikes "
                    f"of unit {unit!r}, which counts cannot hold: give a higher rate"
                )

    def __repr__(self) -> str:
        times = self.events.times
        first, last = times[0] / SECOND, times[-1] / SECOND
        silent = f", {self.silent:,} of them silent" if self.silent else ""
        return f"Spikes({len(self):,} of {len(self.names):,} units{silent} from {first} to {last} s)"

    def __reduce__(self) -> tuple[Any, ...]:
        times = {name: one / SECOND for name, one in zip(self.names, self._sorted, strict=True)}
        return Spikes, (times, self.begin / SECOND, self.end / SECOND)


def _by_unit(times: Any) -> tuple[tuple[Any, ...], list[Any]]:
    if isinstance(times, Mapping):
        return tuple(times), list(times.values())
    if isinstance(times, Sequence) or (isinstance(times, np.ndarray) and times.dtype == object):
        arrays = list(times)
        if any(np.ndim(one) == 0 for one in arrays):
            raise TypeError("spikes are one array of times for each unit, such as [[0.1, 0.2], [0.5]]")
        return tuple(range(len(arrays))), arrays
    raise TypeError(f"spikes are one array of times for each unit, as a list or a mapping; got {kind(times)}")


def _limit(given: float | None, what: str, otherwise: int) -> int:
    return otherwise if given is None else int(nanoseconds(given, what))
