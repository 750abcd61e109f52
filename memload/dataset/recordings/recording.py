"""`Recording`: fields with clocks, and intervals of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from memload.casts.rule import Cast
from memload.columns.clocks import SECOND, Clock, Nanoseconds, as_clock
from memload.columns.fields import Field, HasFields, check_name
from memload.columns.intervals import Intervals, as_intervals
from memload.columns.numbers import kind
from memload.columns.ragged_fields import RaggedField
from memload.columns.spikes import Spikes
from memload.dataset.dataset import Dataset
from memload.dataset.recordings.grids import Sampling, SliceRequest
from memload.dataset.recordings.slicing import pieces_of, sliced
from memload.formats.ragged_arrays import field_of
from memload.sizes import counted

Track = Field | Spikes
"""What a recording has by name: rows with a clock, or spikes."""


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """Fields of different rates on one axis of time, spikes, and intervals such as trials.

    `memload.recording` makes one of arrays, and `memload.open_nwb` one of a file. `slices` cuts it into a dataset. It
    is immutable, and nothing is copied.

    Args:
        fields: rows, or spikes, by name; fields may differ in their number of rows.
        clocks: the clock of each field with rows, by name.
        intervals: tables of intervals by name.
        name: the name of the recording, for people.
        casts: what makes of stored values those that the format of a file means, by field, such as volts of int16;
            ``FastLoader(slices, cast=session.casts)``.
        left_out: why something in a file is not among the fields, by its place.

    Example:
        >>> import memload, numpy
        >>> session = memload.recording(
        ...     {"stim": numpy.zeros((600, 8, 8), numpy.uint8), "responses": numpy.zeros((80, 5), numpy.float32)},
        ...     clocks={"stim": 60, "responses": 8},
        ...     intervals={"trials": [(0, 4), (4, 8)]},
        ... )
        >>> print(session)
        memload.Recording: 10.0 s
          stim       uint8   (8, 8)  60 Hz, 0.0 to 10.0 s, 600 rows
          responses  float32 (5,)    8 Hz, 0.0 to 10.0 s, 80 rows
          trials     2 intervals of 4.0 s, 0.0 to 8.0 s
        >>> session.slices(1.0, within="trials")[0]["responses"].shape
        torch.Size([8, 5])
    """

    fields: Mapping[str, Track]
    clocks: Mapping[str, Clock]
    intervals: Mapping[str, Intervals] = field(default_factory=dict)
    name: str = ""
    casts: Mapping[str, Cast] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("a recording needs at least one field")
        for name, one in self.fields.items():
            check_name(name)
            if isinstance(one, Spikes):
                if name in self.clocks:
                    raise ValueError(f"field {name!r} is spikes, which have times of their own: leave its clock out")
                continue
            if name not in self.clocks:
                raise ValueError(f"field {name!r} has no clock: clocks={{{name!r}: 60}} is one of 60 rows a second")
            if isinstance(one, RaggedField):
                raise ValueError(f"field {name!r}: its rows differ in length, and have no slices")
            self.clocks[name].check_rows(name, one.rows)
        for name in self.clocks:
            if name not in self.fields:
                raise ValueError(f"there is a clock of {name!r}, but no such field; there are {list(self.fields)}")
        for attribute in ("fields", "clocks", "intervals", "casts", "left_out"):
            object.__setattr__(self, attribute, MappingProxyType(dict(getattr(self, attribute))))

    def slices(
        self,
        duration: float,
        *,
        hop: float | None = None,
        rates: Mapping[str, Any] | None = None,
        offset: Mapping[str, float] | None = None,
        sampling: Mapping[str, Sampling] | Sampling = "nearest",
        within: Any = None,
        at: Any = None,
        random: bool | int = False,
        pad: bool = False,
        columns: Sequence[str] = (),
    ) -> Dataset:
        """Return the dataset of slices of time: each row has the samples of each field in one slice.

        Sample k of a field lies at the start of the slice + its offset + k / rate. Bin k, for means and counts of
        spikes, goes from sample k to sample k + 1; spikes can also be listed by their times. Slices that a field does
        not cover, since it begins later or has a gap, are left out, and so are those that leave their interval, offsets
        included.

        Args:
            duration: seconds of a slice.
            hop: seconds from the start of one slice to the start of the next; default: `duration`. The first slice of
                an interval starts with it.
            rates: samples in a second, by field. Fields without one have the rate of their clock. Spikes need one,
                unless they are listed.
            offset: seconds by which a field is read later than the slice starts, by field, such as {"responses": 0.1}.
            sampling: how rows become samples, for all fields or by field. "nearest" takes the row that is nearest in
                time, "previous" the one that holds then; "linear" interpolates between two rows and "mean" averages
                those of a bin, both as float32, or float64 of float64, int32 and int64. A bin in which no row begins
                has the row that holds. Spikes are counted in bins; "times" lists them as two fields whose rows differ
                in length, in the order of their times: their seconds from where the slice of the field begins, offset
                included, float64, and under the name with "_unit_index" behind their units, int64, as positions in
                `Spikes.names`.
            within: where slices are cut: the name of a table of intervals, `memload.Intervals`, or pairs (start, stop)
                in seconds. None: wherever all fields are. Rows that begin outside of the interval are not read: near
                an edge, "nearest" and "linear" take the first or last row inside. Only "previous", and an interval in
                which no row begins, takes the row that holds as the interval begins.
            at: starts in seconds, one for each slice, instead of `hop`, such as the onsets of stimuli.
            random: cut one slice, or so many, out of each interval, at a start that is drawn anew for each pass. A gap
                parts an interval in two. Starts follow from the seed of the loader, and a resumed pass has the same.
            pad: keep slices that reach out of their interval or into gaps. What they have there is zeros, and each
                field gets a mask ``(samples,)`` of bools, named with "_mask" behind, which is False there. Spikes that
                are listed get, named with "_span" behind, the seconds from which and up to which they were recorded,
                float64 (2,).
            columns: columns of `within` that become fields, with the value of the slice's interval.

        Returns:
            A dataset of the fields, ``(samples, *shape)`` each, and ``(None,)`` for spikes that are listed. Slices of
            intervals have the field ``interval``, the number of their interval; slices at given times have ``onset``,
            the position in `at`.

        Raises:
            KeyError: there is no such field, table or column.
            ValueError: a duration is no whole number of samples; intervals overlap; or no slice is left.
            TypeError: arguments exclude each other.

        Example:
            >>> import memload, numpy
            >>> session = memload.recording(
            ...     {"stim": numpy.arange(600), "responses": numpy.arange(80.0)}, clocks={"stim": 60, "responses": 8}
            ... )
            >>> slices = session.slices(0.5, hop=0.25, rates={"stim": 30}, offset={"responses": 0.25})
            >>> slices[1]["stim"]
            tensor([15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43])
            >>> slices[1]["responses"].tolist()
            [4.0, 5.0, 6.0, 7.0]
        """
        rates, offset = ({} if one is None else one for one in (rates, offset))
        request = SliceRequest(duration, hop, rates, offset, sampling, at, random, pad, tuple(columns))
        return sliced(self.fields, self.clocks, self._within(within), request)

    def only(self, *names: str) -> Recording:
        """Return the recording of these fields alone, in this order.

        Raises:
            KeyError: there is no such field.
        """
        for name in names:
            if name not in self.fields:
                raise KeyError(f"no field {name!r}; there are {list(self.fields)}")
        clocks = {name: self.clocks[name] for name in names if name in self.clocks}
        casts = {name: self.casts[name] for name in names if name in self.casts}
        fields = {name: self.fields[name] for name in names}
        return Recording(fields, clocks, self.intervals, self.name, casts, self.left_out)

    def blocks(self, seconds: float) -> Intervals:
        """Return intervals of so many seconds, one after the other, over the time that all fields cover.

        A split by such blocks keeps the parts apart in time.

        Raises:
            ValueError: there is no such block.

        Example:
            >>> import memload, numpy
            >>> session = memload.recording({"stim": numpy.zeros(600)}, clocks={"stim": 60})
            >>> session.blocks(2.5).split(train=0.75, test=0.25)["test"]
            Intervals(1 from 7.5 to 10.0 s)
        """
        start, stop = self.span
        if stop <= start:
            spans = ", ".join(f"{name} {low:g} to {high:g} s" for name, (low, high) in self._spans().items())
            raise ValueError(f"there are no blocks, since no time is in all fields: {spans}")
        count = int((stop - start) / seconds + 1e-9) if seconds > 0 else 0
        if count < 1:
            raise ValueError(f"no block of {seconds} s fits into the recording, {start} to {stop} s")
        begins = start + seconds * np.arange(count)
        return Intervals(begins, begins + seconds)

    @property
    def span(self) -> tuple[float, float]:
        """The seconds from which and up to which all fields were recorded; the first is later if they never were."""
        spans = self._spans().values()
        return max(begin for begin, _ in spans), min(end for _, end in spans)

    def pieces(self, name: str) -> tuple[Nanoseconds, Nanoseconds]:
        """Return the beginning and the end of each piece of time without a gap of a field: nanoseconds, int64 (n,)."""
        return pieces_of(self.fields[name], self.clocks.get(name))

    def _spans(self) -> dict[str, tuple[float, float]]:
        """The seconds from which and up to which each field was recorded."""
        spans = {name: self._span(name) for name in self.fields}
        return {name: (begin / SECOND, end / SECOND) for name, (begin, end) in spans.items()}

    def _span(self, name: str) -> tuple[int, int]:
        begins, ends = self.pieces(name)
        return (int(begins[0]), int(ends[-1])) if len(begins) else (0, 0)

    def _within(self, within: Any) -> Intervals | None:
        if not isinstance(within, str):
            return None if within is None else as_intervals("within=", within)
        if within not in self.intervals:
            why = next((f"; left out: {at}: {one}" for at, one in self.left_out.items() if within in at.split("/")), "")
            raise KeyError(f"no table of intervals {within!r}; there are {list(self.intervals) or 'none'}{why}")
        return self.intervals[within]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        start, stop = self.span
        common = f"{stop - start:,.1f} s" if stop > start else "no time in all of them"
        return f"<Recording{self._named} of {', '.join(self.fields)}: {common}>"

    def __reduce__(self) -> tuple[Any, ...]:
        tracks = {name: one if isinstance(one, Spikes) else Dataset({name: one}) for name, one in self.fields.items()}
        others = (self.clocks, self.intervals, self.name, self.casts, self.left_out)
        return _unpickled, (tracks, *(dict(one) if isinstance(one, Mapping) else one for one in others))

    @property
    def _named(self) -> str:
        return f" {self.name!r}" if self.name else ""

    def _lines(self) -> Iterator[str]:
        spans = self._spans().values()
        seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)
        yield f"memload.Recording{self._named}: {seconds:,.1f} s"
        width = max(map(len, [*self.fields, *self.intervals]))
        kinds = {name: one.kind for name, one in self.fields.items() if isinstance(one, Field)}
        shapes = {name: str(one.shape) for name, one in self.fields.items() if isinstance(one, Field)}
        wide, long = max(map(len, kinds.values()), default=0), max(map(len, shapes.values()), default=0)
        for name, one in self.fields.items():
            if isinstance(one, Spikes):
                yield f"  {name:{width}}  {self._of_spikes(one)}"
            else:
                yield f"  {name:{width}}  {kinds[name]:{wide}} {shapes[name]:{long}}  {self._of_rows(name, one)}"
        for name, table in self.intervals.items():
            yield f"  {name:{width}}  {_of_table(table)}"
        for place, why in self.left_out.items():
            yield f"  left out: {place}: {why}"

    def _of_rows(self, name: str, one: Field) -> str:
        clock = self.clocks[name]
        begins, _ = clock.pieces(one.rows)
        start, stop = (time / SECOND for time in self._span(name))
        about = "" if clock.is_regular else "about "
        unit = f", {clock.unit}" if clock.unit else ""
        if name in self.casts:
            unit += f" after a cast with scale={self.casts[name].scale:g}, offset={self.casts[name].offset or 0:g}"
        return (
            f"{about}{clock.hertz:g} Hz, {start:.1f} to {stop:.1f} s{_gaps(begins)}, {counted(one.rows, 'row')}{unit}"
        )

    def _of_spikes(self, one: Spikes) -> str:
        silent = f", {one.silent:,} of them silent" if one.silent else ""
        nan = counted(one.units.lost, "that is NaN or infinite is", "that are NaN or infinite are")
        outside = counted(one.units.outside, "outside of these times is", "outside of these times are")
        lost = f"; {nan} left out" if one.units.lost else ""
        lost += f"; {outside} left out" if one.units.outside else ""
        begin, end, gaps = one.begin / SECOND, one.end / SECOND, _gaps(one.pieces[0])
        spikes = f"{counted(len(one), 'spike')} of {counted(len(one.names), 'unit')}"
        return f"{spikes}{silent}, {begin:.1f} to {end:.1f} s{gaps}{lost}"


def _unpickled(tracks: Mapping[str, Any], *others: Any) -> Recording:
    return Recording({name: _track(name, one) for name, one in tracks.items()}, *others)


def _gaps(begins: Nanoseconds) -> str:
    return f", {counted(len(begins) - 1, 'gap')}" if len(begins) > 1 else ""


def _of_table(table: Intervals) -> str:
    if not len(table):
        return "no intervals"
    seconds = (table.ends - table.begins) / SECOND
    low, high = seconds.min(), seconds.max()
    long = f"{low:.1f} s" if high - low < 0.05 else f"{low:.1f} to {high:.1f} s"
    columns = f": {', '.join(table.columns)}" if table.columns else ""
    times = f"{table.start.min():.1f} to {table.stop.max():.1f} s"
    return f"{counted(len(table), 'interval')} of {long}, {times}{columns}"


def recording(
    fields: Mapping[str, Any],
    *,
    clocks: Mapping[str, Any],
    intervals: Any = None,
    name: str = "",
) -> Recording:
    """Return the recording of these fields, clocks and intervals. Nothing is copied, except the times.

    Args:
        fields: by name: numpy arrays, memmaps and CPU tensors ``(rows, *shape)``, which may differ in rows; a
            `memload.Dataset` with one field, such as `memload.open` returns; `memload.Field`; or `memload.Spikes`.
        clocks: the clock of each field but spikes: a `memload.Clock`, a rate such as 60, a pair (rate, start), or the
            time of each row in seconds.
        intervals: tables by name, such as {"trials": trials}: `memload.Intervals`, a mapping or DataFrame with the
            columns start and stop (or start_time and stop_time), or pairs (start, stop). One table alone is "trials".
        name: the name of the recording, for people.

    Raises:
        TypeError, ValueError: a field has no clock, or another number of rows than timestamps; timestamps are NaN or
            do not rise; an interval is empty; spikes have no units.

    Example:
        >>> import memload, numpy
        >>> eye = numpy.random.rand(5000, 2).astype(numpy.float32)
        >>> session = memload.recording({"eye": eye}, clocks={"eye": memload.Clock(rate=500, unit="degrees")})
        >>> session
        <Recording of eye: 10.0 s>
    """
    if not isinstance(fields, Mapping) or not isinstance(clocks, Mapping):
        raise TypeError(f"fields and clocks are mappings by name, got {kind(fields)} and {kind(clocks)}")
    return Recording(
        {one: _track(one, given) for one, given in fields.items()},
        {one: as_clock(one, given) for one, given in clocks.items()},
        _tables(intervals),
        name,
    )


def _track(name: str, given: Any) -> Track:
    if isinstance(given, Field | Spikes):
        return given
    if isinstance(given, HasFields):
        if len(given.fields) != 1:
            raise ValueError(f"field {name!r}: a dataset of one field is expected, this one has {list(given.fields)}")
        return next(iter(given.fields.values()))
    return field_of(name, given)


def _tables(intervals: Any) -> dict[str, Intervals]:
    if intervals is None:
        return {}
    alone = isinstance(intervals, Intervals) or not hasattr(intervals, "keys") or _is_table(intervals)
    given = {"trials": intervals} if alone else intervals
    return {name: as_intervals(name, one) for name, one in given.items()}


def _is_table(intervals: Any) -> bool:
    return any(name in intervals.keys() for name in ("start", "start_time"))  # noqa: SIM118 - of a DataFrame, too
