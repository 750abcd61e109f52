"""Sets of a cache folder whose table or mirror files are damaged: they are emptied in their places, and fetched again.

Only a set that no process reads is emptied: readers hold a lock on a byte of its table each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOCK_AT = 1 << 60  # of the room: whoever holds it, opens or changes a table
_PLACES_AT, _PLACES = (1 << 60) + 64, 64  # of a table: one for each process that reads the set
_FLOCK = struct.Struct("hhqqi4x")


def is_in_use(table: Path) -> bool:
    """Whether a process has a table open, this one included. Raises OSError."""
    try:
        file = os.open(table, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _PLACES_AT, _PLACES, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)


def emptied(room: Path, table: Path, etags: Path, mirrors: Sequence[tuple[Path, int]]) -> bool:
    """Empty a set whose table is damaged, or whose mirror files are; return False if a process reads it.

    Args:
        room: the file of the room.
        table: that of the table, which is made anew by whoever opens it next.
        etags: that of the ETags.
        mirrors: the mirror files, and the bytes of each.

    Raises:
        OSError: a file cannot be opened or changed.
    """
    with _locked(room):
        if is_in_use(table):
            return False
        for path, nbytes in ((table, 0), *mirrors, (etags, 0)):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                os.ftruncate(file, 0)
                os.ftruncate(file, nbytes)
            finally:
                os.close(file)
    return True


@contextlib.contextmanager
def _locked(room: Path) -> Iterator[None]:
    file = os.open(room, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _LOCK_AT, 1, 0))
        yield
    finally:
        os.close(file)
