"""Cut rows in order into batches within a budget, and share the batches out over ranks.

A batch is a pair (begin, end) of positions in an order of rows.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memload.sampling.draws import Indices

Costs = NDArray[np.int64] | NDArray[np.float64]


def filled(
    costs: Costs, budget: float, ends: list[int], most_rows: int | None, *, padded: bool, drop_last: bool
) -> Indices:
    """Cut rows into batches, each as long as the budget allows; int64 (batches, 2).

    Args:
        costs: the costs of the rows in their order, none above the budget.
        budget: the highest cost of a batch.
        ends: the ends of the buckets, rising; no batch has rows of two buckets.
        most_rows: the most rows of a batch; None: any number.
        padded: whether a batch costs its rows times the highest cost among them, rather than their sum.
        drop_last: whether the last batch of a bucket is left out if there was room for more.
    """
    most = len(costs) + 1 if most_rows is None else most_rows
    cut = _cut_by_the_highest(costs, budget, ends, most) if padded else _cut_by_the_sum(costs, budget, ends, most)
    batches = np.fromiter(itertools.chain.from_iterable(cut), dtype=np.int64).reshape(-1, 2)
    return batches[_full(batches, costs, budget, ends, most, padded)] if drop_last else batches


def _cut_by_the_sum(costs: Costs, budget: float, ends: list[int], most: int) -> Iterator[tuple[int, int]]:
    sums = np.concatenate([np.zeros(1, costs.dtype), np.cumsum(costs)]).data  # its items are Python numbers
    begin, reach = 0, 8
    for last in ends:
        while begin < last:
            limit = min(last, begin + most)
            # A batch has about as many rows as the one before, so the search starts there. Its first row always
            # belongs to it, however the sums were rounded.
            near = min(limit, begin + reach)
            end = bisect_right(sums, sums[begin] + budget, begin + 2, near + 1) - 1
            if end == near < limit:
                end = bisect_right(sums, sums[begin] + budget, near + 1, limit + 1) - 1
            yield begin, end
            begin, reach = end, 2 * (end - begin) + 8


def _cut_by_the_highest(costs: Costs, budget: float, ends: list[int], most: int) -> Iterator[tuple[int, int]]:
    each = costs.data
    begin = 0
    for last in ends:
        highest = 0.0
        for row in range(begin, last):
            higher = max(highest, each[row])
            if row > begin and (higher * (row + 1 - begin) > budget or row - begin == most):
                yield begin, row
                begin, higher = row, each[row]
            highest = higher
        if begin < last:
            yield begin, last
        begin = last


def _full(batches: Indices, costs: Costs, budget: float, ends: list[int], most: int, padded: bool) -> NDArray[np.bool_]:
    """Return which batches were closed by the budget, or fill it exactly, rather than by the end of the rows."""
    full = ~np.isin(batches[:, 1], ends)
    for number in np.flatnonzero(~full).tolist():
        own = costs[slice(*batches[number].tolist())]
        full[number] = len(own) == most or (own.max() * len(own) if padded else own.sum()) == budget
    return full


def evened(batches: Indices, ranks: int, *, drop_last: bool) -> Indices:
    """Return batches whose number is divisible by `ranks`, because ranks take turns.

    With `drop_last` the last batches are left out. Otherwise the largest of the last batches are cut in two, which
    keeps the order of rows; where there are too few rows for that, rows are repeated from the first one on.
    """
    lacking = -len(batches) % ranks
    if not lacking:
        return batches
    if drop_last:
        return batches[: len(batches) - len(batches) % ranks]
    wanted = len(batches) + lacking
    rows_behind = np.cumsum((batches[:, 1] - batches[:, 0] - 1)[::-1])  # the number of possible cuts from here on
    if rows_behind[-1] < lacking:
        single = _halved(batches, int(rows_behind[-1]))
        again: Indices = single[np.arange(wanted) % len(single)]
        return again
    enough = max(min(ranks, len(batches)), int(np.searchsorted(rows_behind, lacking)) + 1)
    return np.concatenate([batches[:-enough], _halved(batches[-enough:], lacking)])


def _halved(batches: Indices, cuts: int) -> Indices:
    """Cut the batch with the most rows in two, `cuts` times."""
    heap = [(begin - end, begin, end) for begin, end in batches.tolist()]
    heapq.heapify(heap)
    for _ in range(cuts):
        _, begin, end = heap[0]
        middle = (begin + end + 1) // 2
        heapq.heapreplace(heap, (begin - middle, begin, middle))
        heapq.heappush(heap, (middle - end, middle, end))
    return np.array(sorted((begin, end) for _, begin, end in heap), dtype=np.int64)
