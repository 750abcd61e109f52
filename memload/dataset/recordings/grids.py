"""What slices are asked for, and the samples of each field that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from memload.columns.clocks import SLACK, Clock, Nanoseconds, fraction, one_time, periods
from memload.columns.fields import Field
from memload.columns.spikes import Spikes
from memload.dtypes import code_of

Sampling = Literal["nearest", "previous", "linear", "mean", "times"]
"""How rows become samples; "times" lists spikes instead of counting them."""

SAMPLINGS: tuple[Sampling, ...] = ("nearest", "previous", "linear", "mean", "times")


_BLENDED = {"U8", "I8", "I16", "U16", "I32", "I64", "F16", "BF16", "F32", "F64"}


@dataclass(frozen=True)
class SliceRequest:
    """The arguments of `Recording.slices`, checked as far as they can be without a recording.

    Raises:
        TypeError, ValueError: they exclude each other, or are not what is documented there.
    """

    duration: Any
    hop: Any
    rates: Mapping[str, Any]
    offset: Mapping[str, float]
    sampling: Any
    at: Any
    random: Any
    pad: bool
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        for argument, given, such in (("rates", self.rates, 30), ("offset", self.offset, 0.1)):
            if not isinstance(given, Mapping):
                raise TypeError(f"{argument}= is by field, as in {argument}={{'stim': {such}}}; got {given!r}")
        fraction(self.duration, "duration=")
        if self.hop is not None:
            fraction(self.hop, "hop=")
        if self.at is not None and (self.hop is not None or self.random):
            raise TypeError("at= gives each start: leave out hop= and random=")
        if self.at is not None and self.columns:
            raise TypeError(
                "at= gives starts, not intervals: leave out columns=, and choose values by the field 'onset'"
            )
        if self.random and self.hop is not None:
            raise TypeError("random= draws each start: leave out hop=")
        if self.random and self.pad:
            raise TypeError("random= draws starts of slices that are covered: leave out pad=")
        if not isinstance(self.random, bool | int | np.integer) or self.random < 0:
            raise TypeError(f"random= is True, or a number of slices for each interval; got {self.random!r}")
        for one in self.sampling.values() if isinstance(self.sampling, Mapping) else [self.sampling]:
            if one not in SAMPLINGS:
                raise ValueError(f"sampling= is one of {SAMPLINGS}, for all fields or by field; got {one!r}")

    def check_names(self, fields: Mapping[str, Any]) -> None:
        """Raise KeyError if an argument names a field that is not there."""
        named = {"rates": self.rates, "offset": self.offset}
        if isinstance(self.sampling, Mapping):
            named["sampling"] = self.sampling
        for argument, names in named.items():
            for name in names:
                if name not in fields:
                    raise KeyError(f"{argument}= names the field {name!r}; there are {list(fields)}")

    def sampling_of(self, name: str) -> Sampling:
        """Return how the rows of a field become samples."""
        found: Sampling = self.sampling.get(name, "nearest") if isinstance(self.sampling, Mapping) else self.sampling
        return found


@dataclass(frozen=True)
class Grid:
    """The samples of a field in each slice.

    Attributes:
        samples: how many.
        rate: how many in a second.
        offset: nanoseconds from the start of the slice to the first.
        bins: whether samples stand for the time up to the next, rather than for a moment.
    """

    samples: int
    rate: Fraction
    offset: int
    bins: bool

    @property
    def native(self) -> tuple[int, tuple[int, int], int]:
        """The grid as the engine reads it."""
        return self.samples, (self.rate.numerator, self.rate.denominator), self.offset

    @property
    def window(self) -> tuple[int, int]:
        """The offset and the duration of all samples, in nanoseconds."""
        return self.offset, int(periods(self.rate, self.samples))

    def starts(self, begins: Nanoseconds, ends: Nanoseconds) -> tuple[Nanoseconds, Nanoseconds]:
        """Return the first and the last start of slices whose samples lie in these pieces of time."""
        if self.bins:
            return begins - SLACK - self.offset, ends + SLACK - self.offset - int(periods(self.rate, self.samples))
        return begins - SLACK - self.offset, ends - 1 - SLACK - self.offset - int(periods(self.rate, self.samples - 1))


def grid_of(name: str, one: Field | Spikes, clock: Clock | None, request: SliceRequest) -> Grid:
    """Return the samples of a field. Raises ValueError if they are not what `Recording.slices` allows."""
    if request.sampling_of(name) == "times":
        return _grid_of_times(name, one, request)
    if name in request.rates:
        rate = fraction(request.rates[name], f"the rate of {name!r}")
    elif clock is None:
        raise ValueError(
            f"rates= needs the bins in a second for the spikes of {name!r}, as in rates={{{name!r}: 50}}; or "
            f'sampling={{{name!r}: "times"}} lists them'
        )
    else:
        rate = clock.rate if clock.is_regular else fraction(clock.hertz, "a rate")
    bins = isinstance(one, Spikes) or request.sampling_of(name) == "mean"
    offset = one_time(request.offset.get(name, 0), f"the offset of {name!r}")
    grid = Grid(_samples(name, rate, request.duration, clock), rate, offset, bins)
    if isinstance(one, Spikes):
        one.check_bins(name, int(periods(rate, 1)) + 1)
    elif request.sampling_of(name) in ("linear", "mean") and code_of(one.dtype) not in _BLENDED:
        raise ValueError(
            f'field {name!r} is {one.kind}, of which there is no average: sampling={{{name!r}: "nearest"}}'
        )
    return grid


def _grid_of_times(name: str, one: Field | Spikes, request: SliceRequest) -> Grid:
    """One bin that is the whole slice."""
    if not isinstance(one, Spikes):
        raise ValueError(
            f'field {name!r} has rows, not spikes: sampling="times" is for spikes, as in sampling={{"spikes": "times"}}'
        )
    if name in request.rates:
        raise ValueError(f'sampling={{{name!r}: "times"}} lists the spikes, in no bins: leave {name!r} out of rates=')
    rate = 1 / fraction(request.duration, "duration=")
    return Grid(1, rate, one_time(request.offset.get(name, 0), f"the offset of {name!r}"), bins=True)


def _samples(name: str, rate: Fraction, duration: Any, clock: Clock | None) -> int:
    exact = fraction(duration, "duration=") * rate
    samples = round(exact)
    if samples < 1 or abs(exact - samples) > Fraction(1, 10**6) * max(samples, 1):
        longer = max(1, samples) / rate
        whole = max(1, round(rate))
        about = "" if clock is None or clock.is_regular else "about "
        raise ValueError(
            f"a slice of {float(duration):g} s has {float(exact):.6g} samples of {name!r} at {about}{float(rate):g} Hz"
            f": give rates={{{name!r}: {whole}}}, another rate that divides, or duration={float(longer):g}"
        )
    return samples
