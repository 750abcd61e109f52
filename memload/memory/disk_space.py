"""Whether a file system has room for what is to be written, and the error that says it has not."""

from __future__ import annotations

import errno
from pathlib import Path

from memload.errors import DiskSpaceError
from memload.memory.budget import disk_free
from memload.sizes import format_size

SPACE_MARGIN = 1.2  # of the bytes to be written, wanted free
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_space(target: Path, need: int) -> None:
    """Raise DiskSpaceError if so many bytes, and a margin, are not free where `target` is or will be."""
    free = disk_free(target)
    if free < need * SPACE_MARGIN:
        raise DiskSpaceError(
            f"{target}: {format_size(need)} are to be written and {format_size(need * SPACE_MARGIN)} wanted "
            f"free for that, but its file system has {format_size(free)}; free some, or write elsewhere",
            need=need,
            free=free,
        )


def is_full(error: OSError) -> bool:
    """Whether the error says that there is no room."""
    return error.errno in _NO_SPACE


def full_disk(target: Path, error: OSError) -> DiskSpaceError:
    """Return what to raise for it, once everything that was written is removed."""
    free = disk_free(target)
    return DiskSpaceError(
        f"{target}: the disk is full ({error.strerror}); what was written is removed, which leaves "
        f"{format_size(free)} free on its file system",
        free=free,
    )
