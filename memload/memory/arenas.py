"""Allocate the memory that rows are loaded into: private to this process, or one copy for all processes of a machine.

Shared memory is an anonymous file (memfd). The kernel frees it when the last process that has it ends, even if that
process is killed. A small file of lines "pid descriptor inode", one for each process that has the memory, leads to it:

    first process: locks the small file, loads, writes its line, unlocks
    others:        wait for the lock, read the lines, open /proc/PID/fd/DESCRIPTOR of a living one, add their own line
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from memload._core import HugeMemory
from memload.errors import MemloadError
from memload.memory.file_locks import is_at
from memload.memory.refusals import no_memory

_SHARED_MEMORY = Path("/dev/shm")
_NAME = "memload"
_private: dict[int, int] = {}  # bytes of each living arena, by its address


@dataclass(frozen=True, eq=False)
class Arena:
    """A block of memory; other processes attach to it by its `locator`, which is "" for private memory."""

    owner: object
    address: int
    nbytes: int
    locator: str = ""


def private_arena(nbytes: int) -> Arena:
    """Return zero-filled memory on huge pages, resident where it is written.

    Raises:
        MemoryError: there is no room for it among the addresses of this process.
    """
    memory = HugeMemory(nbytes)
    _private[memory.address] = nbytes
    weakref.finalize(memory, _private.pop, memory.address, None).atexit = False
    return Arena(memory, memory.address, nbytes)


def private_bytes() -> int:
    """Return the bytes of all living private arenas. Any thread may call it."""
    return sum(list(_private.values()))


def shared_arena(key: str, nbytes: int, load: Callable[[Arena], None]) -> Arena:
    """Return the shared memory of that key; the first process of this user that asks for it makes it and calls `load`.

    Other processes wait until it is filled. If the first process ends before, the next one starts again from zeros.

    Args:
        key: of letters and digits; equal for equal contents only.
        nbytes: equal for equal keys.
        load: fills an arena of zeros. An exception that it raises ends the attempt.
    """
    sweep()
    path = _folder() / f"{_prefix()}{key}"
    with _locked(path, os.O_CREAT) as lines:
        for line in lines.read().splitlines():
            arena = _attached(line, nbytes)
            if arena is not None:
                _enter(lines, path, arena)
                return arena
        arena = _made(nbytes)
        load(arena)
        lines.seek(0)
        lines.truncate()
        _enter(lines, path, arena)
        return arena


def is_shared(key: str, nbytes: int) -> bool:
    """Return whether a living process has the memory of that key; wait for a process that is filling it."""
    try:
        with _locked(_folder() / f"{_prefix()}{key}") as lines:
            return any(_lives(line, nbytes) for line in lines.read().splitlines())
    except FileNotFoundError:
        return False


def attach(locator: str, nbytes: int) -> Arena:
    """Return the shared memory with this locator, which another process of this machine holds.

    Raises:
        MemloadError: that process has ended, or is not visible from here.
    """
    arena = _attached(locator, nbytes)
    if arena is None:
        raise MemloadError(
            f"the rows lie in memory that process {locator.split()[0]} shared, which has ended, or which this process "
            "may not look at: keep that process alive until this one has its dataset, or open the files here"
        )
    return arena


def sweep() -> None:
    """Remove the small files that killed processes left behind: those without a living process in them."""
    for path in _folder().glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError), _locked(path, wait=False) as file:
            if not any(_lives(line) for line in file.read().splitlines()):
                path.unlink()


def _prefix() -> str:
    return f"memload-{os.geteuid()}-"


def _folder() -> Path:
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def _locked(path: Path, creation: int = 0, *, wait: bool = True) -> Iterator[IO[str]]:
    """Open and lock the small file; open it anew if another process has removed or replaced it before it was locked.

    Args:
        path: of the file.
        creation: `os.O_CREAT` makes it if it is missing.
        wait: whether to wait for the lock.

    Raises:
        FileNotFoundError: it is missing.
        BlockingIOError: another process has the lock, for which it was not to wait.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | creation, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(file.fileno(), path):
                yield file
                return


def _made(nbytes: int) -> Arena:
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    return _mapped(descriptor, nbytes)


def _attached(line: str, nbytes: int) -> Arena | None:
    descriptor = _opened(line)
    if descriptor is None:
        return None
    if os.fstat(descriptor).st_size != nbytes:
        os.close(descriptor)
        return None
    return _mapped(descriptor, nbytes)


def _opened(line: str) -> int | None:
    """Return a descriptor of the memory that a line names, None if it no longer exists."""
    pid, number, inode = map(int, line.split())
    place = Path(f"/proc/{pid}/fd/{number}")
    try:
        if not str(place.readlink()).startswith(f"/memfd:{_NAME}"):
            return None
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(descriptor).st_ino == inode:
        return descriptor
    os.close(descriptor)
    return None


def _lives(line: str, nbytes: int | None = None) -> bool:
    """Return whether the memory that a line names exists, with that size if one is given."""
    descriptor = _opened(line)
    if descriptor is None:
        return False
    with os.fdopen(descriptor, "rb") as file:
        return nbytes is None or os.fstat(file.fileno()).st_size == nbytes


def _mapped(descriptor: int, nbytes: int) -> Arena:
    try:
        owner = _Shared(mmap.mmap(descriptor, nbytes), descriptor)
    except OSError as error:
        os.close(descriptor)
        if error.errno != errno.ENOMEM:
            raise
        raise no_memory("shared memory for rows", nbytes) from None
    with contextlib.suppress(OSError):
        owner.memory.madvise(mmap.MADV_HUGEPAGE)  # refused where shared memory has none
    address = int(np.frombuffer(owner.memory, np.uint8).ctypes.data)
    return Arena(owner, address, nbytes, f"{os.getpid()} {descriptor} {os.fstat(descriptor).st_ino}")


class _Shared:
    """A mapping and the descriptor that others open; both close when the last reference to the memory goes."""

    def __init__(self, memory: mmap.mmap, descriptor: int) -> None:
        self.memory = memory
        weakref.finalize(self, os.close, descriptor).atexit = False  # the process's end closes it


def _enter(lines: IO[str], path: Path, arena: Arena) -> None:
    lines.seek(0, os.SEEK_END)
    lines.write(f"{arena.locator}\n")
    lines.flush()
    weakref.finalize(arena.owner, _leave, path, arena.locator)


def _leave(path: Path, locator: str) -> None:
    """Remove a process's line, and the file with the last one; a forked child keeps its parent's line.

    While another process holds the lock, the line stays. It then leads to no memory, and `sweep` removes it later.
    """
    if int(locator.split()[0]) != os.getpid():
        return
    with contextlib.suppress(OSError), _locked(path, wait=False) as file:
        left = [line for line in file.read().splitlines() if line != locator]
        if not left:
            path.unlink()
            return
        file.seek(0)
        file.truncate()
        file.writelines(f"{line}\n" for line in left)
