"""Memory that caches, passes that have ended, and the C library's heap give back when the system runs short.

Nothing watches caches and the heap in the background: a pass looks before it hands a batch out, for at most a fiftieth
of the time.
Memory of passes that have ended is watched by a native thread as long as it is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from memload._core import RowCache, free_spares, free_spares_below, spare_bytes
from memload.columns.fields import Field
from memload.engine.tiers.tier import LEAST_CACHE_BYTES
from memload.memory.budget import Memory, local_processes, memory
from memload.memory.c_heap import heap_free_bytes, trim_heap

_LEAST_INTERVAL = 0.01  # seconds between two looks
_ASKED = 64 << 20  # bytes to give back, from which on it is asked what is free: that takes a millisecond
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
    return max(_short(left, int(reserve * usable)) for usable, left in _counted(found))


def _short(left: int, kept: int) -> int:
    return 0 if left >= kept else kept + kept // 2 - left


def _counted(found: Memory) -> list[tuple[int, int]]:
    """Return the bytes that may be used and those that are left, of all processes together and of this one alone."""
    own = ((one.nbytes, one.left) for one in found.limits if one.of_one_process)
    return [(found.usable, found.free_together), *own]


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
        wanted = to_give_back(memory())
        if wanted and spare_bytes():
            free_spares()
            wanted = to_give_back(memory())
        wanted = -(-wanted // local_processes())  # the others of this machine look, too
        self.next_look = _next_look(began)
        for cache in self.caches if wanted else ():
            held = cache.stats()["bytes"]
            cache.set_budget(max(LEAST_CACHE_BYTES, held - wanted))
            wanted -= held - cache.stats()["bytes"]
            if wanted <= 0:
                break


@dataclass
class HeapWatch:
    """Looks how much the C library's heap has free, now and then, and gives it back if memory is short.

    Loops that train on the CPU leave holes in the heap, which take memory until a tensor fits into one. They can be
    several times what is alive (`memload.planning.heap_surplus`), and grow from step to step.
    """

    next_look: float = 0.0

    def look(self) -> None:
        """Give back what is free if memory is short and the last look was long enough ago."""
        if time.monotonic() < self.next_look:
            return
        began = time.thread_time()
        if heap_free_bytes() >= _ASKED and to_give_back(memory()):
            trim_heap()
        self.next_look = _next_look(began)


HEAP_WATCH = HeapWatch()
"""That of this process, which has one heap."""


def _next_look(began: float) -> float:
    """Return when to look again, after a look that began at this time of the thread."""
    return time.monotonic() + max(_LEAST_INTERVAL, _TIMES * (time.thread_time() - began))


def watch_spares() -> None:
    """Free the memory that passes of this process have left for later ones if memory is short, now or while it is kept.

    A native thread looks meanwhile. It knows only what the machine has available, so it takes all that goes from there
    for memory that the limits on this process count.
    """
    if spare_bytes() < _ASKED:
        return
    found = memory()
    beyond = min(left - int(RESERVE * usable) for usable, left in _counted(found))
    if beyond < 0:
        free_spares()
    free_spares_below(max(1, found.available - beyond))  # slots that the loop still holds come later


def caches_of(fields: Iterable[Field]) -> list[RowCache]:
    """Return the caches of the hybrid tier that are in front of these fields."""
    storages = (storage for one in fields for storage in one.column.storages)
    return list({s.cache: None for s in storages if s.cache is not None})
