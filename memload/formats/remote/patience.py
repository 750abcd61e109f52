"""Waiting for blocks of a cache, which gives up where other processes keep the room for a long time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memload._core import CacheRoom
from memload.errors import MemorySpaceError
from memload.formats.remote.cache_folder import ARRIVING, STATE
from memload.sizes import format_size

if TYPE_CHECKING:
    from memload.formats.remote.block_cache import BlockCache

_LONGEST_WAIT = 120.0  # seconds without any progress, while other processes hold the room
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
    """Waits for blocks of a cache, and gives up where other processes keep the room for a long time.

    Args:
        cache: the cache.
    """

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._since = time.monotonic()
        self._left = -1

    def wait(self, seen: Seen, missing: Blocks, longest: float = _LOOK_AGAIN) -> None:
        """Wait until all missing blocks are there, or one of them is absent, or the room was called since `seen`.

        Where one is absent already, wait until anything has happened since `seen`, since that may have made room.

        Args:
            seen: what had happened before it was looked whether blocks are there.
            missing: blocks that were not.
            longest: seconds after which the wait ends anyway.

        Raises:
            MemorySpaceError: nothing has come for a long time, or can come.
        """
        cache = self._cache
        if len(missing) != self._left:
            self._left, self._since = len(missing), time.monotonic()
        before = time.monotonic()
        if cache.table.has_to_wait(missing):
            cache.table.wait_for(missing, seen.calls, longest)
        else:
            cache.room.wait(seen.events, longest)
        if time.monotonic() - before >= longest:
            cache.table.recover()
        arriving = cache.table.states(0, cache.table.blocks) & STATE == ARRIVING if self._is_late else None
        if arriving is not None and not arriving.any():
            raise MemorySpaceError(
                f"the cache of {cache.objects.url} has {format_size(cache.limit)}, all of it in use, and "
                f"{format_size(cache.bytes_of(missing))} more are needed at once; give a larger cache_bytes="
            )

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._since > self.longest

    longest: ClassVar[float] = _LONGEST_WAIT
