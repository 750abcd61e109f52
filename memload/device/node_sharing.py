"""What one process has of rows that processes of a machine share, and how long it has to stay.

                 export                  open, lock
    my memory ------------> handles ------------------> the others read it
    free, once no other process holds its lock    <---- close, unlock

A process may end in any way, which gives back its locks. Memory that others read outlives the rows of its owner, in
`_KEPT`; at its exit the owner waits for readers, `_PATIENCE` seconds at most.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from memload.device.node_memory import Exported, Opened, SharedFile
from memload.device.pinned_memory import PinnedMemory, Reads
from memload.errors import DeviceError

_PATIENCE = 10.0  # seconds


@dataclass
class _Own:
    """Memory of this process, and the lock of those that read it."""

    memory: Exported
    guard: SharedFile
    process: int = field(default_factory=os.getpid)

    def free_if_unread(self) -> bool:
        if self.process == os.getpid():
            if self.guard.is_read():
                return False
            self.memory.free()
            self.guard.close()
        return True


_KEPT: list[_Own] = []
"""Memory of rows that this process dropped, and others may read still."""
_STILL_READ: list[Any] = []
"""Memories of which nobody could tell whether a device of this process still reads them; they stay until it ends."""


def free_unread() -> int:
    """Free what was kept for other processes and is read no more; return how many memories are kept still."""
    _KEPT[:] = [own for own in _KEPT if not own.free_if_unread()]
    return len(_KEPT)


@functools.cache
def _at_exit() -> None:
    atexit.register(_leave)


_SHARES: weakref.WeakSet[NodeShare] = weakref.WeakSet()


def _leave() -> None:
    """At the exit of the process: close what others own, then wait for those who read what is ours."""
    for share in list(_SHARES):
        with contextlib.suppress(RuntimeError):  # the others are closed all the same
            share.close()
    end = time.monotonic() + _PATIENCE
    while (kept := free_unread()) and time.monotonic() < end:
        time.sleep(0.02)  # locks of files have no wait that ends
    if kept:
        warnings.warn(
            f"this process ends, and {kept} memories of its rows with it, which other processes read still: drop the "
            "dataset in all of them, and then call torch.distributed.barrier(), before one ends",
            RuntimeWarning,
            stacklevel=2,
        )


class NodeShare:
    """The memories of one load that this process owns or has open; closed when nobody has it any more.

    Args:
        own: the memory of this process, which it frees.
        device: the device that reads all of them.

    Attributes:
        reads: the reads of this process that may be under way.
    """

    def __init__(self, own: Exported, device: torch.device) -> None:
        self.device, self.reads = device, Reads()
        self._guard = SharedFile.create(1)
        self._process = os.getpid()
        self._opened: list[tuple[Opened, SharedFile]] = []
        self._ram: list[PinnedMemory] = []
        mine = _Own(own, self._guard)
        self._end = weakref.finalize(self, _end, mine, self.reads, self._opened, self._ram)
        self._end.atexit = False  # `_leave` does it, which waits
        _at_exit()
        _SHARES.add(self)
        free_unread()

    @property
    def guard(self) -> str:
        """The path of the lock that others hold while they read the memory of this process."""
        return self._guard.path

    def add(self, opened: Opened, guard: str) -> torch.Tensor:
        """Own the opened memory of another process, which knows by its lock that it is read; return the memory."""
        try:
            lock = SharedFile.open(guard, 1)
        except DeviceError:
            opened.close()
            raise
        lock.lock()
        self._opened.append((opened, lock))
        return opened.memory

    def pin(self, ram: torch.Tensor) -> None:
        """Pin RAM for the device for as long as this lives. Raises DeviceError."""
        memory = PinnedMemory.over(ram.view(1, -1), self.device, self.reads)
        memory.pin()
        self._ram.append(memory)

    def was_read(self) -> None:
        """Keep all memories until the device's current stream has finished the work queued now."""
        self.reads.note(self.device)

    def check_here(self) -> None:
        """Raise DeviceError in a process that was forked from the one that has the rows, and after `close`."""
        if os.getpid() != self._process:
            raise DeviceError(
                "rows that processes share belong to those of their group, and this one was forked from one of them: "
                "let it read the dataset in files (memload.FastLoader needs no worker processes)"
            )
        if not self._end.alive:
            raise DeviceError("rows that processes share were given back already: this process is at its end")

    def close(self) -> None:
        """Close all of it; rows are not to be read any more."""
        self._end()


def _end(own: _Own, reads: Reads, opened: list[tuple[Opened, SharedFile]], ram: list[PinnedMemory]) -> None:
    if own.process != os.getpid():
        return
    if not reads.wait():
        _STILL_READ.append((own, *opened, *ram))
        return
    ram.clear()
    for memory, lock in opened:
        with contextlib.suppress(RuntimeError):  # after a failed kernel, all calls fail
            memory.close()
        lock.close()
    opened.clear()
    if not own.free_if_unread():
        _KEPT.append(own)


def warn_of_readers() -> None:
    """Warn if memory that this process dropped is read by others, so that it is not free yet."""
    if kept := free_unread():
        warnings.warn(
            f"{kept} memories of rows that this process dropped are read by other processes, and not free yet: drop "
            "the dataset in all processes before the next one is loaded",
            RuntimeWarning,
            stacklevel=2,
        )
