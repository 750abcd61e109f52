"""Clocks: at which time each row of a field was recorded, and where its gaps are.

Times are whole nanoseconds inside, seconds outside. Times that differ by no more than a microsecond count as the same
one: a time is looked up a microsecond later than it is, so that rounding never decides between two rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload import _core
from memload.columns.numbers import kind
from memload.sizes import counted

SECOND = 1_000_000_000
"""Nanoseconds of a second."""

SLACK = 1_000
"""Nanoseconds by which times may differ and still count as the same one."""

Nanoseconds = NDArray[np.int64]
_MOST = 2**62
_FASTEST = 500_000  # Hz: rows are at least two microseconds apart
_GAP = 1.5  # median steps


def nanoseconds(seconds: Any, what: str) -> Nanoseconds:
    """Return seconds as whole nanoseconds, rounded to the nearest: int64, in the shape of `seconds`.

    Raises:
        TypeError: they are not numbers.
        ValueError: one is NaN, infinite, or beyond 146 years.
    """
    given = np.asarray(seconds)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{what}: times are numbers of seconds, got {kind(seconds)} of {given.dtype}")
    given = given.astype(np.float64)
    if (bad := ~np.isfinite(given)).any():
        where = np.flatnonzero(bad)
        instead = ", or give a rate and a start" if what == "timestamps" else ""
        at = f" at position {where[0]:,}" if given.ndim else ""
        raise ValueError(
            f"{what}: {given.reshape(-1)[where[0]]} is no time{at}; {len(where):,} of {given.size:,} are not finite: "
            f"leave these out{instead}"
        )
    if given.size and np.abs(given).max() * SECOND > _MOST:
        raise ValueError(f"{what}: times are seconds, and at most 146 years; got {given.reshape(-1)[0]}")
    found: Nanoseconds = np.rint(given * SECOND).astype(np.int64)
    return found


def one_time(seconds: Any, what: str) -> int:
    """Return one number of seconds as whole nanoseconds; raises as `nanoseconds`."""
    found = nanoseconds(seconds, what)
    if found.ndim:
        raise TypeError(f"{what} is one number of seconds, got {kind(seconds)} of shape {found.shape}")
    return int(found)


def fraction(value: Any, what: str) -> Fraction:
    """Return a positive number as the fraction that it is meant to be: 29.97 is 2997/100.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not positive and finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | np.number):
        raise TypeError(f"{what} is a number, got {kind(value)}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{what} must be positive, got {value}")
    exact = value if isinstance(value, Fraction) else Fraction(float(value))
    found = exact.limit_denominator(max(1, min(10**6, int(2 * 10**9 / exact))))
    if found <= 0 or found.numerator > 2 * 10**9:
        raise ValueError(f"{what} must lie between a millionth and two billions, got {value}")
    return found


def periods(rate: Fraction, counts: Any) -> Nanoseconds:
    """Return the nanoseconds of so many periods of a rate, rounded half up: int64."""
    whole, rest = np.divmod(np.asarray(counts, dtype=np.int64) * rate.denominator, rate.numerator)
    rounded: Nanoseconds = whole * SECOND + (2 * rest * SECOND + rate.numerator) // (2 * rate.numerator)
    return rounded


@dataclass(frozen=True, eq=False)
class Clock:
    """The times of the rows of a field: a rate and a start, or a time for each row.

    Rows are in the order of their times. A row holds until the next one begins, and the last row before a gap for one
    period. Regular clocks have no gaps; with timestamps, rows that are further apart than `gap` have one between them.

    Args:
        rate: rows in a second, such as 60 or 29.97; a `fractions.Fraction` such as 30000/1001 is kept as it is.
        start: the time of the first row in seconds, with `rate`.
        timestamps: the time of each row in seconds, rising, instead of a rate: (rows,).
        gap: with `timestamps`, the seconds between two rows from which on they have a gap between them; default: 1.5
            times the median of all steps.
        unit: the name of the unit of the field's values, such as "degrees", for people who read the recording.

    Raises:
        TypeError, ValueError: it has neither a rate nor timestamps, or both; the rate is not positive; timestamps are
            NaN, or do not rise; rows are less than two microseconds apart.

    Example:
        >>> import memload
        >>> memload.Clock(rate=60, start=0.5)
        Clock(rate=60 Hz, start=0.5 s)
        >>> memload.Clock(timestamps=[0.0, 0.1, 0.2, 5.0, 5.1])
        Clock(5 timestamps from 0.0 to 5.1 s, about 10 Hz, 1 gap)
    """

    rate: Any = None
    start: float = 0.0
    timestamps: Any = None
    gap: float | None = None
    unit: str = ""
    _times: Nanoseconds | None = dataclasses.field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.timestamps is None):
            raise TypeError("a clock has a rate or timestamps: Clock(rate=60, start=0.0) or Clock(timestamps=times)")
        if self.timestamps is None:
            one_time(self.start, "the start of a clock")
            rate = fraction(self.rate, "the rate of a clock")
            if rate > _FASTEST:
                raise ValueError(f"a clock ticks at most {_FASTEST:,} times a second, got {float(rate):,}")
            object.__setattr__(self, "rate", rate)
            if self.gap is not None:
                raise TypeError("gap= is for timestamps: a clock with a rate has no gaps")
            return
        object.__setattr__(self, "_times", _rising(self.timestamps))
        object.__setattr__(self, "timestamps", None)  # seconds are made of the nanoseconds when they are asked for
        if self.gap is not None:
            if one_time(self.gap, "gap=") <= 0:
                raise ValueError(f"gap= is a number of seconds, more than 0, got {self.gap}")
            object.__setattr__(self, "gap", float(self.gap))

    @classmethod
    def at_nanoseconds(cls, times: Nanoseconds, gap: float | None = None, unit: str = "") -> Clock:
        """Return the clock of rows at these nanoseconds, which are not rounded; raises as the class."""
        clock = cls(timestamps=(), gap=gap, unit=unit)
        object.__setattr__(clock, "_times", _apart(np.asarray(times, dtype=np.int64)))
        return clock

    @property
    def is_regular(self) -> bool:
        """Whether it has a rate and a start, rather than timestamps."""
        return self._times is None

    @property
    def rows(self) -> int | None:
        """How many timestamps there are; None for a clock with a rate, which fits any number of rows."""
        return None if self._times is None else len(self._times)

    @functools.cached_property
    def period(self) -> int:
        """Nanoseconds from row to row: by the rate, or the median step between timestamps."""
        if self._times is None:
            return int(periods(self.rate, 1))
        steps = np.diff(self._times)
        return int(np.median(steps)) if len(steps) else SECOND

    @property
    def longest(self) -> int:
        """The most nanoseconds between two rows that have no gap between them."""
        if self._times is None:
            return self.period
        return int(self.period * _GAP) if self.gap is None else one_time(self.gap, "gap=")

    @property
    def hertz(self) -> float:
        """Rows in a second: the rate, or what the median step between timestamps amounts to."""
        return float(self.rate) if self._times is None else SECOND / self.period

    def seconds(self, rows: int) -> NDArray[np.float64]:
        """Return the time of each of so many rows, in seconds: float64 (rows,)."""
        return self.times(rows) / SECOND

    def times(self, rows: int) -> Nanoseconds:
        """Return the time of each of so many rows, in nanoseconds: int64 (rows,)."""
        if self._times is not None:
            return self._times
        return one_time(self.start, "start") + periods(self.rate, np.arange(rows))

    def pieces(self, rows: int) -> tuple[Nanoseconds, Nanoseconds]:
        """Return the beginning and the end of each piece of time without a gap, in nanoseconds; each int64 (pieces,).

        A piece ends one period after its last row.
        """
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if self._times is None:
            start = one_time(self.start, "start")
            return np.array([start]), np.array([start + int(periods(self.rate, rows - 1)) + self.period])
        breaks = np.flatnonzero(np.diff(self._times) > self.longest)
        return self._times[np.append(0, breaks + 1)], self._times[np.append(breaks, rows - 1)] + self.period

    def native(self, rows: int) -> _core.Clock:
        """Return this clock of so many rows as the engine reads it."""
        if self._times is None:
            rate = (self.rate.numerator, self.rate.denominator)
            return _core.Clock(rows, one_time(self.start, "start"), rate)
        return _core.Clock.at_times(self._times, self.period, self.longest)

    def check_rows(self, name: str, rows: int) -> None:
        """Raise ValueError unless there is a time for each of the rows of a field."""
        if self._times is not None and len(self._times) != rows:
            raise ValueError(
                f"field {name!r} has {counted(rows, 'row')}, and its clock {counted(len(self._times), 'timestamp')}"
            )

    def __repr__(self) -> str:
        if self._times is None:
            return f"Clock(rate={self.hertz:g} Hz, start={self.start:g} s)"
        if not len(self._times):
            return "Clock(no timestamps)"
        gaps = len(self.pieces(len(self._times))[0]) - 1
        first, last = self._times[[0, -1]] / SECOND
        return (
            f"Clock({counted(len(self._times), 'timestamp')} from {first} to {last} s, about {self.hertz:g} Hz, "
            f"{counted(gaps, 'gap')})"
        )


def _rising(timestamps: Any) -> Nanoseconds:
    return _apart(nanoseconds(timestamps, "timestamps"))


def _apart(times: Nanoseconds) -> Nanoseconds:
    """Return times of rows that rise, and are far enough apart."""
    if times.ndim != 1:
        raise ValueError(f"timestamps are one number for each row, got shape {times.shape}")
    steps = np.diff(times)
    for row in np.flatnonzero(steps <= 0)[:1].tolist():
        before, after = times[[row, row + 1]] / SECOND
        backwards = int((steps <= 0).sum())
        raise ValueError(
            f"timestamps must rise: row {row + 1:,} is at {after} s, and row {row:,} before it at {before} s; "
            f"{backwards:,} of {len(steps):,} steps do not rise. Sort the rows by time, or leave out those of another "
            "recording"
        )
    if len(steps) and steps.min() < 2 * SLACK:
        row = int(steps.argmin())
        raise ValueError(f"rows {row:,} and {row + 1:,} are {steps[row]} ns apart; at least {2 * SLACK} are needed")
    return times


def as_clock(name: str, given: Any) -> Clock:
    """Return the clock that a user means: a `Clock`, a rate, a pair (rate, start), or timestamps.

    Raises:
        TypeError, ValueError: it is none of these; the message names the field.
    """
    if isinstance(given, Clock):
        return given
    try:
        if isinstance(given, int | float | Fraction | np.number) and not isinstance(given, bool):
            return Clock(rate=given)
        if isinstance(given, tuple) and len(given) == 2:
            return Clock(rate=given[0], start=given[1])
        return Clock(timestamps=given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the clock of {name!r}: {error}") from None
