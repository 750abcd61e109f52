"""Views of time: rows that are windows of frames, as index arithmetic on fields. Nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, Windows
from memload.fields import Field, digest_of
from memload.gpu.frames import begins_of
from memload.gpu.near import NearColumn
from memload.rows.borders import Borders, Spans, cut_at, of_selected
from memload.rows.numbers import kind, row_numbers

Run = tuple[int, int, int]
"""Windows that follow each other: the first begins at this row, so many, so many rows apart."""


def lagged(
    fields: Mapping[str, Field], lags: Mapping[str, Any], valid: Any, spans: Spans, borders: Borders
) -> tuple[dict[str, Field], Borders]:
    """Return the fields with the lags of `Dataset.with_lags`, whose docstring says what they are, and their borders."""
    steps = {name: [-lag for lag in _lags(name, given)] for name, given in lags.items()}
    every = [step for own in steps.values() for step in own]
    runs = _runs(spans, min([0, *every]), max([0, *every]), hop=1)
    chosen = None if valid is None else _positions(row_numbers(valid, _rows(fields)), runs, every)
    found = {
        name: _windows(name, field, steps[name], runs) if name in steps else field.select(begins_of(runs))
        for name, field in fields.items()
    }
    borders = _borders(borders, runs)
    if chosen is None:
        return found, borders
    return {name: field.select(chosen) for name, field in found.items()}, of_selected(borders, chosen)


def hopping(
    fields: Mapping[str, Field], names: Sequence[str], window: int, hop: int, spans: Spans, borders: Borders
) -> tuple[dict[str, Field], Borders]:
    """Return the fields with the windows of `Dataset.windows`, described there, and their borders."""
    for name, count in (("window", window), ("hop", hop)):
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a number of rows, at least 1, got {count!r}")
    window, hop = int(window), min(int(hop), max(1, _rows(fields)))  # a hop beyond all rows is as one past the last
    runs = _runs(spans, 0, window - 1, hop)
    steps = list(range(window))
    found = {
        name: _windows(name, field, steps, runs) if name in names else field.select(begins_of(runs))
        for name, field in fields.items()
    }
    return found, _borders(borders, runs)


def spans_of(segments: Any, rows: int, borders: Borders) -> Spans:
    """Return the stretches that ``segments=`` states, cut at the borders; None: all rows are one.

    Raises:
        TypeError: it is neither a label for each row nor pairs.
        ValueError: pairs overlap, or reach outside the rows.
    """
    if segments is None:
        return cut_at([(0, rows)], borders)
    given = np.asarray(segments)
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


def _borders(borders: Borders, runs: Sequence[Run]) -> Borders:
    """The borders of windows, which lie in the dataset in which they begin."""
    return of_selected(borders, begins_of(runs)) if len(borders) else borders


def _rows(fields: Mapping[str, Field]) -> int:
    return next(iter(fields.values())).rows


def _lags(name: str, given: Any) -> list[int]:
    try:
        lags = list(given)
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
            f"no row has a whole window: one spans {span:,} rows, the longest stretch that it may not leave has "
            f"{longest:,}"
        )
    return runs


def _positions(valid: NDArray[np.int64], runs: Sequence[Run], steps: Sequence[int]) -> NDArray[np.int64]:
    """Return which windows begin at these rows.

    Raises:
        IndexError: a row's window is not there.
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
    places = np.argsort(begins_of(runs), kind="stable")  # runs in an order of the user's
    return places[position]


def _windows(name: str, field: Field, steps: list[int], runs: Sequence[Run]) -> Field:
    if None in field.shape:
        raise ValueError(f"field {name!r}: its rows differ in length, so they cannot be frames of windows")
    if isinstance(field.column, Windows):
        raise ValueError(f"field {name!r}: it is windows already, which cannot be cut into windows again")
    shape = (len(steps), *field.shape)
    if isinstance(field.column, NearColumn):
        if field.column.index.steps is not None:
            raise ValueError(
                f"field {name!r}: it is windows already, which are not cut into windows again where they lie on a "
                "device: cut them both times in files or arrays, then bring them by memload.to_device"
            )
        return replace(field, shape=shape, column=field.column.windows(steps, runs))
    column = _overlapping(field, steps, runs) or Windows(field.column, steps, list(runs))
    digest = digest_of([field.digest, f"windows {steps} {runs}"]) if field.digest else ""
    return replace(field, shape=shape, column=column, digest=digest)


def _overlapping(field: Field, steps: list[int], runs: Sequence[Run]) -> Column | None:
    """Return windows whose frames lie one behind the other as rows that overlap, each one run of bytes; None if not."""
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
    """Return storage, offset of `first` and bytes of a row if these rows lie in one segment without gaps."""
    begin = 0
    for storage, offset, rows, stride in column.segments:
        if first < begin + rows:
            dense = stride == column.row_bytes and last < begin + rows
            return (storage, offset + (first - begin) * stride, stride) if dense else None
        begin += rows
    return None
