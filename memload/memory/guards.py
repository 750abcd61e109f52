"""What cannot fit is refused before it is begun, with the figures."""

from __future__ import annotations

import os
import threading

from memload._core import RowCache
from memload.errors import MemorySpaceError
from memload.memory.budget import Memory, local_processes, memlock_limit, memory, process_bytes
from memload.sizes import format_size

MARGIN = 0.05
"""Of free memory, what stays with everybody else."""
_LOOK_BYTES, _LOOK_SHARE = 32 << 20, 1 / 64  # that are filled between two looks: the larger of so many, and of all


def free_memory() -> int:
    """Return what this process can still take, less what caches of all processes that are not full yet will."""
    return max(0, memory().free - local_processes() * RowCache.unfilled())


def check_memory(need: int, what: str, instead: str, free: Memory | None = None, processes: int = 1) -> None:
    """Raise MemorySpaceError if this process cannot take so many bytes.

    Args:
        need: bytes.
        what: that takes them, as the message begins.
        instead: what to do, as the message ends.
        free: what there is; None asks the system and the control groups.
        processes: of this machine that each take as much.
    """
    found, promised = (memory(), RowCache.unfilled()) if free is None else (free, 0)
    if need * processes + promised <= found.free * (1 - MARGIN):
        return
    if processes > 1:
        what = f"{what}, in each of {processes} processes (LOCAL_WORLD_SIZE) {format_size(need)},"
    need *= processes
    full = f", {format_size(promised)} of it for caches that are not full yet" if promised else ""
    of = f", and its control group allows {format_size(found.limit)}" if found.limit is not None else ""
    raise MemorySpaceError(
        f"{what} takes {format_size(need)}; this process can still take {format_size(found.free)}{full} (the machine "
        f"has {format_size(found.total)}{of}): {instead}",
        need=need,
        free=found.free,
    )


def check_copies(need: int, processes: int, what: str, instead: str, found: Memory | None = None) -> None:
    """Raise MemorySpaceError if so many processes of this machine can never have so many bytes each.

    What is free now is not asked: some of them may have theirs already.
    """
    here = memory() if found is None else found
    usable = here.total if here.limit is None else min(here.total, here.limit)
    if processes * need <= usable:
        return
    raise MemorySpaceError(
        f"{what} takes {format_size(need)} in each of {processes} processes (LOCAL_WORLD_SIZE), "
        f"{format_size(processes * need)} in all, of {format_size(usable)} that there are: {instead}",
        need=processes * need,
        free=here.free,
    )


class Filling:
    """Memory while threads fill it: looks now and then whether the rest still fits, since others may fill theirs, too.

    Args:
        need: bytes.
        what: that takes them, as messages begin.
        instead: what to do, as they end.

    Raises:
        MemorySpaceError: they do not fit.
    """

    def __init__(self, need: int, what: str, instead: str) -> None:
        self._need, self._what, self._instead = need, what, instead
        self._had, self._each = process_bytes(), max(_LOOK_BYTES, int(_LOOK_SHARE * need))
        self._begun, self._lock = 0, threading.Lock()
        check_memory(need, what, instead)

    def begin(self, nbytes: int) -> None:
        """Count bytes that a thread is about to fill.

        Raises:
            MemorySpaceError: what is not there yet does not fit any more.
        """
        with self._lock:
            looks_before, self._begun = self._begun // self._each, self._begun + nbytes
            if self._begun // self._each == looks_before:
                return
        left = self._need - (process_bytes() - self._had)
        check_memory(left, f"what is left to be loaded by {self._what}", self._instead)


def check_pinned(need: int, what: str) -> None:
    """Raise MemorySpaceError if so many bytes may not be locked in memory: `ulimit -l`, which root may exceed."""
    limit = memlock_limit()
    if limit is None or need <= limit or os.geteuid() == 0:
        return
    raise MemorySpaceError(
        f"{what} locks {format_size(need)} in memory; this process may lock {format_size(limit)} (ulimit -l): raise "
        "the limit, or leave the memory pageable",
        need=need,
        free=limit,
    )
