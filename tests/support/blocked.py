"""Memory that does not answer: whoever reads it waits, as for a network disk that is gone, until it is let go."""

import ctypes
import mmap
import os
import platform
import select
import time
from pathlib import Path

import numpy as np

from memload._core import free_spares

_SYSCALL = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
_USER_MODE_ONLY, _API, _MISSING = 1, 0xAA, 1
_UFFDIO_API, _UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00


class Blocked:
    """Anonymous memory whose first reading waits until release(); see userfaultfd(2)."""

    def __init__(self, nbytes):
        self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(self._memory, dtype=np.uint8)
        self._file = _userfaultfd()
        _ioctl(self._file, _UFFDIO_API, (ctypes.c_uint64 * 3)(_API, 0, 0))
        _ioctl(self._file, _UFFDIO_REGISTER, (ctypes.c_uint64 * 4)(self.array.ctypes.data, nbytes, _MISSING, 0))

    def until_read(self):
        """Return once somebody waits for the memory."""
        select.select([self._file], [], [])

    def release(self):
        os.close(self._file)


def can_block():
    """Whether this kernel lets this user have such memory."""
    try:
        os.close(_userfaultfd())
    except OSError:
        return False
    return True


def threads_of_memload(expected=0, wait=200.0):
    """How many there are, once they are as many as expected, or after so many seconds.

    A thread that has been joined may still be listed for a moment.
    """
    end = time.monotonic() + wait
    while (count := _threads_listed()) != expected and time.monotonic() < end:
        time.sleep(0.01)
    return count


def threads_left():
    """How many threads of memload's are left once those that wait for the next pass of their loader were let go."""
    free_spares()
    return threads_of_memload()


def _threads_listed():
    return sum(_name_of(task).startswith("memload-") for task in Path("/proc/self/task").iterdir())


def _name_of(task):
    try:
        return (task / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return ""


def _userfaultfd():
    if _SYSCALL is None:
        raise OSError("the number of the system call is not known here")
    file = ctypes.CDLL(None, use_errno=True).syscall(_SYSCALL, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
    if file < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    return file


def _ioctl(file, request, argument):
    if ctypes.CDLL(None, use_errno=True).ioctl(file, ctypes.c_ulong(request), argument) != 0:
        raise OSError(ctypes.get_errno(), f"ioctl {request:#x}")
