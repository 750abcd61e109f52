"""Disks that become full while something is written: an error says so, old rows are whole, and it goes on with room."""

import ctypes
import errno
import os
import resource
from collections import Counter

from soak.forked import forked, status_of
from soak.jobs import KINDS, Appending, Converting

import memload

NEWNS, REMOUNT, PRIVATE = 0x20000, 0x20, 1 << 18 | 1 << 14  # of unshare(2) and mount(2)
FINISHED, TOLD = 0, 40  # exit statuses


def attack(rng, folder):
    """Write on a small file system, or under a limit for files, where that cannot be had."""
    kind = rng.choice(KINDS)
    way = rng.choice(["disk", "limit"]) if os.geteuid() == 0 else "limit"
    most = int(10 ** rng.uniform(3.5, 7))
    child = forked(lambda: (on_small_disk if way == "disk" else under_limit)(kind, rng, folder, most))
    status = status_of(child)
    assert status in (0, TOLD), status
    name = "a full disk" if way == "disk" else "a limit for files"
    return Counter({f"{kind.__name__.lower()} on {name}: {'told' if status == TOLD else 'there was room'}": 1})


def on_small_disk(kind, rng, folder, most):
    """In a name space of mounts that nobody else sees, a file system in memory that is enlarged afterwards."""
    mount("unshare", NEWNS)
    mount("mount", b"none", b"/", None, PRIVATE, None)
    room = 8 << 20 if kind in (Appending, Converting) else 64 << 10  # for what is there before
    mount("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=%d" % (room + most))
    job = kind(rng, folder)
    job.prepare()
    told = told_of_space(job)
    job.unharmed()
    mount("mount", b"tmpfs", os.fsencode(folder), None, REMOUNT, b"size=200m")
    job.finished()
    os._exit(TOLD if told else FINISHED)


def under_limit(kind, rng, folder, most):
    """Files may not be larger than so many bytes, which no look at the disk tells beforehand."""
    job = kind(rng, folder)
    job.prepare()
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    told = told_of_space(job)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    job.unharmed()
    job.finished()
    os._exit(TOLD if told else FINISHED)


def told_of_space(job):
    """Whether an error said that there is no room."""
    try:
        job.run()
    except OSError as error:
        if isinstance(error, memload.DiskSpaceError) or error.errno in (errno.EFBIG, errno.ENOSPC):
            return True
        raise
    return False


def mount(call, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), call)
