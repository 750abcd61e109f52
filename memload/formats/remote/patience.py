"""Waiting for blocks of a cache that does not wait for processes which are suspended, or keep the room for long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memload._core import CacheRoom
from memload.errors import MemorySpaceError, ShardReadError
from memload.formats.remote.cache_folder import ARRIVING, MOVING, OF_OTHERS, STATE
from memload.sizes import format_size

if TYPE_CHECKING:
    from memload.formats.remote.block_cache import BlockCache

_LONGEST_WAIT = 120.0  # seconds without any progress, while other processes hold the room
_TAKE_OVER_AFTER = 30.0  # seconds in which none of the blocks has come, after which others' are asked for, too
_LOOK_AGAIN = 1.0  # seconds after which it is asked whether processes have ended
Blocks = NDArray[np.int64]


class Seen(NamedTuple):
    """What has happened in a room so far: its numbers of events and of calls."""

    events: int
    calls: int

    @classmethod
    def of(cls, room: CacheRoom) -> Seen:
        """Return the numbers of a room now."""
        return cls(room.events, room.calls)


class Patience:
    """Waits for blocks of a cache, and gives up where other processes keep them, or the room, for a long time.

    Blocks that another process asked for and does not bring are asked for again: it may be suspended.

    Args:
        cache: the cache.
    """

    longest: ClassVar[float] = _LONGEST_WAIT
    take_over_after: ClassVar[float] = _TAKE_OVER_AFTER

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._since = self._quiet_since = self._recovered = self._waited = time.monotonic()
        self._busy = self._since  # when blocks of the set were last seen to come
        self._moved_since: float | None = None  # since when another process is seen to write or remove a missing block
        self._left, self._events = -1, cache.room.events
        self._next_take_over = self.take_over_after

    def wait(self, seen: Seen, missing: Blocks, longest: float = _LOOK_AGAIN) -> None:
        """Wait until all missing blocks are there, or one of them is absent, or the room was called since `seen`.

        Where one is absent already, wait until anything has happened since `seen`, since that may have made room.

        Args:
            seen: what had happened before it was looked whether blocks are there.
            missing: blocks that were not.
            longest: seconds after which the wait ends anyway.

        Raises:
            MemorySpaceError: nothing has come for a long time, or can come.
            ShardReadError: another process began to write or to remove a block long ago, and has not ended that.
        """
        cache = self._cache
        if len(missing) != self._left:
            self._left, self._since = len(missing), time.monotonic()
        if cache.table.has_to_wait(missing):
            cache.table.wait_for(missing, seen.calls, longest)
        else:
            cache.room.wait(seen.events, longest)
        now = time.monotonic()
        self._leave_out(now - self._waited - longest - _LOOK_AGAIN, now)
        self._waited = now
        if now - self._recovered >= _LOOK_AGAIN:
            cache.recover()
            self._recovered = now
            self._show_that_it_brings(missing)
        if cache.room.events != self._events:
            self._events, self._quiet_since = cache.room.events, now
        if now - self._since > self._next_take_over:
            self._next_take_over = 2 * (now - self._since)
            cache.take_over(missing)
        if now - self._since > self.take_over_after:
            self._look_for_the_stuck(missing, now)

    def _leave_out(self, seconds: float, now: float) -> None:
        """Leave out time in which this process itself stood still, or had something else to do than to look."""
        if seconds > 0:
            self._since, self._quiet_since = min(self._since + seconds, now), min(self._quiet_since + seconds, now)
            self._busy = min(self._busy + seconds, now)
            if self._moved_since is not None:
                self._moved_since = min(self._moved_since + seconds, now)

    def _show_that_it_brings(self, missing: Blocks) -> None:
        """Show those who wait for room that a process with requests for missing blocks is not suspended."""
        states = self._cache.table.states(0, self._cache.table.blocks)[missing]
        if (states & (STATE | OF_OTHERS) == ARRIVING).any():
            self._cache.room.announce()

    def _look_for_the_stuck(self, missing: Blocks, now: float) -> None:
        """Raise an error if a missing block is written or removed for long, or none has come and none arrives."""
        cache = self._cache
        states = cache.table.states(0, cache.table.blocks)
        folder = cache.keeping.folder
        stuck = f"another process that reads through {folder} is suspended or stuck: let it go on, or end it"
        if not (states[missing] & (STATE | OF_OTHERS) == MOVING | OF_OTHERS).any():
            self._moved_since = None
        elif self._moved_since is None:
            self._moved_since = now
        elif now - self._moved_since > self.longest:
            raise ShardReadError(
                f"{cache.objects.url}: a block that is needed has been written or removed for "
                f"{self.longest:.0f} s; {stuck}",
                file=cache.objects.url,
            )
        busy = states & STATE
        arriving = states[(busy == ARRIVING) | (busy == MOVING)] & OF_OTHERS
        if len(arriving):
            self._busy = self._quiet_since if arriving.all() else now
        is_late = self._moved_since is None and now - max(self._since, self._busy) > self.longest
        if not is_late or not cache.is_lacking(missing[busy[missing] == 0]):
            return
        raise MemorySpaceError(
            f"the cache of {cache.objects.url} has {format_size(cache.limit)}, all of it in use, and "
            f"{format_size(cache.bytes_of(missing))} more are needed at once; give a larger cache_bytes="
            + (f", or if {stuck}" if len(arriving) else "")
        )
