"""Sets of a cache folder whose table or mirror files are damaged: they are emptied in their places, and fetched again.

Only a set that no process reads is emptied: readers hold a lock on a byte of its table each.
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
        table: the file of the table, which is made anew by whoever opens it next.
        etags: that of the ETags.
        mirrors: the mirror files, and the bytes of each.

    Raises:
        OSError: a file cannot be opened or changed.
    """
    with room.lock():
        if BlockTable.is_in_use(str(table)):
            return False
        for path, nbytes in ((table, 0), *mirrors, (etags, 0)):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                os.ftruncate(file, 0)
                os.ftruncate(file, nbytes)
            finally:
                os.close(file)
    return True
