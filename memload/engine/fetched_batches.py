"""A pass over rows of a store: a layer holds planned rows until their blocks are there, which it has fetched ahead.

plan -> FetchedBatches -> pipeline -> batch -> the loop
             |                          |
             | hold blocks, in order    | let go of them
             v                          v
             block cache: requests, mirror files, eviction by next use
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memload import _core
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import AroundGatherer, Gatherer
from memload.engine.read_ahead import ReadAhead
from memload.engine.transforms.seeding import PassSeed
from memload.formats.remote.admission import MOST_IN_FLIGHT
from memload.formats.remote.block_cache import BlockCache
from memload.memory.endings import each_once
from memload.sampling.draws import Indices


class FetchedBatches(AroundGatherer):
    """Gathers as another gatherer does, from blocks that are fetched ahead in the order of the plan.

    Where all blocks are there when the pass begins, they stay there until it is closed, and nothing is fetched.

    Args:
        gatherer: what gathers.
        source: what it reads.
        caches: what fetches the blocks of it.
        batch_rows: rows of a full batch.
        drop_last: whether a last batch of fewer rows is left out.
    """

    def __init__(
        self, gatherer: Gatherer, source: GatherSpec, caches: Sequence[BlockCache], batch_rows: int, drop_last: bool
    ) -> None:
        super().__init__(gatherer)
        self._source, self._caches, self._cut = source, list(caches), (batch_rows, drop_last)
        self._ahead: ReadAhead | None = None
        self._pinned = list[_core.BlockTable]()  # whole
        self._let_go = each_once(map(operator.attrgetter("let_go_all"), self._pinned))
        self._stopped = False

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass: pin what is all there, or start to fetch ahead.

        Raises:
            ThreadLimitError: the system gives no thread.
        """
        self.gatherer.begin(seed)
        tables = [cache.table for cache in self._caches]
        try:
            self._pinned.extend(filter(operator.methodcaller("hold_all"), tables))  # no interrupt divides one call
        except BaseException:
            self._let_go()
            raise
        if len(self._pinned) < len(tables):
            self._let_go()
            columns = [one.column for one in self._source.fields.values()]
            self._ahead = ReadAhead(self.gatherer, columns, self._caches, *self._cut)
            self._ahead.start()

    @property
    def _plan(self) -> ReadAhead | Gatherer:
        return self._ahead or self.gatherer

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._plan.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._plan.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._plan.finish()

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end.

        Raises:
            ShardReadError, FileNotFoundError, PermissionError: blocks of it cannot be fetched.
            DiskSpaceError, MemorySpaceError: there is no room for them.
            TimeoutError: it was not ready in time.
        """
        if (ahead := self._ahead) is None:
            return self.gatherer.next(timeout)
        began = time.monotonic()
        with ahead.lock:
            while not self._has_something(ahead):
                left = timeout - (time.monotonic() - began) if timeout else None
                if left is not None and left <= 0:
                    raise TimeoutError
                ahead.changed.wait(left)
        if ahead.pushed == ahead.delivered and (error := ahead.error) is not None:
            try:
                raise error
            finally:
                del error
        left_over = max(timeout - (time.monotonic() - began), 1e-3) if timeout else 0.0
        batch = self.gatherer.next(left_over)
        if batch is not None:
            ahead.gave()
        return batch

    def _has_something(self, ahead: ReadAhead) -> bool:
        return ahead.pushed > ahead.delivered or ahead.error is not None or ahead.ended or self._stopped

    def is_ready(self) -> bool:
        """Whether the next batch may be taken without waiting."""
        ahead = self._ahead
        return (ahead is None or ahead.pushed > ahead.delivered) and self.gatherer.is_ready()

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last."""
        return self.gatherer.row_numbers()

    def cancel(self) -> _core.PlanQueue:
        """Stop, and return the plan of the batches that `next` has not returned."""
        self._stopped = True
        if self._ahead is None:
            return self.gatherer.cancel()
        *batches, rest = self._ahead.stop()
        left = self.gatherer.cancel()
        for rows in batches:
            left.push(rows)
        left.extend(rest)
        return left

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, let go of all blocks, and give memory and threads back, or keep the slots for a later pass."""
        try:
            self._stopped = True
            if self._ahead is not None:
                self._ahead.stop()
            self.gatherer.close(keep_slots, at_once)
        finally:
            self._let_go()


@contextlib.contextmanager
def held(source: GatherSpec, rows: Indices) -> Iterator[None]:
    """Have the blocks of some rows fetched, and kept meanwhile.

    Raises:
        IndexError: a row is not there.
        ShardReadError, FileNotFoundError, PermissionError, DiskSpaceError, MemorySpaceError: as `BlockCache.hold`.
    """
    ends = list[Callable[[], None]]()
    end_all = each_once(ends)
    try:
        for cache, blocks in _core.BlocksOf([one.column for one in source.fields.values()])(rows):
            cache.hold(blocks, ends)
        yield
    finally:
        end_all()


def fetching_bytes(caches: Sequence[BlockCache]) -> int:
    """Return the most bytes of RAM that fetching takes: requests in flight, and blocks that no folder keeps."""
    if not caches:
        return 0
    kept = {id(cache.room): cache.limit for cache in caches if cache.keeping.folder is None}
    hosts = {cache.objects.host for cache in caches}
    return len(hosts) * MOST_IN_FLIGHT + sum(kept.values())
