"""Look at files that processes lock with `flock`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still the one at a path.

    Another process may remove or replace it after it was opened and before its lock is had.
    """
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
