"""Files that processes lock with `flock`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

_LONGEST = 120.0  # seconds
_NAP = 0.002  # seconds between two attempts


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still the one at a path.

    Another process may remove or replace it after it was opened and before its lock is had.
    """
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def lock(descriptor: int, path: Path, longest: float = _LONGEST) -> None:
    """Lock an open file for this process alone, which others do for moments only.

    Args:
        descriptor: the open file.
        path: where it lies, for the error.
        longest: seconds to wait for it. The kernel's own waiting has no end where a suspended process has the lock.

    Raises:
        TimeoutError: another process has it all that time.
    """
    for _ in range(int(longest / _NAP) + 1):  # not by the clock, which goes on while this process is suspended
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_NAP)
    raise TimeoutError(
        errno.ETIMEDOUT,
        f"{path}: another process has its lock for {longest:.0f} s, and is suspended or stuck; let it go on, or end it",
    )
