"""Make rows that are windows of consecutive frames, by index arithmetic on fields. Nothing is copied."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, EventCounts, EventItems, Slices, Windows
from memload.columns.borders import NONE, Borders, Spans, cut_at, of_selected
from memload.columns.fields import Field, HasFields, digest_of
from memload.columns.numbers import array_of, begins_of, kind, row_numbers
from memload.kept_errors import level_outside
from memload.sizes import counted

_D = TypeVar("_D", bound="Windowed")

Run = tuple[int, int, int]
"""Consecutive windows: the row at which the first begins, their number, and the rows from one to the next."""


@runtime_checkable
class CutsItself(Protocol):
    """A column whose rows are in neither files nor arrays, and which makes windows of them itself."""

    def windows(self, steps: Sequence[int], runs: Sequence[Run]) -> Any:
        """Return windows of these rows; each has the rows begin + step for each step, for each begin of the runs.

        Raises:
            ValueError: windows of these rows are not possible.
        """


class Windowed(HasFields):
    """A dataset whose rows can be cut into windows."""

    borders: Borders

    if TYPE_CHECKING:

        def _field(self, name: str) -> Field: ...

    def with_lags(
        self: _D,
        lags: Mapping[str, Any] | None = None,
        /,
        *,
        valid: Any = None,
        segments: Any = None,
        across: bool = False,
        **fields: Any,
    ) -> _D:
        """Return the dataset whose row for frame i holds the frames i - lag for each lag, for the fields named.

        Only frames whose window is complete become rows: with lags 0 to 31, frame 31 of a recording is the first.
        Fields without lags give frame i itself. Nothing is copied: overlapping windows are gathered from frames that
        are stored once. Take lags first, and ``select``, ``split`` and ``memload.concat`` afterwards, because lags
        count the rows of this dataset in its own order; a warning says where selected rows leave gaps in windows. Rows
        in even steps leave none: every second frame, or all frames backwards, in which lag 1 is the frame after.

        Args:
            lags: a sequence of whole numbers for each field, for names that are not valid keywords; they precede
                `fields`. Negative lags are later rows. A field of shape ``(*shape)`` becomes ``(len(lags), *shape)``.
            valid: row numbers, or one bool per row, of the frames that become rows, in this order. Each must have a
                complete window.
            segments: stretches of rows whose ends no window crosses: the name of a field, such as "session", or one
                label per row, where each run of equal labels is a segment; or pairs (start, stop) of rows. None: one
                segment.
            across: whether windows may reach from one dataset into the next, where several were joined by `concat` or
                opened as several files, and over gaps that ``select`` left. By default each of them is a separate
                recording and ends a segment, and gaps give a warning.
            fields: lags by field.

        Raises:
            KeyError: there is no such field.
            ValueError: no row has a complete window, or segments overlap.
            IndexError: a row of `valid` does not exist, or has no complete window.
            TypeError: lags are not a sequence of whole numbers.

        Example:
            >>> import memload, torch
            >>> movie = memload.from_arrays(stim=torch.arange(6), robs=torch.arange(6) * 10)
            >>> lagged = movie.with_lags(stim=range(3))
            >>> len(lagged), lagged[0]
            (4, {'stim': tensor([2, 1, 0]), 'robs': tensor(20)})
        """
        if not isinstance(lags, Mapping | None):
            raise TypeError(f"lags are given by field, as in with_lags(stim=range(32)); got {kind(lags)}")
        named = {name: given for name, given in {**(lags or {}), **fields}.items() if self._field(name)}
        if not named:
            raise ValueError("no field has lags; name one, as in with_lags(stim=range(32))")
        spans = spans_of(self._labels("segments", segments), len(self), NONE if across else self.borders)
        made, borders = lagged(self.fields, named, valid, spans, self.borders, across)
        return self._windowed(made, list(named), borders)

    def windows(self: _D, *names: str, window: int, hop: int = 1, segments: Any = None, across: bool = False) -> _D:
        """Return the dataset whose rows are windows: `window` consecutive rows of this one, starting `hop` rows apart.

        Nothing is copied, and frames that several windows share are stored once. Incomplete windows are left out.

        Args:
            names: the fields to cut into windows; default: all. Other fields have the row at which the window starts.
            window: rows in a window: a field of shape ``(*shape)`` becomes ``(window, *shape)``.
            hop: rows from the start of one window to the start of the next.
            segments: stretches whose ends no window crosses, as in `with_lags`; a window starts each of them.
            across: whether windows may reach from one joined dataset into the next, as in `with_lags`.

        Raises:
            KeyError: there is no such field.
            ValueError: no window fits, `window` or `hop` is below 1, or segments overlap.

        Example:
            >>> import memload, torch
            >>> sound = memload.from_arrays(spectrum=torch.rand(100, 128)).windows(window=32, hop=4)
            >>> len(sound), sound[3]["spectrum"].shape
            (18, torch.Size([32, 128]))
        """
        chosen = [name for name in names or self.fields if self._field(name)]
        spans = spans_of(self._labels("segments", segments), len(self), NONE if across else self.borders)
        made, borders = hopping(self.fields, chosen, window, hop, spans, self.borders, across)
        return self._windowed(made, chosen, borders)

    def _labels(self, argument: str, given: Any) -> Any:
        """Return the labels of rows that an argument gives; the name of a field becomes its values."""
        if not isinstance(given, str):
            return given
        field = self._field(given)
        if field.shape and field.kind != "text":
            raise ValueError(
                f"{argument}={given!r}: a row of this field is {field.described}; labels are one number or one text "
                "for each row"
            )
        labels = field.gather(np.arange(len(self)))
        return np.array(labels, dtype=object) if isinstance(labels, list) else array_of(labels)

    def _windowed(self: _D, fields: Mapping[str, Field], names: Sequence[str], borders: Borders) -> _D:  # noqa: ARG002
        """Return this dataset with `fields`, of which those in `names` have become windows."""
        return replace(self, fields=fields, borders=borders)


def lagged(
    fields: Mapping[str, Field], lags: Mapping[str, Any], valid: Any, spans: Spans, borders: Borders, across: bool
) -> tuple[dict[str, Field], Borders]:
    """Return the fields with the lags of `Dataset.with_lags`, described there, and their borders."""
    steps = {name: [-lag for lag in _lags(name, given)] for name, given in lags.items()}
    every = [step for own in steps.values() for step in own]
    runs = _runs(spans, min([0, *every]), max([0, *every]), hop=1)
    chosen = None if valid is None else _positions(row_numbers(valid, _rows(fields)), runs, every)
    found = {
        name: _windows(name, field, steps[name], runs) if name in steps else field.select(begins_of(runs))
        for name, field in fields.items()
    }
    if not across:
        reach = {name: (min(own), max(own)) for name, own in steps.items()}
        _warn_of_gaps(fields, reach, spans, runs, slice(None) if chosen is None else chosen)
    borders = _borders(borders, runs)
    if chosen is None:
        return found, borders
    return {name: field.select(chosen) for name, field in found.items()}, of_selected(borders, chosen)


def hopping(
    fields: Mapping[str, Field],
    names: Sequence[str],
    window: int,
    hop: int,
    spans: Spans,
    borders: Borders,
    across: bool,
) -> tuple[dict[str, Field], Borders]:
    """Return the fields with the windows of `Dataset.windows`, described there, and their borders."""
    for name, count in (("window", window), ("hop", hop)):
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a number of rows, at least 1, got {count!r}")
    window, hop = int(window), min(int(hop), max(1, _rows(fields)))  # a hop beyond all rows equals one past the last
    runs = _runs(spans, 0, window - 1, hop)
    steps = list(range(window))
    found = {
        name: _windows(name, field, steps, runs) if name in names else field.select(begins_of(runs))
        for name, field in fields.items()
    }
    if not across:
        _warn_of_gaps(fields, dict.fromkeys(names, (0, window - 1)), spans, runs, slice(None))
    return found, _borders(borders, runs)


def spans_of(segments: Any, rows: int, borders: Borders) -> Spans:
    """Return the stretches that ``segments=`` describes, cut at the borders; None: all rows are one stretch.

    Raises:
        TypeError: `segments` is neither a label for each row nor pairs.
        ValueError: pairs overlap or reach outside the rows.
    """
    if segments is None:
        return cut_at([(0, rows)], borders)
    given = array_of(segments)
    if given.ndim == 1 and len(given) == rows:
        edges = np.flatnonzero(given[1:] != given[:-1]) + 1
        spans = list(zip([0, *edges.tolist()], [*edges.tolist(), rows], strict=True)) if rows else []
        return cut_at(spans, borders)
    if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
        raise TypeError(
            f"segments must be one label for each of the {rows:,} rows, such as trial numbers, or pairs "
            f"(start, stop) of rows; got {kind(segments)} of shape {given.shape}"
        )
    spans = [(int(start), int(stop)) for start, stop in given]
    last = 0
    for number, (start, stop) in sorted(enumerate(spans), key=lambda numbered: numbered[1]):
        if not last <= start <= stop <= rows:
            raise ValueError(
                f"segment {number} goes from row {start} to {stop}: segments must lie within the {rows:,} rows and not "
                "overlap"
            )
        last = stop
    return cut_at(spans, borders)


def _warn_of_gaps(
    fields: Mapping[str, Field],
    reach: Mapping[str, tuple[int, int]],
    spans: Spans,
    runs: Sequence[Run],
    chosen: NDArray[np.int64] | slice,
) -> None:
    """Warn if rows were selected, or shuffled, so that rows which follow each other in a window do not in the data.

    Args:
        fields: those that are cut into windows, among others.
        reach: of each field in windows, the steps to the first and to the last row of a window.
        spans: the stretches that no window leaves.
        runs: the windows.
        chosen: which of them become rows.
    """
    rows_of = {name: getattr(field.column, "selection", None) for name, field in fields.items()}
    selected = {name: rows for name, rows in rows_of.items() if rows is not None}
    if len(selected) < len(fields):
        return
    first = selected[next(iter(reach))]
    gaps = _gaps(first, spans)
    for rows in selected.values():
        if gaps.any() and not np.array_equal(rows, first):
            gaps &= _gaps(rows, spans)  # where rows of one field follow each other, those of others were looked up
    if not gaps.any():
        return
    before = np.concatenate([[0], np.cumsum(gaps)])  # gaps before each row
    begins = begins_of(runs)[chosen]
    for name, (lowest, highest) in reach.items():
        over = before[begins + highest] > before[begins + lowest]
        if over.any():
            row = int(begins[over.argmax()] + lowest)
            row += int(gaps[row:].argmax())
            here, there = selected[name][row : row + 2].tolist()
            warnings.warn(
                f"windows of {name!r} reach over rows that do not follow each other: the dataset was selected, and "
                f"its rows {row} and {row + 1} are rows {here} and {there} of the data. Take lags or windows "
                "first, and select or split afterwards; segments= may end windows at gaps, and across=True says "
                "that they may reach over them",
                stacklevel=level_outside(),
            )
            return


def _gaps(rows: NDArray[np.int64], spans: Spans) -> NDArray[np.bool_]:
    """Return whether row i + 1 of a selection does not follow row i as others do: (rows - 1,).

    A stretch whose rows follow each other in even steps, such as every second frame, has no gap.
    """
    steps = np.diff(rows)
    changes = np.concatenate([[0], np.cumsum(steps[1:] != steps[:-1])])
    starts, stops = np.array([span for span in spans if span[1] - span[0] > 2], np.int64).reshape(-1, 2).T
    uneven = changes[stops - 2] > changes[starts]
    ends = np.zeros(len(rows), np.int8)
    ends[starts[uneven]], ends[stops[uneven] - 1] = 1, -1
    within = np.cumsum(ends[:-1], dtype=np.int8) > 0
    found: NDArray[np.bool_] = within & (steps != np.median(steps[within])) if uneven.any() else within
    return found


def _borders(borders: Borders, runs: Sequence[Run]) -> Borders:
    """Return the borders of windows; a window belongs to the dataset in which it begins."""
    return of_selected(borders, begins_of(runs)) if len(borders) else borders


def _rows(fields: Mapping[str, Field]) -> int:
    return next(iter(fields.values())).rows


def _lags(name: str, given: Any) -> list[int]:
    try:
        lags = given.tolist() if getattr(given, "ndim", 0) == 1 else list(given)  # of numpy and torch
    except TypeError:
        raise TypeError(
            f"the lags of {name!r} are a sequence, such as range(32) for this frame and the 31 before it; got {given!r}"
        ) from None
    if not lags:
        raise ValueError(f"{name!r} has no lags; leave it out to keep its rows as they are")
    for lag in lags:
        if not isinstance(lag, int | np.integer) or isinstance(lag, bool):
            raise TypeError(f"lags of {name!r} are whole numbers of rows, got {lag!r}")
    return [int(lag) for lag in lags]


def _runs(spans: Spans, lowest: int, highest: int, hop: int) -> list[Run]:
    """Return the runs of windows that stay within their span, from `lowest` to `highest` around their beginning."""
    runs = [(start - lowest, (stop - highest - (start - lowest) + hop - 1) // hop, hop) for start, stop in spans]
    runs = [run for run in runs if run[1] > 0]
    if not runs:
        longest = max((stop - start for start, stop in spans), default=0)
        span = highest - lowest + 1
        raise ValueError(
            f"no row has a whole window: one spans {counted(span, 'row')}, the longest stretch that it may not leave "
            "has "
            f"{longest:,}"
        )
    return runs


def _positions(valid: NDArray[np.int64], runs: Sequence[Run], steps: Sequence[int]) -> NDArray[np.int64]:
    """Return the numbers of the windows that begin at these rows.

    Raises:
        IndexError: a row has no window.
    """
    ordered = sorted(runs)
    begins = begins_of(ordered)
    position = np.searchsorted(begins, valid)
    there = position < len(begins)
    there[there] = begins[position[there]] == valid[there]
    if not there.all():
        bad = int(valid[np.flatnonzero(~there)[0]])
        first, last = bad + min([0, *steps]), bad + max([0, *steps])
        raise IndexError(
            f"valid= names row {bad}, whose window, rows {first} to {last}, leaves the data or its segment; leave such "
            "rows out"
        )
    if ordered == list(runs):
        return position
    places = np.argsort(begins_of(runs), kind="stable")  # the user may order the runs
    return places[position]


def _windows(name: str, field: Field, steps: list[int], runs: Sequence[Run]) -> Field:
    if None in field.shape:
        raise ValueError(f"field {name!r}: its rows differ in length, so they cannot be frames of windows")
    if isinstance(field.column, Windows):
        raise ValueError(f"field {name!r}: it is windows already, which cannot be cut into windows again")
    if isinstance(field.column, Slices | EventCounts | EventItems):
        raise ValueError(f"field {name!r}: it is slices of time already: give their duration to Recording.slices")
    shape = (len(steps), *field.shape)
    if isinstance(field.column, CutsItself):
        try:
            return replace(field, shape=shape, column=field.column.windows(steps, runs))
        except ValueError as error:
            raise ValueError(f"field {name!r}: {error}") from None
    column = _overlapping(field, steps, runs) or Windows(field.column, steps, list(runs))
    digest = digest_of([field.digest, f"windows {steps} {runs}"]) if field.digest else ""
    return replace(field, shape=shape, column=column, digest=digest)


def _overlapping(field: Field, steps: list[int], runs: Sequence[Run]) -> Column | None:
    """Return windows of adjacent frames as overlapping rows, each one run of bytes; None if frames are not adjacent."""
    column = field.column
    if not isinstance(column, Column) or column.selection is not None or steps != list(range(steps[0], steps[-1] + 1)):
        return None
    segments = []
    for first, rows, hop in runs:
        segment = _around(column, first + steps[0], first + steps[-1] + (rows - 1) * hop)
        if segment is None:
            return None
        storage, offset, row_bytes = segment
        segments.append((storage, offset, rows, hop * row_bytes))
    return Column(len(steps) * column.row_bytes, segments)


def _around(column: Column, first: int, last: int) -> tuple[Any, int, int] | None:
    """Return storage, offset of `first` and bytes of a row if these rows are in one segment without gaps."""
    begin = 0
    for storage, offset, rows, stride in column.segments:
        if first < begin + rows:
            dense = stride == column.row_bytes and last < begin + rows
            return (storage, offset + (first - begin) * stride, stride) if dense else None
        begin += rows
    return None
