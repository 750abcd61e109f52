"""What a folder of a cache asks of its disk: parts of files that can be given back, and space."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

from memload._core import give_back
from memload.errors import DiskSpaceError
from memload.formats.remote.unfinished import PREFIX


def check_punching(folder: Path) -> None:
    """Raise an OSError unless the file system of a folder can give parts of files back."""
    with tempfile.TemporaryFile(dir=folder, prefix=PREFIX) as file:
        file.write(b"\0" * 8192)
        file.flush()
        try:
            give_back(file.fileno(), 0, 4096)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{folder}: its file system cannot give parts of files back ({error.strerror}); give cache= a folder "
                "on ext4, XFS, Btrfs or tmpfs",
            ) from None


@contextlib.contextmanager
def telling_of_a_full_disk(folder: str) -> Iterator[None]:
    """Raise a DiskSpaceError that names the folder where an error says that its disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskSpaceError(
            f"{folder}: the disk is full, and has no room for the empty files of the cache ({error}); make room, or "
            "give cache= a folder on another disk"
        ) from error
