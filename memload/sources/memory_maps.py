"""Which file a run of memory is mapped from, so that a memmap is read as the file that it is.

Read as a file, it travels to worker processes as a path, is asked for ahead of being read, and names itself in errors.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

# address range, permissions, offset, device, inode, path; see proc_pid_maps(5)
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)")


def mapped_file(address: int, nbytes: int) -> tuple[str, int] | None:
    """Return the path of the file whose bytes these are, and the offset of the first; None if there is none for sure.

    Writable private mappings do not count, since their bytes may differ from the file's; nor do files that have been
    removed or replaced, or lie in /dev/shm, where they come and go with their users.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        start, end, offset = (int(match[group], 16) for group in (1, 2, 4))
        if start <= address and address + nbytes <= end:
            device = os.makedev(int(match[5], 16), int(match[6], 16))
            shows_file = match[3][3] == "s" or match[3][1] == "-"
            path = match[8]
            return (path, offset + address - start) if shows_file and _is_file(path, device, int(match[7])) else None
    return None


def _is_file(path: str, device: int, inode: int) -> bool:
    try:
        found = Path(path).stat()
    except OSError:
        return False
    same = (found.st_dev, found.st_ino) == (device, inode)
    return same and stat.S_ISREG(found.st_mode) and not path.startswith("/dev/shm/")
