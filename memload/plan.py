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
        values: which indices may come: all lie in this range.
    """

    total: int
    arrays: Iterator[Indices]
    paced: bool
    values: range


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

    return Draws(total, arrays(), paced=False, values=range(total))


def _random(sampler: RandomSampler) -> Draws:
    values = range(len(sampler.data_source))
    return Draws(len(sampler), _random_arrays(sampler), paced=sampler.generator is not None, values=values)


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
    indices = as_indices(sampler.indices)
    values = range(int(indices.min()), int(indices.max()) + 1) if indices.size else range(0)

    def arrays(rows: list[Indices]) -> Iterator[Indices]:
        # In one expression: a name for the permutation would keep it until the pass ends.
        yield rows.pop()[torch.randperm(len(sampler.indices), generator=sampler.generator).numpy()]

    return Draws(len(sampler), arrays([indices]), paced=True, values=values)


def _weighted(sampler: WeightedRandomSampler) -> Draws:
    def arrays() -> Iterator[Indices]:
        yield torch.multinomial(
            sampler.weights, sampler.num_samples, sampler.replacement, generator=sampler.generator
        ).numpy()

    return Draws(len(sampler), arrays(), paced=True, values=range(len(sampler.weights)))


def _distributed(sampler: DistributedSampler[Any]) -> Draws:
    def arrays() -> Iterator[Indices]:
        yield np.fromiter(sampler, dtype=np.int64, count=len(sampler))  # draws from a generator of its own

    return Draws(len(sampler), arrays(), paced=False, values=range(len(sampler.dataset)))  # type: ignore[arg-type]


_DRAWS: dict[type, Callable[[Any], Draws]] = {
    SequentialSampler: _sequential,
    RandomSampler: _random,
    SubsetRandomSampler: _subset_random,
    WeightedRandomSampler: _weighted,
    DistributedSampler: _distributed,
}


def as_indices(rows: Any) -> Indices:
    """Row indices of any integer sequence, array or tensor, as int64 of shape ``(n,)``.

    Raises:
        TypeError: if they are not integers. Bools are not: as an index of a tensor they mean something else.
        ValueError: if they do not fit into 64 bits.
    """
    array = np.asarray(rows)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"row indices must be a flat sequence of integers, got {array.dtype} of shape {array.shape}")
    if array.dtype == np.uint64 and array.max() >= 1 << 63:
        raise ValueError(f"the row index {array.max()} does not fit into 64 bits with a sign")
    return array.astype(np.int64, copy=False)


def from_end(rows: Indices, n: int) -> Indices:
    """Turn indices that count from the end (-1 is the last row of ``n``) into plain ones; others stay as they are."""
    return np.where((rows < 0) & (rows >= -n), rows + n, rows) if rows.size and rows.min() < 0 else rows


@dataclass(frozen=True)
class Unplanned:
    """A batch in its turn that the engine does not gather.

    Attributes:
        indices: what the batch sampler gave, which is for the dataset itself to answer.
        error: what the sampler, or its indices, raised instead; None otherwise.
    """

    indices: Any = None
    error: Exception | None = None


class StreamFeed:
    """Feeds a known sampler's arrays, from which the sink cuts batches."""

    def __init__(self, source: Draws, batch_size: int, rows: int, sink: PlanSink) -> None:
        self._source = source
        self._batch_size = batch_size
        self._rows = rows
        self._sink = sink
        self._fed = 0
        self._finished = False

    def start_again(self) -> None:
        """Nothing was drawn so far: a stream begins with its first pull."""

    def pull(self, batches: int, ahead: int) -> None:
        """Feed what a stock loader has drawn once it has pulled so many batches; what nobody sees, further ahead."""
        wanted = batches * self._batch_size
        if self._finished and not self._source.paced:
            return
        if not self._source.paced:
            wanted = min(wanted + max(ahead * self._batch_size, SEQUENTIAL_CHUNK), self._source.total)
        while self._fed < wanted and (rows := self._draw()) is not None:
            self._fed += len(rows)
            if len(rows):
                self._sink.extend(from_end(rows, self._rows))
        if self._fed == self._source.total:
            self._finish()

    def unplanned(self, position: int) -> Unplanned | None:  # noqa: ARG002 - as of every feed
        """Everything is planned: samplers whose rows may not be there are iterated."""
        return None

    def _draw(self) -> Indices | None:
        try:
            return next(self._source.arrays, None)
        except Exception:
            self._finish()  # as a generator that raised, it has nothing more to give
            raise

    def _finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._sink.finish()


class BatchFeed:
    """Feeds the batches of a sampler that is only known by iterating it.

    Args:
        batch_sampler: gives the indices of one batch at a time.
        rows: rows of the dataset.
        sink: takes what can be gathered.
        ahead: whether batches may be pulled before their time, since nobody can see it.
        at_once: whether an error of the sampler is raised as soon as it is met, as by stock workers' iterators, or in
            its turn, after the batches before it.
    """

    def __init__(self, batch_sampler: Iterable[Any], rows: int, sink: PlanSink, *, ahead: bool, at_once: bool) -> None:
        self._sampler = batch_sampler
        self._batches = iter(batch_sampler)
        self._rows = rows
        self._sink = sink
        self._ahead = ahead
        self._at_once = at_once
        self._pulled = 0
        self._finished = False
        self._unplanned: dict[int, Unplanned] = {}

    def start_again(self) -> None:
        """Ask the sampler for another iterator, and forget the first."""
        self._batches = iter(self._sampler)

    def pull(self, batches: int, ahead: int) -> None:
        """Pull so many batches in all, and `ahead` more if nobody can see it."""
        wanted = batches + ahead if self._ahead else batches
        while not self._finished and self._pulled < wanted:
            try:
                indices = next(self._batches)
            except StopIteration:
                self._finished = True
                self._sink.finish()
                return
            except Exception as error:
                if self._at_once:
                    raise
                self._unplanned[self._pulled] = Unplanned(error=error)
            else:
                self._plan(indices)
            self._pulled += 1

    def unplanned(self, position: int) -> Unplanned | None:
        """Return the batch at this position, counted from 0, if it is not for the engine. Call once for each."""
        return self._unplanned.pop(position, None)

    def _plan(self, indices: Any) -> None:
        try:
            if not isinstance(indices, list | tuple | np.ndarray | torch.Tensor) and isinstance(indices, Iterable):
                indices = list(indices)
        except Exception as error:  # whatever a generator of indices raises comes out in its turn
            self._unplanned[self._pulled] = Unplanned(error=error)
            return
        rows = _rows_there(indices, self._rows)
        if rows is None:
            self._unplanned[self._pulled] = Unplanned(indices)
        else:
            self._sink.push(rows)


def _rows_there(indices: Any, n: int) -> Indices | None:
    """The indices as rows of a dataset that has ``n``; None if they are none, or not all there, or no integers."""
    try:
        rows = from_end(as_indices(indices), n)
    except (TypeError, ValueError):
        return None
    return rows if rows.size and rows.min() >= 0 and rows.max() < n else None


Feed = StreamFeed | BatchFeed


def feed(batch_sampler: Any, rows: int, sink: PlanSink, *, ahead: bool = False, at_once: bool = False) -> Feed:
    """Choose how to feed one pass over ``batch_sampler`` on a dataset of ``rows`` rows into ``sink``.

    Args:
        batch_sampler: of the loader.
        rows: rows of the dataset.
        sink: takes the plan.
        ahead: whether samplers of an unknown kind, too, may be pulled before their time.
        at_once: whether their errors are raised when they are met, or in their turn.
    """
    source = _drawn(batch_sampler, rows)
    if source is not None:
        return StreamFeed(source, batch_sampler.batch_size, rows, sink)
    return BatchFeed(batch_sampler, rows, sink, ahead=ahead or _lies_ready(batch_sampler), at_once=at_once)


def _drawn(batch_sampler: Any, rows: int) -> Draws | None:
    """The draws of a batch sampler, if its kind is known and all that it draws is there."""
    if type(batch_sampler) is not BatchSampler or not known(batch_sampler.sampler):
        return None
    try:
        source = draws(batch_sampler.sampler)
    except Exception:  # iterated, it fails with what it raises, and when it does so in a stock loader
        return None
    there = range(-rows, rows)
    return source if not source.values or (source.values[0] in there and source.values[-1] in there) else None


def _lies_ready(batch_sampler: Any) -> bool:
    """Whether it is a container of a built-in kind, which nobody sees being iterated."""
    if type(batch_sampler) is BatchSampler:
        return type(batch_sampler.sampler) in _CONTAINERS
    return type(batch_sampler) in _CONTAINERS


_CONTAINERS = (list, tuple, range, np.ndarray, torch.Tensor)
