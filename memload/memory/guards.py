"""Refuse what cannot fit into memory or onto a disk before it begins, with the figures."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

from memload._core import RowCache, free_spares
from memload.errors import DiskSpaceError, MemorySpaceError
from memload.memory.budget import Memory, disk_free, local_processes, memory, memory_to_take, process_bytes
from memload.memory.limits import MemoryLimit
from memload.sizes import format_size

MARGIN = 0.05
"""The share of free memory that is left to other processes."""
_LOOK_BYTES, _LOOK_SHARE = 32 << 20, 1 / 64  # filled between two checks: the larger of both


def free_memory(*, shared: bool = False) -> tuple[int, MemoryLimit | None]:
    """Return the bytes that this program's processes can still take together, and the limit on this process alone.

    Caches that are still filling count as full, in all processes.

    Args:
        shared: whether the memory will be shared by the processes.
    """
    found, unfilled = memory_to_take(), RowCache.unfilled()
    found = found.to_share() if shared else found
    own = found.own
    together = max(0, found.free_together - local_processes() * unfilled)
    return together, None if own is None else replace(own, left=max(0, own.left - unfilled))


def check_memory(
    need: int,
    what: str,
    instead: str,
    free: Memory | None = None,
    processes: int = 1,
    *,
    addresses: int = 0,
    mapped: bool = False,
) -> None:
    """Raise MemorySpaceError if this process cannot take `need` bytes.

    Args:
        need: bytes.
        what: the start of the message: the thing that takes the bytes.
        instead: the end of the message: the advice.
        free: free bytes; None asks the system and its limits.
        processes: processes of this machine that each take as much.
        addresses: bytes of address space that it takes, where these are more than `need`.
        mapped: whether the address space is mapped already and only its pages are missing.
    """
    promised = RowCache.unfilled() if free is None else 0
    taken = max(need, addresses)  # limits on address space count untouched bytes too
    found = memory_to_take((max(need * processes, taken) + promised) / (1 - MARGIN)) if free is None else free
    own = None if mapped else found.own
    fits_own = own is None or taken + promised <= own.left * (1 - MARGIN)
    if fits_own and need * processes + promised <= found.free_together * (1 - MARGIN):
        return
    if processes > 1:
        what = f"{what}, in each of {processes} processes (LOCAL_WORLD_SIZE) {format_size(need)},"
    if own is not None and not fits_own and taken > need:
        what = f"{what}, with {format_size(taken)} of addresses,"
    need *= processes
    full = f", {format_size(promised)} of it for caches that are not full yet" if promised else ""
    raise MemorySpaceError(
        f"{what} takes {format_size(need)}; this process can still take {format_size(found.free)}{full} "
        f"({found.described}): {instead}",
        need=need,
        free=found.free,
    )


def check_copies(need: int, processes: int, what: str, instead: str) -> None:
    """Raise MemorySpaceError if `processes` of this machine can never have `need` bytes each.

    Memory that is free now is not considered, because some of the processes may have theirs already.
    """
    here = memory()
    usable = here.usable
    if processes * need <= usable:
        return
    raise MemorySpaceError(
        f"{what} takes {format_size(need)} in each of {processes} processes (LOCAL_WORLD_SIZE), "
        f"{format_size(processes * need)} in all, of {format_size(usable)} that there are ({here.described}): "
        f"{instead}",
        need=processes * need,
        free=here.free,
    )


class Filling:
    """Memory that threads are filling; it checks from time to time whether the rest still fits.

    Other processes may fill theirs meanwhile. A check cannot see the bytes that their threads have begun but not yet
    touched. So where others are seen to take memory, it leaves them as much as threads have under way here.

    Args:
        need: bytes.
        what: the start of messages: the thing that takes the bytes.
        instead: the end of messages: the advice.

    Raises:
        MemorySpaceError: the bytes do not fit.
    """

    def __init__(self, need: int, what: str, instead: str) -> None:
        self._need, self._what, self._instead = need, what, instead
        self._free = memory_to_take().free_together
        self._had, self._each = process_bytes(), max(_LOOK_BYTES, int(_LOOK_SHARE * need))
        self._begun = self._under_way = self._most_under_way = 0
        self._lock = threading.Lock()
        check_memory(need, what, instead, mapped=True)

    def begin(self, nbytes: int) -> None:
        """Count bytes that a thread is about to fill, until it calls `end`.

        Raises:
            MemorySpaceError: the bytes that are not filled yet do not fit any more.
        """
        with self._lock:
            self._under_way += nbytes
            self._most_under_way = max(self._most_under_way, self._under_way)
            looks_before, self._begun = self._begun // self._each, self._begun + nbytes
            if self._begun // self._each == looks_before:
                return
        free_spares()  # which would count as filled
        taken = process_bytes() - self._had
        what, left = f"what is left to be loaded by {self._what}", self._need - taken
        if self._free - memory().free_together - taken > _LOOK_BYTES:
            what, left = f"what others may have begun and {what}", left + self._most_under_way
        check_memory(left, what, self._instead, mapped=True)

    def end(self, nbytes: int) -> None:
        """Count bytes that a thread has filled or failed to fill."""
        with self._lock:
            self._under_way -= nbytes


SPACE_MARGIN = 1.2  # free bytes required for each byte to be written
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_space(target: Path, need: int) -> None:
    """Raise DiskSpaceError unless `need` bytes and a margin are free where `target` is or will be."""
    free = disk_free(target)
    if free < need * SPACE_MARGIN:
        raise DiskSpaceError(
            f"{target}: the files take {format_size(need)} and need {format_size(need * SPACE_MARGIN)} free, but the "
            f"file system has {format_size(free)} free; remove files, or write elsewhere",
            need=need,
            free=free,
        )


def is_full(error: OSError) -> bool:
    """Whether the error says that there is no room."""
    return error.errno in _NO_SPACE


def full_disk(target: Path, error: OSError) -> DiskSpaceError:
    """Return the error to raise for a full disk, once all written files are removed."""
    free = disk_free(target)
    return DiskSpaceError(
        f"{target}: the disk is full ({error.strerror}); what was written is removed, which leaves "
        f"{format_size(free)} free on its file system",
        free=free,
    )
