"""What cannot fit is refused before it is begun, with the figures."""

from __future__ import annotations

import os

from memload.errors import DiskSpaceError, MemorySpaceError
from memload.memory.budget import Memory, disk_free, memlock_limit, memory
from memload.sizes import format_size

MARGIN = 0.05
"""Of free memory, what stays with everybody else."""
DISK_MARGIN = 0.2
"""Of what is written, what must be free besides."""


def check_memory(need: int, what: str, instead: str, free: Memory | None = None) -> None:
    """Raise MemorySpaceError if this process cannot take so many bytes.

    Args:
        need: bytes.
        what: that takes them, as the message begins.
        instead: what to do, as the message ends.
        free: what there is; None asks the system and the control groups.
    """
    found = memory() if free is None else free
    if need <= found.free * (1 - MARGIN):
        return
    of = f", and its control group allows {format_size(found.limit)}" if found.limit is not None else ""
    raise MemorySpaceError(
        f"{what} takes {format_size(need)}; this process can still take {format_size(found.free)} (the machine has "
        f"{format_size(found.total)}{of}): {instead}",
        need=need,
        free=found.free,
    )


def check_disk(need: int, path: str | os.PathLike[str], what: str) -> None:
    """Raise DiskSpaceError if so many bytes, and a fifth more, do not fit on the file system of `path`."""
    free = disk_free(path)
    if need * (1 + DISK_MARGIN) <= free:
        return
    raise DiskSpaceError(
        f"{what} takes {format_size(need)} at {path}, and {DISK_MARGIN:.0%} more should stay free; there are "
        f"{format_size(free)}: give another path, or free some of it",
        need=need,
        free=free,
    )


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
