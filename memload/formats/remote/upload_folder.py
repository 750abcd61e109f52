"""A folder of this machine in which shards are written before they go to a store.

TMPDIR/memload-upload-UID-XXXX/    one for each attempt at a part, locked by its writer and removed by it

What a killed writer left is removed by the next one that makes such a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from memload.memory.file_locks import is_at


class UploadFolder:
    """A new folder for shards that wait to be uploaded; it belongs to the process that made it.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        prefix = f"memload-upload-{os.getuid()}-"
        with os.scandir(tempfile.gettempdir()) as found:
            for left in [entry.path for entry in found if entry.name.startswith(prefix)]:
                _remove_if_left(Path(left))
        self._lock = -1
        while self._lock < 0:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            self._lock = _locked(self.path)

    def remove(self) -> None:
        """Remove the folder. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Close the descriptor of the lock, and leave the folder to its owner. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the lock of a folder; -1 if another writer took it for left before that."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    with contextlib.suppress(OSError):  # a file system without locks, on which nobody removes it
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever removes the folder holds it until that is done
    if is_at(lock, folder):
        return lock
    os.close(lock)
    return -1


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose writer has ended, as its lock tells."""
    with contextlib.suppress(OSError):  # alive, gone meanwhile, or on a file system without locks
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
