"""Memory that a cache gives back when the system runs short.

Nothing watches in the background: a pass looks before it hands a batch out, for at most a fiftieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from memload._core import RowCache
from memload.columns.fields import Field
from memload.engine.tiers.tier import LEAST_CACHE_BYTES
from memload.memory.budget import Memory, local_processes, memory

_LEAST_INTERVAL = 0.01  # seconds between two looks
_TIMES = 50  # of CPU that a look took, until the next
RESERVE = 0.1
"""Of what the process may use, what should stay free."""


def to_give_back(found: Memory, reserve: float = RESERVE) -> int:
    """Return how many bytes should be given back so that the reserve, and half as much again, is free; 0 if it is.

    Example:
        >>> from memload.memory.limits import CONTROL_GROUP, MemoryLimit
        >>> to_give_back(Memory(total=1000, available=500, limits=(MemoryLimit(CONTROL_GROUP, 400, 30),)))
        30
    """
    own = ((one.nbytes, one.left) for one in found.limits if one.of_one_process)
    return max(_short(usable, left, reserve) for usable, left in [(found.usable, found.free_together), *own])


def _short(usable: int, left: int, reserve: float) -> int:
    kept = int(reserve * usable)
    return 0 if left >= kept else kept + kept // 2 - left


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


def caches_of(fields: Iterable[Field]) -> list[RowCache]:
    """Return the caches of the hybrid tier that are in front of these fields."""
    storages = (storage for one in fields for storage in one.column.storages)
    return list({s.cache: None for s in storages if s.cache is not None})
