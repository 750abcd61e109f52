"""The row numbers at which datasets were joined, because windows do not reach from one recording into the next."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Spans = list[tuple[int, int]]
"""Stretches of rows [start, stop) that no window leaves."""

Borders = NDArray[np.int64]
"""Row numbers, rising: the first row of each dataset after the first."""

NONE: Borders = np.empty(0, dtype=np.int64)


def of_joined(members: Iterable[tuple[int, Borders]]) -> Borders:
    """Return the borders of datasets joined one after the other; a member is its row count and its own borders."""
    rows, found = 0, [NONE]
    for count, own in members:
        found += [np.array([rows], dtype=np.int64), own + rows]
        rows += count
    borders = np.unique(np.concatenate(found))
    return borders[(borders > 0) & (borders < rows)]


def of_zipped(members: Iterable[Borders]) -> Borders:
    """Return the borders of datasets side by side."""
    borders: Borders = np.unique(np.concatenate([NONE, *members]))
    return borders


def of_selected(borders: Borders, rows: NDArray[np.int64]) -> Borders:
    """Return the borders of these rows of a dataset, in their order."""
    if not len(borders):
        return borders
    member = np.searchsorted(borders, rows, side="right")
    return np.flatnonzero(member[1:] != member[:-1]) + 1


def cut_at(spans: Spans, borders: Borders) -> Spans:
    """Return the stretches in their order, each cut where it crosses a border."""
    if not len(borders):
        return spans
    found: Spans = []
    for start, stop in spans:
        first, last = np.searchsorted(borders, [start + 1, stop]).tolist()
        found += itertools.pairwise([start, *borders[first:last].tolist(), stop])
    return found
