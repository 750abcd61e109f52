"""What a pass over rows of a store fetches ahead: the planned uses of blocks, and a thread that holds these."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload import _core
from memload.columns.fields import AnyColumn
from memload.engine.gatherer import Gatherer
from memload.formats.remote.block_cache import NEVER, BlockCache
from memload.formats.remote.link import link
from memload.formats.remote.patience import Patience, Seen
from memload.memory.budget import local_processes
from memload.memory.endings import each_once
from memload.memory.threads import started
from memload.sampling.draws import Indices

_LEAST_WINDOW = 16 << 20  # bytes of batches that are held ahead of the loop, where the cache has room for them
_SHARE_AHEAD = 16  # of half the room, where the sets do not fit: what is fetched early takes the place of other blocks
_LATENCIES = 2  # that batches are held ahead at least, where half the room has so many bytes
_MOST_HELD = 1024  # batches
_MOST_FORESEEN = 1 << 22  # uses of blocks, whose order is known
_ANALYSED_AT_ONCE = 32  # batches
_NAP = 0.05  # seconds: with caches of several rooms, one of which is waited for

Blocks = NDArray[np.int64]


class NextUses:
    """The uses of the blocks of one cache in the batches that are planned.

    For each planned use it knows the next one of the same block, so that `cache.next_use` is right at any time.

    Args:
        cache: the cache, whose `next_use` is kept up to date.
    """

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        cache.next_use.fill(NEVER)
        self._last = np.full(len(cache.next_use), -1, dtype=np.int64)  # the place of each block's last planned use
        self._after = np.empty(1 << 12, dtype=np.int32)  # at the place of a use: the next batch that uses its block
        self._count = 0

    def plan(self, number: int, blocks: Blocks) -> int:
        """Append a batch that uses these blocks; return the place of its first use."""
        first, end = self._count, self._count + len(blocks)
        if end > len(self._after):
            self._after = np.resize(self._after, max(end, 2 * len(self._after)))
        before = self._last[blocks]
        again = before >= 0
        self._after[before[again]] = number
        self._cache.next_use[blocks[~again]] = number
        self._after[first:end] = NEVER
        self._last[blocks] = np.arange(first, end)
        self._count = end
        self._cache.table.want(blocks, True)
        return first

    def use(self, first: int, blocks: Blocks) -> None:
        """Note that a batch holds its blocks from now on: their next uses are those after it."""
        after = self._after[first : first + len(blocks)]
        self._cache.next_use[blocks] = after
        spent = blocks[after == NEVER]
        self._last[spent] = -1
        self._cache.table.want(spent, False)

    def end(self) -> None:
        """Forget all uses."""
        self._cache.next_use.fill(NEVER)
        self._cache.table.want(np.arange(self._cache.table.blocks), False)


@dataclass
class HeldBatch:
    """A planned batch.

    Attributes:
        rows: its rows.
        parts: for each cache its number, the blocks, and the place of the first use of these.
        missing: for each cache, once the batch is held, the blocks that are not there yet.
        nbytes: bytes of its blocks.
        lets_go: for each cache, once the batch is held, what lets go of the blocks.
    """

    rows: Indices
    parts: list[tuple[int, Blocks, int]]
    missing: list[Blocks] = field(default_factory=list)
    nbytes: int = 0
    lets_go: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.let_go = each_once(self.lets_go)


class ReadAhead:
    """Holds the blocks of planned batches, in order, and gives each batch to a gatherer once its blocks are there.

    A thread of its own does so, from `start` to `stop`.

    Args:
        gatherer: what gathers.
        columns: what it reads.
        caches: what fetches their blocks.
        batch_rows: rows of a batch that is cut from the stream of rows.
        drop_last: whether the last rows are left out if they are fewer.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        columns: Sequence[AnyColumn],
        caches: Sequence[BlockCache],
        batch_rows: int,
        drop_last: bool,
    ) -> None:
        self.lock = threading.RLock()  # taken in C, which no interrupt divides, and not by the condition, in Python
        self.changed = threading.Condition(self.lock)
        self._at_work = threading.RLock()  # the thread has it: Python takes one for ended once its join is interrupted
        self.pushed = self.delivered = 0
        self.error: BaseException | None = None
        self.ended = False
        self._gatherer, self._caches = gatherer, list(caches)
        self._blocks_of = _core.BlocksOf(list(columns))
        self._batch_rows, self._drop_last = batch_rows, drop_last
        self._stream: deque[Indices] = deque()
        self._streamed = 0
        self._finished = self._stopped = False
        self._cut: deque[Indices] = deque()  # batches whose blocks are not known yet
        self._planned: deque[HeldBatch] = deque()
        self._held: deque[HeldBatch] = deque()
        self._out: deque[HeldBatch] = deque()
        self._uses = [NextUses(cache) for cache in self._caches]
        self._planned_batches = self._foreseen = self._held_bytes = 0
        self._begun_bytes = self._fetched_bytes = 0  # of the batches held so far, and of what was missing of them
        self._admissions = [link().admission(host) for host in {cache.objects.host for cache in self._caches}]
        self._rooms = list({id(cache.room): cache.room for cache in self._caches}.values())
        self._awaited: HeldBatch | None = None
        self._patience: list[Patience] = []  # of the waiting for that batch
        self._most = min(cache.limit for cache in self._caches) // (2 * local_processes())
        self._fits = all(_fits(room, self._caches) for room in self._rooms)
        self._thread = threading.Thread(target=self._run, name="memload-read-ahead", daemon=True)

    # What the loop calls.

    def start(self) -> None:
        """Start the thread. Raises ThreadLimitError where the system gives none."""
        started([self._thread])

    def extend(self, rows: Indices) -> None:
        """Append rows to the stream, of which batches are cut."""
        with self.lock:
            self._stream.append(rows)
            self._streamed += len(rows)
            self._cut_stream()
        self._wake()

    def push(self, rows: Indices) -> None:
        """Append a batch."""
        with self.lock:
            self._cut.append(rows)
        self._wake()

    def finish(self) -> None:
        """Mark the end of the plan."""
        with self.lock:
            self._finished = True
            if self._streamed and not self._drop_last:
                self._cut.append(self._taken(self._streamed))
        self._wake()

    def gave(self) -> None:
        """Let go of the blocks of the batch that the loop has now."""
        with self.lock:
            self.delivered += 1
            batch = self._out[0]
            batch.let_go()  # before it is left out: an interrupt may come between any two steps
            self._out.popleft()
            self._held_bytes -= batch.nbytes
        self._wake()

    def stop(self) -> list[Indices]:
        """End the thread; return the rows of the batches that the gatherer did not get, and last those of none.

        May be called again, which ends what an interrupt has left.
        """
        with self.lock:
            self._stopped = True
            self.changed.notify_all()
        self._wake()
        with contextlib.suppress(RuntimeError):  # it was not started
            self._thread.join()
        with self._at_work:
            return self._end()

    def _end(self) -> list[Indices]:
        left = [batch.rows for batch in (*self._held, *self._planned)] + list(self._cut)
        for batch in (*self._held, *self._out, *self._planned):  # of planned ones the first may be held in part
            batch.let_go()
        for uses in self._uses:
            uses.end()
        for batches in (self._held, self._out, self._planned):
            batches.clear()
        return [*left, self._taken(self._streamed)]

    def _wake(self) -> None:
        for room in self._rooms:
            room.call()

    def _cut_stream(self) -> None:
        while self._streamed >= self._batch_rows:
            self._cut.append(self._taken(self._batch_rows))

    def _taken(self, count: int) -> Indices:
        """Return the first rows of the stream."""
        pieces: list[Indices] = []
        self._streamed -= count
        while count and self._stream:  # which an interrupt may have left with less
            rows = self._stream.popleft()
            pieces.append(rows[:count])
            if len(rows) > count:
                self._stream.appendleft(rows[count:])
            count -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.int64), *pieces])

    # What the thread does.

    def _run(self) -> None:
        with self._at_work:
            self._work()

    def _work(self) -> None:
        try:
            while not self._stopped:
                seen = [Seen.of(room) for room in self._rooms]
                moved = self._plan_more() + self._hold_more() + self._push_more()
                if not moved:
                    self._wait(seen)
        except BaseException as error:  # the loop raises it, behind the batches before
            with self.lock:
                self.error = error
                self.changed.notify_all()

    def _wait(self, seen: list[Seen]) -> None:
        longest = 1.0 if len(self._rooms) == 1 else _NAP
        front = self._held[0] if self._held else None
        if front is not self._awaited:
            self._awaited, self._patience = front, [Patience(cache) for cache in self._caches]
        for k, blocks in enumerate(front.missing if front else []):
            if len(blocks):
                number = front.parts[k][0] if front else 0
                room = self._rooms.index(self._caches[number].room)
                self._patience[number].wait(seen[room], blocks, longest)
                return
        self._rooms[0].wait(seen[0].events, longest)

    def _plan_more(self) -> bool:
        """Find the blocks of some more batches."""
        done = 0
        while done < _ANALYSED_AT_ONCE and self._cut and self._foreseen < _MOST_FORESEEN and not self._stopped:
            with self.lock:
                rows = self._cut.popleft()
            batch = HeldBatch(rows, [])
            for cache, blocks in self._find(rows):
                number = self._caches.index(cache)
                batch.parts.append((number, blocks, self._uses[number].plan(self._planned_batches, blocks)))
                batch.nbytes += cache.bytes_of(blocks)
                self._foreseen += len(blocks)
            self._planned_batches += 1
            self._planned.append(batch)
            done += 1
        return done > 0

    def _find(self, rows: Indices) -> Any:
        try:
            return self._blocks_of(np.ascontiguousarray(rows))
        except IndexError:  # the gatherer raises it at the right batch
            return []

    def _hold_more(self) -> bool:
        done = False
        while self._planned and not self._stopped and self._may_hold(self._planned[0]):
            batch = self._planned[0]
            for number, blocks, first in batch.parts[len(batch.missing) :]:
                batch.missing.append(self._caches[number].begin(blocks))
                batch.lets_go.append(partial(self._caches[number].let_go, blocks))
                self._fetched_bytes += self._caches[number].bytes_of(batch.missing[-1])
                self._uses[number].use(first, blocks)
                self._foreseen -= len(blocks)
            self._begun_bytes += batch.nbytes
            with self.lock:
                self._held_bytes += batch.nbytes
                self._held.append(self._planned.popleft())
            done = True
        return done

    def _may_hold(self, batch: HeldBatch) -> bool:
        if not self._held and not self._out:
            return True
        most = self._most
        if not self._fits:
            most = max(most // _SHARE_AHEAD, min(max(2 * batch.nbytes, self._latencies_ahead()), most))
        held = self._held_bytes + batch.nbytes
        if held > most or len(self._held) + len(self._out) >= _MOST_HELD:
            return False
        return held <= _LEAST_WINDOW or not all(one.is_provided for one in self._admissions)

    def _latencies_ahead(self) -> int:
        """Return the bytes of batches that the loop has while a request is answered, and once more."""
        product = max(admission.product for admission in self._admissions)
        return int(_LATENCIES * product * self._begun_bytes / max(1, self._fetched_bytes))

    def _push_more(self) -> bool:
        done = False
        while self._held and not self._stopped and self._is_there(self._held[0]):
            with self.lock:
                batch = self._held.popleft()
                self._out.append(batch)
            self._gatherer.push(batch.rows)
            self._pushed_one()
            done = True
        if self._finished and not (self.ended or self._cut or self._planned or self._held):
            self._gatherer.finish()
            with self.lock:
                self.ended = True
                self.changed.notify_all()
        return done

    def _pushed_one(self) -> None:
        with self.lock:
            self.pushed += 1
            self.changed.notify_all()

    def _is_there(self, batch: HeldBatch) -> bool:
        for k, blocks in enumerate(batch.missing):
            if len(blocks):
                batch.missing[k] = self._caches[batch.parts[k][0]].proceed(blocks)
        return not any(map(len, batch.missing))


def _fits(room: _core.CacheRoom, caches: Sequence[BlockCache]) -> bool:
    """Return whether a room can have all blocks of the caches that share it, so that nothing needs to go."""
    sharing = [cache for cache in caches if cache.room is room]
    return sum(cache.nbytes for cache in sharing) <= min(cache.limit for cache in sharing)
