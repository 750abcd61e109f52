"""Memory that a cache gives back when the system runs short.

Nothing watches in the background: a pass looks before it hands a batch out, for at most a fiftieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from memload._core import RowCache
from memload.memory.budget import Memory, local_processes, memory
from memload.tiers.tier import LEAST_CACHE_BYTES

_LEAST_INTERVAL = 0.01  # seconds between two looks
_TIMES = 50  # of CPU that a look took, until the next
RESERVE = 0.1
"""Of what the process may use, what should stay free."""


def to_give_back(found: Memory, reserve: float = RESERVE) -> int:
    """Return how many bytes should be given back so that the reserve, and half as much again, is free; 0 if it is.

    Example:
        >>> to_give_back(Memory(total=1000, available=500, limit=400, available_in_limit=30))
        30
    """
    usable = found.total if found.limit is None else min(found.total, found.limit)
    kept = int(reserve * usable)
    return 0 if found.free >= kept else kept + kept // 2 - found.free


@dataclass
class Pressure:
    """Looks how much memory is left, now and then, and shrinks caches when it is too little."""

    caches: tuple[RowCache, ...]
    next_look: float = 0.0

    @classmethod
    def on(cls, caches: Iterable[RowCache]) -> Pressure | None:
        """Return what looks after those of these caches that shrink; None if there is none."""
        found = tuple(cache for cache in caches if cache.shrinks)
        return cls(found) if found else None

    def look(self) -> None:
        """Shrink the caches if memory is short and the last look was long enough ago."""
        if time.monotonic() < self.next_look:
            return
        began = time.thread_time()
        wanted = -(-to_give_back(memory()) // local_processes())  # the others of this machine look, too
        self.next_look = time.monotonic() + max(_LEAST_INTERVAL, _TIMES * (time.thread_time() - began))
        for cache in self.caches if wanted else ():
            held = cache.stats()["bytes"]
            cache.set_budget(max(LEAST_CACHE_BYTES, held - wanted))
            wanted -= held - cache.stats()["bytes"]
            if wanted <= 0:
                break
