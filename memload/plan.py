"""Which rows come next: samplers as arrays of row indices, planned ahead without changing what anybody draws.

A stock loader pulls indices from its sampler one batch at a time, and the sampler draws random numbers as it is
pulled. memload needs the indices earlier, since it gathers ahead. For samplers whose source is known, the arrays are
made here by the same draws in the same order; where the generator is the user's own, each draw also happens at the
moment at which the stock loader would have made it, so that the generator's state can be watched at any time. Other
samplers are iterated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from memload.samplers import MixingSampler, WeightedSampler

Indices = NDArray[np.int64]

SEQUENTIAL_CHUNK = 1 << 16
"""Rows per array of a sequential plan: the plan of a long pass never lies in memory as a whole."""


class PlanSink(Protocol):
    """What takes a plan: the native pipeline."""

    def extend(self, rows: Indices) -> None:
        """Take rows that follow those before."""

    def push(self, rows: Indices) -> None:
        """Take rows that are one batch."""

    def finish(self) -> None:
        """Know that nothing follows."""


@dataclass(frozen=True)
class Draws:
    """A known sampler as arrays.

    Attributes:
        total: rows that the arrays add up to.
        arrays: makes a fresh iterator of int64 arrays of shape ``(n,)``; each step makes the sampler's next draw.
        paced: whether somebody can see when draws happen, so that each must wait for its time.
        lookahead: rows that may be fed ahead where nobody sees, even if the loop does not need them yet.
    """

    total: int
    arrays: Iterator[Indices]
    paced: bool
    lookahead: int = SEQUENTIAL_CHUNK


def known(sampler: object) -> bool:
    """Whether this sampler's draws are known. Subclasses may draw differently, so only the exact types are."""
    return type(sampler) in _DRAWS


def draws(sampler: Any) -> Draws:
    """Return the draws of one pass over a known sampler; nothing is drawn before the arrays are asked for."""
    return _DRAWS[type(sampler)](sampler)


def plan_bytes(sampler: Any, ahead: int = 0) -> int:
    """Bytes that the plan of one pass takes: 8 for each row that is drawn at once.

    A shuffling sampler draws permutations of all rows, even of those that it leaves out; with a generator of the
    user's, as torch's does, one more at the end of a pass.

    Args:
        sampler: the sampler of the rows.
        ahead: rows that are asked for ahead of the loop.
    """
    if not known(sampler):
        return 0
    rows = len(sampler)
    if isinstance(sampler, MixingSampler | WeightedSampler):
        return sampler.nbytes + 8 * min(rows, ahead)
    if type(sampler) is SequentialSampler:
        rows = min(rows, SEQUENTIAL_CHUNK + max(SEQUENTIAL_CHUNK, ahead))
    elif type(sampler) is RandomSampler and not sampler.replacement:
        rows = max(rows, len(sampler.data_source)) + (len(sampler.data_source) if sampler.generator is not None else 0)
    return rows * 8


def _sequential(sampler: SequentialSampler) -> Draws:
    total = len(sampler)

    def arrays() -> Iterator[Indices]:
        for begin in range(0, total, SEQUENTIAL_CHUNK):
            yield np.arange(begin, min(begin + SEQUENTIAL_CHUNK, total), dtype=np.int64)

    return Draws(total, arrays(), paced=False)


def _random(sampler: RandomSampler) -> Draws:
    return Draws(len(sampler), _random_arrays(sampler), paced=sampler.generator is not None)


def _random_arrays(sampler: RandomSampler) -> Iterator[Indices]:
    n, total = len(sampler.data_source), sampler.num_samples
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    if sampler.replacement:
        # Drawn 32 at a time: one draw of many gives the same numbers, but a watched generator must not run ahead.
        step = 32 if sampler.generator is not None else total
        for begin in range(0, total, step):
            size = (min(step, total - begin),)
            yield torch.randint(high=n, size=size, dtype=torch.int64, generator=generator).numpy()
        return
    for _ in range(total // n):
        yield torch.randperm(n, generator=generator).numpy()
    # Drawn even where nothing of it is used. A copy: a view of a part would keep the whole.
    yield torch.randperm(n, generator=generator).numpy()[: total % n].copy()


def _subset_random(sampler: SubsetRandomSampler) -> Draws:
    def arrays() -> Iterator[Indices]:
        # In one expression: a name for the permutation would keep it until the pass ends.
        yield as_indices(sampler.indices)[torch.randperm(len(sampler.indices), generator=sampler.generator).numpy()]

    return Draws(len(sampler), arrays(), paced=True)


def _weighted(sampler: WeightedRandomSampler) -> Draws:
    def arrays() -> Iterator[Indices]:
        yield torch.multinomial(
            sampler.weights, sampler.num_samples, sampler.replacement, generator=sampler.generator
        ).numpy()

    return Draws(len(sampler), arrays(), paced=True)


def _distributed(sampler: DistributedSampler[Any]) -> Draws:
    def arrays() -> Iterator[Indices]:
        yield np.fromiter(sampler, dtype=np.int64, count=len(sampler))  # draws from a generator of its own

    return Draws(len(sampler), arrays(), paced=False)


def _mixing(sampler: MixingSampler) -> Draws:
    return Draws(len(sampler), sampler.arrays(), paced=False)


def _reweighted(sampler: WeightedSampler) -> Draws:
    return Draws(len(sampler), sampler.arrays(), paced=False, lookahead=0)  # new weights are to hold soon


_DRAWS: dict[type, Callable[[Any], Draws]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: _subset_random,
    WeightedRandomSampler: _weighted,
    DistributedSampler: _distributed,
    MixingSampler: _mixing,
    WeightedSampler: _reweighted,
}


def as_indices(rows: Any) -> Indices:
    """Row indices of any integer sequence, array or tensor, as int64 of shape ``(n,)``.

    Raises:
        TypeError: if they are not integers.
    """
    array = np.asarray(rows)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iub" or array.ndim != 1:
        raise TypeError(
            f"row indices must be a flat sequence of integers, got {array.dtype} of shape {array.shape}; "
            "a sampler for a native dataset yields ints"
        )
    return array.astype(np.int64, copy=False)


def from_end(rows: Indices, n: int) -> Indices:
    """Turn indices that count from the end (-1 is the last row of ``n``) into plain ones; others stay as they are."""
    return np.where((rows < 0) & (rows >= -n), rows + n, rows) if rows.size and rows.min() < 0 else rows


class StreamFeed:
    """Feeds a known sampler's arrays, from which the sink cuts batches."""

    def __init__(self, source: Draws, batch_size: int, rows: int, sink: PlanSink) -> None:
        self._source = source
        self._batch_size = batch_size
        self._rows = rows
        self._sink = sink
        self._fed = 0
        self._finished = False

    def pull(self, batches: int, ahead: int) -> None:
        """Feed what a stock loader has drawn once it has pulled so many batches; what nobody sees, further ahead."""
        wanted = batches * self._batch_size
        if self._finished and not self._source.paced:
            return
        if not self._source.paced:
            wanted = min(wanted + max(ahead * self._batch_size, self._source.lookahead), self._source.total)
        while self._fed < wanted and (rows := next(self._source.arrays, None)) is not None:
            self._fed += len(rows)
            if len(rows):
                self._sink.extend(from_end(rows, self._rows))
        if self._fed == self._source.total and not self._finished:
            self._finished = True
            self._sink.finish()

    def raise_held(self) -> None:
        """Nothing is ever held: known samplers do not fail."""


class BatchFeed:
    """Feeds the batches of a sampler that is only known by its iterator, `ahead` of the loop."""

    def __init__(self, batches: Iterable[Any], rows: int, sink: PlanSink) -> None:
        self._batches = iter(batches)
        self._rows = rows
        self._sink = sink
        self._pulled = 0
        self._finished = False
        self._error: Exception | None = None

    def pull(self, batches: int, ahead: int) -> None:
        """Pull so many batches in all, and `ahead` more."""
        while not self._finished and self._pulled < batches + ahead:
            try:
                rows = as_indices(next(self._batches))
                if not rows.size:
                    raise IndexError("the batch sampler gave a batch without rows")
            except StopIteration:
                self._end()
            except Exception as error:  # whatever the sampler raises comes out in its turn: after the batches before it
                self._error = error
                self._end()
            else:
                self._pulled += 1
                self._sink.push(from_end(rows, self._rows))

    def raise_held(self) -> None:
        """Raise what the sampler raised, now that all batches before are delivered."""
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        self._finished = True
        self._sink.finish()


Feed = StreamFeed | BatchFeed


def feed(batch_sampler: Any, rows: int, sink: PlanSink) -> Feed:
    """Choose how to feed one pass over ``batch_sampler`` on a dataset of ``rows`` rows into ``sink``."""
    if type(batch_sampler) is BatchSampler and known(batch_sampler.sampler):
        return StreamFeed(draws(batch_sampler.sampler), batch_sampler.batch_size, rows, sink)
    return BatchFeed(batch_sampler, rows, sink)
