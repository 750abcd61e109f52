"""Sets of a cache folder whose table or mirror files are damaged or missing: they are emptied, and fetched again.

Only a set that no process reads is emptied: readers hold a lock on a byte of its table each. Those whose table somebody
removed are not seen, and keep their mirror files: other ones take the places of these.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from memload._core import BlockTable, CacheRoom


def emptied(room: CacheRoom, table: Path, etags: Path, mirrors: Sequence[tuple[Path, int]]) -> bool:
    """Empty a set whose table is damaged, or whose mirror files are; return False if a process reads it.

    Args:
        room: the room, whose lock whoever opens or changes a table has.
        table: the file of the table, which whoever opens it next fills. It comes last: until then the set is damaged.
        etags: that of the ETags.
        mirrors: the mirror files, and the bytes of each.

    Raises:
        OSError: a file cannot be opened or changed.
    """
    with room.lock():
        if BlockTable.is_in_use(str(table)):
            return False
        for path, nbytes in mirrors:
            os.close(_opened(path))  # refuses a link of somebody else's
            path.unlink()
            _fill(path, nbytes)
        _fill(etags, 0)
        _fill(table, 0)
    return True


def _fill(path: Path, nbytes: int) -> None:
    """Make a file of so many bytes, all zeros."""
    file = _opened(path)
    try:
        os.ftruncate(file, 0)
        os.ftruncate(file, nbytes)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
