"""Plan the rows of a pass: samplers as arrays of row indices, made ahead with the same draws as a stock loader.

A stock loader pulls the indices of one batch at a time, and the sampler draws random numbers at each pull. memload
gathers ahead, so it needs the indices earlier. Of samplers of known types it makes arrays, by the same draws in the
same order. If the generator belongs to the user, each draw also happens at the same moment as in a stock loader, so the
generator's state is the same at any time. Other samplers are iterated. `Progress` counts how far the loop has come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from memload.columns.numbers import as_indices, from_end
from memload.kept_errors import without_frames
from memload.sampling.batch_streams import MOST_ROWS, KnownBatches, RowBatches, batch_stream, batches_known
from memload.sampling.block_shuffle import BlockShuffle
from memload.sampling.budget_batches import BudgetBatchSampler
from memload.sampling.draws import Indices, Position, RowStream, Stream
from memload.sampling.pulls import BatchStream, Generators
from memload.sampling.samplers import MixingSampler, WeightedSampler
from memload.sampling.torch_draws import DRAWS, SEQUENTIAL_CHUNK, DistributedRows, draws_of, is_native


class PlanSink(Protocol):
    """Receives the plan of a pass, row by row or batch by batch: the native pipeline, or a layer around it."""

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""

    def finish(self) -> None:
        """Mark the end of the plan."""


def known(sampler: object) -> bool:
    """Return whether a sampler can be planned as arrays: its type is known exactly and was not patched."""
    kind = type(sampler)
    return kind in _ITERATED_BY and getattr(kind, "__iter__", None) is _ITERATED_BY[kind]


def stream(sampler: Any, position: Position | None = None) -> RowStream:
    """Return the rows of one pass over a known sampler, or those after a position; this draws nothing yet."""
    if type(sampler) in _STREAMS:
        return _STREAMS[type(sampler)](sampler, position)
    return Stream(draws_of(sampler), position)


def planned(position: Position | None) -> bool:
    """Return whether a position counts planned rows, rather than batches pulled from a sampler."""
    return position is not None and "batches" not in position


def plan_bytes(sampler: Any, ahead: int = 0) -> int:
    """Return the bytes that the plan of one pass takes: 8 for each row that is drawn at once.

    A shuffling sampler draws permutations of all rows, even of rows that it leaves out. With a generator of the user
    it draws one more permutation at the end of a pass, as torch does; that one takes memory if it has few rows or is
    used in part.

    Args:
        sampler: the sampler of the rows.
        ahead: rows that are requested ahead of the loop.
    """
    if isinstance(sampler, BudgetBatchSampler):
        return sampler.nbytes
    if not known(sampler):
        return 0
    rows = len(sampler)
    if isinstance(sampler, BlockShuffle):
        return sampler.nbytes
    if isinstance(sampler, MixingSampler | WeightedSampler):
        return sampler.nbytes + 8 * min(rows, ahead)
    if type(sampler) is SequentialSampler:
        rows = min(rows, SEQUENTIAL_CHUNK + max(SEQUENTIAL_CHUNK, ahead))
    elif type(sampler) is RandomSampler and not sampler.replacement:
        n = len(sampler.data_source)
        one_more = sampler.generator is not None and (rows % max(1, n) != 0 or not is_native(n, sampler.generator))
        rows = max(rows, n) + (n if one_more else 0)
    return rows * 8


_STREAMS: dict[type, Callable[[Any, Position | None], RowStream]] = {
    DistributedSampler: DistributedRows,
    MixingSampler: MixingSampler.stream,
    WeightedSampler: WeightedSampler.stream,
    BlockShuffle: BlockShuffle.stream,
}
_ITERATED_BY = {kind: getattr(kind, "__iter__", None) for kind in (*DRAWS, *_STREAMS)}
"""The `__iter__` of each type when memload was imported; a later patch makes the sampler unknown."""


@dataclass(frozen=True)
class Unplanned:
    """A batch that the engine does not gather; it keeps its place in the order.

    Attributes:
        indices: the indices from the batch sampler, which the dataset itself must answer.
        error: the error of the sampler or of its indices; None if there was none.
    """

    indices: Any = None
    error: Exception | None = None


@dataclass
class HeldGroup:
    """A group of batches that were taken ahead and are handed to the loop one by one.

    Attributes:
        before: returns the loader's state from before they were taken.
        batches: the number of batches.
        handed: the number of batches that the loop has.
    """

    before: Callable[[], dict[str, Any]]
    batches: int
    handed: int = 0

    def state(self) -> dict[str, Any]:
        """Return the state from which the loop gets the remaining batches."""
        group = {"group": {"batches": self.batches, "handed": self.handed}} if self.handed else {}
        return {**self.before(), **group}


@dataclass
class Progress:
    """The progress of the loop in one pass, counted by the batches handed to it, not by those made ahead.

    Attributes:
        number: the number of the pass, from 0 for the first pass of the loader or of the loader whose state it loaded.
        base_seed: the number that a stock iterator draws for its workers.
        delivered: batches that the loop was handed, before a stop and after it.
        finished: whether the loop has reached the end.
        resumed: the sampler's position when this pass was stopped; None: the pass starts at its beginning.
        ended: the sampler's position at the end of the pass before, where only a state has it.
        behind: batches after the position that the loop already had.
        loader: returns the loader of the pass while it lives; the loader keeps this object.
    """

    number: int = 0
    base_seed: int | None = None
    delivered: int = 0
    finished: bool = False
    resumed: Position | None = None
    ended: Position | None = None
    behind: int = 0
    loader: Callable[[], Any] = field(default=type(None), repr=False, compare=False)

    def __post_init__(self) -> None:
        self._before = self.delivered
        self.held: HeldGroup | None = None
        self._unit = 1
        self._source: Any = None

    def follow(self, source: Any, unit: int = 1) -> None:
        """Take positions from `source`, which counts `unit` for every batch."""
        self._source, self._unit = source, unit

    @property
    def seen(self) -> int:
        """The number of the source's units that the loop has seen."""
        return (self.delivered - self._before) * self._unit

    def position(self) -> dict[str, Any] | None:
        """Return the sampler's position as plain data; None before its first use."""
        return None if self._source is None else self._source.position(self.seen)

    def settle(self) -> None:
        """Fix the position at its current value, and release the source that reports it."""
        self._source = _Settled(self.position())


class _Settled:
    """The position of a pass when it was left."""

    def __init__(self, position: dict[str, Any] | None) -> None:
        self._position = position

    def position(self, seen: int) -> dict[str, Any] | None:  # noqa: ARG002 - as of every source
        return self._position


class StreamFeed:
    """Feeds the arrays of a known sampler; the sink cuts them into batches."""

    ended = False
    """Whether the plan is complete and nobody observes further draws, so that `pull` does nothing."""

    def __init__(self, source: RowStream, batch_size: int, rows: int, sink: PlanSink, progress: Progress) -> None:
        self._progress = progress
        self._source = source
        self._from_end = bool(source.values) and source.values.start < 0  # rows that count from the end
        self._batch_size = batch_size
        self._rows = rows
        self._sink = sink
        self._fed = 0
        self._raised = self._finished = False

    def start_again(self) -> None:
        """Do nothing, because a stream draws nothing before its first pull."""

    def pull(self, batches: int, ahead: int) -> None:
        """Feed the rows that a stock loader would have drawn by now, and more rows if nobody can observe the draws."""
        source, wanted = self._source, batches * self._batch_size
        if not source.paced:
            wanted = min(wanted + max(ahead * self._batch_size, source.lookahead), source.total)
        try:
            while self._fed < wanted and (rows := self._draw()) is not None:
                self._fed += len(rows)
                if len(rows):
                    self._sink.extend(from_end(rows, self._rows) if self._from_end else rows)
        finally:
            if (self._raised or self._fed == source.total) and not self._finished:
                self._finished, self.ended = True, not source.paced
                self._sink.finish()

    def _draw(self) -> Indices | None:
        try:
            return self._source.next(self._progress.seen)
        except Exception:
            self._raised = True  # like a generator that raised, the source has no more rows
            raise


class BatchFeed:
    """Feeds the batches of a sampler that must be iterated.

    Args:
        batches: yields the indices of one batch at a time.
        rows: rows of the dataset.
        sink: receives the batches that can be gathered.
        progress: the progress of the pass.
        ahead: whether batches may be pulled ahead of the loop, because nobody can observe it.
        at_once: whether an error of the sampler is raised immediately, as by the iterators of stock workers, rather
            than after the batches before it.
        as_index: whether the dataset is indexed by each batch as a whole; tensors in a list are no rows then.
    """

    def __init__(
        self,
        batches: BatchStream,
        rows: int,
        sink: PlanSink,
        progress: Progress,
        *,
        ahead: bool,
        at_once: bool,
        as_index: bool = False,
    ) -> None:
        self._as_index = as_index
        progress.follow(batches)
        self._progress = progress
        self._batches = batches
        self._rows = rows
        self._sink = sink
        self._ahead = ahead
        self._at_once = at_once
        self._pulled = 0
        self.ended = False
        """Whether the plan is complete, so that `pull` does nothing."""
        self._unplanned: dict[int, Unplanned] = {}

    def start_again(self) -> None:
        """Make a new iterator of the sampler and drop the previous one."""
        self._batches.start_again()

    def pull(self, batches: int, ahead: int) -> None:
        """Pull `batches` batches in total, and `ahead` more if nobody can observe it."""
        wanted = batches + ahead if self._ahead else batches
        while not self.ended and self._pulled < wanted:
            try:
                indices = self._batches.next(self._progress.seen)
            except StopIteration:
                self.ended = True
                self._sink.finish()
                return
            except Exception as error:
                if self._at_once:
                    raise
                due = self._pulled < batches
                self._unplanned[self._pulled] = Unplanned(error=error if due else without_frames(error))
            else:
                self._plan(indices)
            self._pulled += 1

    def unplanned(self, position: int) -> Unplanned | None:
        """Return the batch at this position, from 0, if the engine does not gather it. Call once for each position."""
        if self._at_once and position >= self._pulled and not self.ended:
            # After an error of the sampler, a stock iterator ends once it has received every batch it requested.
            self.ended = True
            self._sink.finish()
        return self._unplanned.pop(position, None)

    def _plan(self, indices: Any) -> None:
        kinds = set(map(type, indices)) if isinstance(indices, list | tuple) else set()
        invalid = bool in kinds or (self._as_index and torch.Tensor in kinds)  # numpy would take these for integers
        rows = None if invalid else _valid_rows(indices, self._rows)
        if rows is None:
            self._unplanned[self._pulled] = Unplanned(indices)
        else:
            self._sink.push(rows)


def _valid_rows(indices: Any, n: int) -> Indices | None:
    """Return the indices as rows of a dataset of ``n`` rows; None if any is out of range or not an integer."""
    try:
        rows = from_end(as_indices(indices), n)
    except (TypeError, ValueError):
        return None
    return rows if rows.size and rows.min() >= 0 and rows.max() < n else None


Feed = StreamFeed | KnownBatches | BatchFeed


def feed(
    batch_sampler: Any,
    rows: int,
    sink: PlanSink,
    progress: Progress | None = None,
    *,
    given: Callable[[], Generators] = dict,
    ahead: bool = False,
    at_once: bool = False,
    as_index: bool = False,
) -> Feed:
    """Return the feed of one pass over ``batch_sampler`` on a dataset of ``rows`` rows into ``sink``.

    Args:
        batch_sampler: the batch sampler of the loader.
        rows: rows of the dataset.
        sink: receives the plan.
        progress: the progress of the pass: it gives the position to begin at and follows the feed.
        given: returns the generators of the loader and its samplers, by name.
        ahead: whether samplers of unknown types, too, may be pulled ahead of the loop.
        at_once: whether an error of such a sampler is raised immediately rather than after the batches before it.
        as_index: whether the dataset is indexed by each batch as a whole.
    """
    progress = progress or Progress()
    source = _known_rows(batch_sampler, rows, progress.resumed)
    if source is not None:
        progress.follow(source, batch_sampler.batch_size)
        return StreamFeed(source, batch_sampler.batch_size, rows, sink, progress)
    if (known_batches := _known_batches(batch_sampler, rows, progress.resumed)) is not None:
        return KnownBatches(known_batches, sink, progress)
    batches = BatchStream(batch_sampler, given(), progress.resumed, progress.ended)
    ahead = (ahead and not _draws_as_torch(batch_sampler)) or _is_container(batch_sampler)
    return BatchFeed(batches, rows, sink, progress, ahead=ahead, at_once=at_once, as_index=as_index)


def _known_rows(batch_sampler: Any, rows: int, position: Position | None) -> RowStream | None:
    """Return the rows of a batch sampler if its type is known and all of its rows exist in the dataset; else None."""
    if type(batch_sampler) is not BatchSampler or not known(batch_sampler.sampler):
        return None
    if batch_sampler.batch_size > MOST_ROWS:  # torch's own code raises the error
        return None
    try:
        source = stream(batch_sampler.sampler, position)
    except Exception as error:
        if planned(position):
            raise ValueError(f"the state's position in the sampler is damaged: {error!r}") from error
        return None  # iterated, the sampler raises the same error at the same time as in a stock loader
    valid = range(-rows, rows)
    return source if not source.values or (source.values[0] in valid and source.values[-1] in valid) else None


def _known_batches(batch_sampler: Any, rows: int, position: Position | None) -> RowBatches | None:
    if not batches_known(batch_sampler):
        return None
    source = batch_stream(batch_sampler, position)
    return source if source.values.stop <= rows else None


def _draws_as_torch(batch_sampler: Any) -> bool:
    """Return whether a sampler draws when a stock loader does; it is iterated only if it has rows that do not exist."""
    return batches_known(batch_sampler) or (type(batch_sampler) is BatchSampler and known(batch_sampler.sampler))


def _is_container(batch_sampler: Any) -> bool:
    """Return whether the sampler is a built-in container, so that nobody can observe its iteration."""
    if type(batch_sampler) is BatchSampler:
        return type(batch_sampler.sampler) in _CONTAINERS
    return type(batch_sampler) in _CONTAINERS


_CONTAINERS = (list, tuple, range, np.ndarray, torch.Tensor)
