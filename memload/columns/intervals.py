"""Intervals of time, such as trials, with a value of each column for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.clocks import SECOND, Nanoseconds, nanoseconds
from memload.columns.numbers import kind, row_numbers
from memload.sizes import counted

_STARTS, _STOPS = ("start", "start_time", "onset"), ("stop", "stop_time", "end")


@dataclass(frozen=True, eq=False)
class Intervals:
    """Stretches of time from a start to a stop, such as trials or epochs; an interval does not contain its stop.

    Args:
        start: the beginnings in seconds: (n,).
        stop: the ends in seconds: (n,).
        columns: further values of each interval, by name: arrays (n, ...) or lists of texts.

    Raises:
        TypeError, ValueError: starts and stops are not numbers of one length, one is NaN, an interval is empty, or a
            column has another length.

    Example:
        >>> import memload
        >>> trials = memload.Intervals([0, 2, 4], [2, 4, 6], {"orientation": [0, 90, 45]})
        >>> trials, trials.columns["orientation"]
        (Intervals(3 from 0.0 to 6.0 s: orientation), array([ 0, 90, 45]))
    """

    start: Any
    stop: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    begins: Nanoseconds = field(init=False, repr=False)
    ends: Nanoseconds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        begins, ends = nanoseconds(self.start, "start"), nanoseconds(self.stop, "stop")
        if begins.ndim != 1 or begins.shape != ends.shape:
            raise ValueError(f"intervals have a start and a stop each, got shapes {begins.shape} and {ends.shape}")
        for row in np.flatnonzero(ends <= begins)[:1].tolist():
            raise ValueError(
                f"interval {row:,} is empty: it goes from {begins[row] / SECOND} to {ends[row] / SECOND} s; "
                f"{int((ends <= begins).sum()):,} of {len(begins):,} are: leave them out"
            )
        columns = {name: np.asarray(values) for name, values in self.columns.items()}
        for name, values in columns.items():
            if values.ndim == 0 or len(values) != len(begins):
                count = len(values) if values.ndim else 1
                raise ValueError(
                    f"the column {name!r} has {counted(count, 'value')} for {counted(len(begins), 'interval')}"
                )
        for name, value in (("begins", begins), ("ends", ends), ("columns", MappingProxyType(columns))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "start", begins / SECOND)
        object.__setattr__(self, "stop", ends / SECOND)

    @classmethod
    def at_nanoseconds(cls, begins: Nanoseconds, ends: Nanoseconds, columns: Mapping[str, Any]) -> Intervals:
        """Return the intervals from and to these nanoseconds, which are not rounded; raises as the class."""
        made = cls(begins / SECOND, ends / SECOND, columns)
        object.__setattr__(made, "begins", begins)
        object.__setattr__(made, "ends", ends)
        return made

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def seconds(self) -> float:
        """The duration of all intervals together."""
        return float((self.ends - self.begins).sum() / SECOND)

    def select(self, rows: Any) -> Intervals:
        """Return these intervals: row numbers, or one bool for each.

        Raises:
            IndexError, TypeError: as `Dataset.select`.

        Example:
            >>> import memload
            >>> memload.Intervals([0, 2, 4], [2, 4, 6]).select([True, False, True])
            Intervals(2 from 0.0 to 6.0 s)
        """
        numbers = row_numbers(rows, len(self))
        return self._of(numbers)

    def split(self, seed: int = 0, **shares: float) -> dict[str, Intervals]:
        """Return parts of random intervals, by name; no interval is in two of them.

        Args:
            seed: the same seed gives the same parts.
            shares: the share of each part, such as train=0.8, valid=0.1, test=0.1; together at most 1.

        Raises:
            ValueError: shares are not positive, are more than 1 together, or a part would be empty; or intervals
                overlap, so that parts would share times.

        Example:
            >>> import memload
            >>> parts = memload.Intervals(range(10), range(1, 11)).split(train=0.8, test=0.2)
            >>> {name: len(part) for name, part in parts.items()}
            {'train': 8, 'test': 2}
        """
        self.check_apart("intervals of a split")
        if not shares or min(shares.values()) <= 0 or sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"shares are positive and together at most 1, such as train=0.8, test=0.2; got {shares}")
        order = np.random.default_rng(seed).permutation(len(self))
        edges = np.rint(np.cumsum([0, *shares.values()]) * len(self)).astype(int)
        parts = {}
        for position, name in enumerate(shares):
            chosen = np.sort(order[edges[position] : edges[position + 1]])
            if not len(chosen):
                raise ValueError(f"the part {name!r} would have none of the {len(self):,} intervals")
            parts[name] = self._of(chosen)
        return parts

    def check_apart(self, what: str) -> None:
        """Raise ValueError if two of the intervals overlap."""
        order = np.argsort(self.begins, kind="stable")
        overlaps = np.flatnonzero(self.begins[order][1:] < np.maximum.accumulate(self.ends[order])[:-1])
        for at in overlaps[:1].tolist():
            first, second = order[at], order[at + 1]
            raise ValueError(
                f"{what} may not overlap: interval {second:,} begins at {self.start[second]} s, before an earlier one "
                f"ends, such as {first:,} at {self.stop[first]} s; {len(overlaps):,} do. Cut them, or choose some by "
                ".select"
            )

    def _of(self, numbers: NDArray[np.int64]) -> Intervals:
        columns = {name: values[numbers] for name, values in self.columns.items()}
        return Intervals.at_nanoseconds(self.begins[numbers], self.ends[numbers], columns)

    def __repr__(self) -> str:
        if not len(self):
            return "Intervals(none)"
        columns = f": {', '.join(self.columns)}" if self.columns else ""
        return f"Intervals({len(self):,} from {self.start.min()} to {self.stop.max()} s{columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Intervals.at_nanoseconds, (self.begins, self.ends, dict(self.columns))


def as_intervals(name: str, given: Any) -> Intervals:
    """Return the intervals that a user means: `Intervals`, a table with starts and stops, or pairs (n, 2).

    Raises:
        TypeError, ValueError: it is none of these; the message has the name.
    """
    if isinstance(given, Intervals):
        return given
    try:
        if hasattr(given, "keys"):
            return _of_table(given)
        pairs = np.asarray(given)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise TypeError(
                "intervals are memload.Intervals, a table with the columns start and stop, or pairs (start, stop); "
                f"got {kind(given)} of shape {pairs.shape}"
            )
        return Intervals(pairs[:, 0], pairs[:, 1])
    except (TypeError, ValueError) as error:
        raise type(error)(f"intervals {name!r}: {error}") from None


def _of_table(table: Any) -> Intervals:
    names = list(table.keys())
    start, stop = (next((one for one in known if one in names), None) for known in (_STARTS, _STOPS))
    if start is None or stop is None:
        raise ValueError(f"a table needs the columns start and stop; it has {names}")
    rest = {name: np.asarray(table[name]) for name in names if name not in (start, stop)}
    return Intervals(np.asarray(table[start]), np.asarray(table[stop]), rest)


def covered(begins: Nanoseconds, ends: Nanoseconds, times: int = 1) -> tuple[Nanoseconds, Nanoseconds]:
    """Return the beginning and the end of each piece of time that so many of these intervals cover: int64 (pieces,).

    Pieces rise, and do not touch one another.

    Example:
        >>> import numpy
        >>> covered(numpy.array([0, 5, 3]), numpy.array([4, 9, 5]))
        (array([0]), array([9]))
        >>> covered(numpy.array([0, 5, 3]), numpy.array([4, 9, 5]), times=2)
        (array([3]), array([4]))
    """
    edges, steps = np.concatenate([begins, ends]), np.repeat([1, -1], [len(begins), len(ends)])
    order = np.lexsort((-steps, edges))  # at one time, beginnings before ends
    level = np.cumsum(steps[order])
    lows = edges[order][(level == times) & (steps[order] > 0)]
    highs = edges[order][(level == times - 1) & (steps[order] < 0)]
    return lows[lows < highs], highs[lows < highs]
