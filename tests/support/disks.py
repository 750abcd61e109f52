"""What a disk is asked of by tests of cold files."""

import contextlib
import os
import resource
from pathlib import Path

import psutil


def evict(path):
    """Put a file out of the page cache. Pages that are mapped stay."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def descriptors_of(folder):
    """The descriptors of files in this folder that are open in this process, whose threads go on meanwhile.

    They are asked for one by one: to list them takes a descriptor, and threads that read may have taken all.
    """
    found = []
    for number in range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)):  # the lowest number is given first
        with contextlib.suppress(FileNotFoundError):  # none has this number
            target = Path(f"/proc/self/fd/{number}").readlink()
            found += [number] if target.is_relative_to(folder) else []
    return found


def can_be_read_directly(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return "tmpfs" not in {part.fstype for part in psutil.disk_partitions(all=True) if _holds(part.mountpoint, path)}


def _holds(mountpoint, path):
    """Whether it is the innermost mount above the path."""
    mounts = [part.mountpoint for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return mountpoint == max(mounts, key=len)
