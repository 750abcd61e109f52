"""Folders of sets in the making: their makers hold a lock on them, so those of processes that were killed are told.

cache/.new-XXXXXXXX/set.json     which files it is to have, written before these
cache/.new-XXXXXXXX/shard-...    its mirror files, so far without content
cache/.new-XXXXXXXX/blocks       its table, likewise
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = ".new-"
_LONGEST_LOCK = 30.0
_MADE = re.compile(r"blocks|chunks|shard-[\w-]+\.safetensors")  # which set.json does not name, or that was not made yet


@contextlib.contextmanager
def being_made(folder: Path) -> Iterator[Path]:
    """Make a folder of a set in `folder`, locked while the body runs; remove it then unless it was renamed.

    Raises:
        OSError: it cannot be made.
    """
    made, lock = _locked(folder)
    try:
        yield made
    finally:
        _remove(made)
        os.close(lock)


def _locked(folder: Path) -> tuple[Path, int]:
    while True:
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
        try:
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another process took it for a killed one's before it was locked
        with contextlib.suppress(OSError):  # a file system without locks, where nobody gets one
            if not _lock(lock):
                os.close(lock)
                continue  # it has it still, and may be suspended
        if made.exists():
            return made, lock
        os.close(lock)


def _lock(folder: int) -> bool:
    """Lock a folder for this process; return False if another one has it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time have a folder.

    Where the file system has no locks, or a process keeps it for `_LONGEST_LOCK` seconds, do not wait for it.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            end = time.monotonic() + _LONGEST_LOCK
            while not _lock(descriptor) and time.monotonic() < end:
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> int:
    """Remove what killed processes left of folders in the making; return how many folders. Other files stay."""
    return sum(_removed_if_left(path) for path in folder.glob(f"{PREFIX}*"))


def _removed_if_left(path: Path) -> bool:
    """Remove a folder that nobody makes any more. One whose maker is about to lock it makes another one instead."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # it is no folder, or it has its name by now
    try:
        return _lock(lock) and _remove(path)  # who makes it has locked it
    except OSError:
        return False
    finally:
        os.close(lock)


def _remove(made: Path) -> bool:
    """Remove a folder in the making, if it is there and has no other files."""
    with contextlib.suppress(OSError):
        stated = _stated(made / "set.json")
        for path in list(made.iterdir()):
            if path.name in stated or _MADE.fullmatch(path.name):
                path.unlink()
        (made / "set.json").unlink(missing_ok=True)  # last, since it says what else may go
        made.rmdir()
        return True
    return False


def _stated(path: Path) -> set[str]:
    """Return the names of the mirror files of a set; none if its maker was killed before it made one."""
    try:
        return {str(name) for name, _ in json.loads(path.read_text())["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
