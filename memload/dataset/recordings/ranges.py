"""Ranges of whole nanoseconds, both ends included, in rising order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memload.columns.clocks import Nanoseconds


class Ranges(NamedTuple):
    """Ranges from `low` to `high`, and the number of the interval that each belongs to: int64 (n,) each."""

    low: Nanoseconds
    high: Nanoseconds
    tag: Nanoseconds

    def sorted(self) -> Ranges:
        """Return the ranges that are not empty, in the order of their beginnings."""
        kept = np.flatnonzero(self.low <= self.high)
        kept = kept[np.argsort(self.low[kept], kind="stable")]
        return Ranges(self.low[kept], self.high[kept], self.tag[kept])

    def within(self, low: Nanoseconds, high: Nanoseconds) -> Ranges:
        """Return what these ranges have in common with others, which rise and do not overlap; tags stay."""
        first = np.searchsorted(high, self.low)  # the first of the others that ends not before
        last = np.searchsorted(low, self.high, side="right")  # the first that begins after
        counts = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(len(self.low)), counts)
        theirs = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        return Ranges(
            np.maximum(self.low[mine], low[theirs]), np.minimum(self.high[mine], high[theirs]), self.tag[mine]
        )

    def tag_of(self, times: Nanoseconds) -> Nanoseconds:
        """Return the tag of the range that holds each of these times, which one does: int64 (n,)."""
        return self.tag[np.searchsorted(self.low, times, side="right") - 1]

    def holds(self, times: Nanoseconds) -> np.ndarray:
        """Return for each time whether one of these ranges, which rise and do not overlap, holds it: bool (n,)."""
        if not len(self.low):
            return np.zeros(len(times), dtype=bool)
        at = np.searchsorted(self.low, times, side="right") - 1
        return (at >= 0) & (times <= self.high[np.maximum(at, 0)])
