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
from functools import partial
from typing import Any

from memload import _core
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import AroundGatherer, Gatherer
from memload.engine.read_ahead import ReadAhead
from memload.formats.remote.admission import MOST_IN_FLIGHT
from memload.formats.remote.block_cache import BlockCache
from memload.sampling.draws import Indices


class FetchedBatches(AroundGatherer):
    """Gathers as another gatherer does, from blocks that are fetched ahead in the order of the plan.

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
        columns = [one.column for one in source.fields.values()]
        self._ahead = ReadAhead(gatherer, columns, caches, batch_rows, drop_last)
        self._stopped = False

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._ahead.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._ahead.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._ahead.finish()

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end.

        Raises:
            ShardReadError, FileNotFoundError, PermissionError: blocks of it cannot be fetched.
            DiskSpaceError, MemorySpaceError: there is no room for them.
            TimeoutError: it was not ready in time.
        """
        began, ahead = time.monotonic(), self._ahead
        with ahead.changed:
            while not self._has_something():
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

    def _has_something(self) -> bool:
        ahead = self._ahead
        return ahead.pushed > ahead.delivered or ahead.error is not None or ahead.ended or self._stopped

    def is_ready(self) -> bool:
        """Whether the next batch may be taken without waiting."""
        return self._ahead.pushed > self._ahead.delivered and self.gatherer.is_ready()

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last."""
        return self.gatherer.row_numbers()

    def cancel(self) -> _core.PlanQueue:
        """Stop, and return the plan of the batches that `next` has not returned."""
        self._stopped = True
        *batches, rest = self._ahead.stop()
        left = self.gatherer.cancel()
        for rows in batches:
            left.push(rows)
        left.extend(rest)
        return left

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, let go of all blocks, and give memory and threads back, or keep the slots for a later pass."""
        if not self._stopped:
            self._stopped = True
            self._ahead.stop()
        self.gatherer.close(keep_slots, at_once)


class HeldBatches(AroundGatherer):
    """Gathers as another gatherer does, from blocks that are all there, and stay there until it is closed.

    Args:
        gatherer: what gathers.
        caches: whose blocks are all held.
    """

    def __init__(self, gatherer: Gatherer, caches: Sequence[BlockCache]) -> None:
        super().__init__(gatherer)
        self._caches = list(caches)

    def is_ready(self) -> bool:
        """Whether the next batch may be taken without waiting."""
        return self.gatherer.is_ready()

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last."""
        return self.gatherer.row_numbers()

    def cancel(self) -> _core.PlanQueue:
        """Stop gathering, and return the plan of the batches that `next` has not returned."""
        return self.gatherer.cancel()

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Close what gathers, and let go of the blocks."""
        super().close(keep_slots, at_once)
        while self._caches:
            self._caches.pop().table.let_go_all()


def fetched(
    gatherer: Gatherer, source: GatherSpec, caches: Sequence[BlockCache], batch_rows: int, drop_last: bool
) -> Gatherer:
    """Return what gathers from blocks that are fetched as the plan needs them; of a set that is all there, at once."""
    with contextlib.ExitStack() as kept:
        for cache in caches:
            if not cache.table.hold_all():
                break
            kept.callback(cache.table.let_go_all)
        else:
            whole = HeldBatches(gatherer, caches)
            kept.pop_all()
            return whole
    return FetchedBatches(gatherer, source, caches, batch_rows, drop_last)


@contextlib.contextmanager
def held(source: GatherSpec, rows: Indices) -> Iterator[None]:
    """Have the blocks of some rows fetched, and kept meanwhile.

    Raises:
        IndexError: a row is not there.
        ShardReadError, FileNotFoundError, PermissionError, DiskSpaceError, MemorySpaceError: as `BlockCache.hold`.
    """
    ends = list[Callable[[], None]]()
    end_all = partial(any, map(operator.methodcaller("__call__"), ends))  # one call, which no interrupt divides
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
