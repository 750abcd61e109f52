"""Find the file from which memory is mapped, so that a memmap is read as its file.

Read as a file, it travels to worker processes as a path, is asked for ahead of being read, and names itself in errors.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import itertools
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

# address range, permissions, offset, device, inode, path; see proc_pid_maps(5)
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)")


@dataclass(frozen=True)
class Mapping:
    """One line of /proc/self/maps with a file.

    Attributes:
        begin, end: the first address and the one after the last.
        offset: the offset in the file of the byte at `begin`.
        shows_file: whether its bytes are the file's as long as it was never writable: it is shared or read-only.
        shared: whether its bytes always are the file's; those of a private mapping may have been changed.
        path, device, inode: the file at the time of the mapping.
    """

    begin: int
    end: int
    offset: int
    shows_file: bool
    shared: bool
    path: str
    device: int
    inode: int

    def shows(self, path: Path) -> bool:
        """Whether `path` still leads to the mapped file: it exists and was not replaced."""
        try:
            found = path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode) and stat.S_ISREG(found.st_mode)


# struct procmap_query of linux/fs.h: size, flags, address, begin, end, permissions, page size, offset, inode; device;
# bytes of the name and of a build id; where these are wanted
_QUERY = struct.Struct("=9Q4I2Q")
_PROCMAP_QUERY = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17  # _IOWR('f', 17, struct procmap_query)
_WRITABLE, _SHARED = 2, 8
_LONGEST = 4096


def mapping_of(address: int) -> Mapping | None:
    """Return the mapping of a file at this address; None if there is none."""
    try:
        return asked(address)
    except OSError:  # a kernel before 6.11, which only has the list of all mappings
        return listed(address)


def asked(address: int) -> Mapping | None:
    """Ask the kernel for the mapping at an address. Raises OSError if the kernel does not support the question."""
    name = ctypes.create_string_buffer(_LONGEST)
    query = bytearray(_QUERY.pack(_QUERY.size, 0, address, *[0] * 8, _LONGEST, 0, ctypes.addressof(name), 0))
    with Path("/proc/self/maps").open("rb") as maps:
        try:
            fcntl.ioctl(maps, _PROCMAP_QUERY, query)
        except FileNotFoundError:  # nothing is mapped there
            return None
    _, _, _, begin, end, permissions, _, offset, inode, major, minor, *_ = _QUERY.unpack(query)
    path = os.fsdecode(name.value)
    if not path.startswith("/"):
        return None
    shared = bool(permissions & _SHARED)
    shows_file = shared or not permissions & _WRITABLE
    return Mapping(begin, end, offset, shows_file, shared, path, os.makedev(major, minor), inode)


def listed(address: int) -> Mapping | None:
    """Find the mapping that contains an address in the list of all mappings."""
    lines = Path("/proc/self/maps").read_bytes().split(b"\n")[:-1]  # thousands, in the order of their addresses
    at = bisect.bisect_right(lines, address, key=lambda line: int(line.partition(b"-")[0], 16)) - 1
    match = _LINE.fullmatch(os.fsdecode(lines[at]))
    if match is None:
        return None
    begin, end, offset = (int(match[group], 16) for group in (1, 2, 4))
    if not begin <= address < end:
        return None
    device = os.makedev(int(match[5], 16), int(match[6], 16))
    shared = match[3][3] == "s"
    return Mapping(begin, end, offset, shared or match[3][1] == "-", shared, match[8], device, int(match[7]))


# struct pm_scan_arg of linux/fs.h: size, flags; begin, end and end of the walk; an array for what is found, its length,
# the most pages to find; categories that a page must not be in, those that it must or must not, those of which it must
# be in one, those to return
_SCAN = struct.Struct("=12Q")
_PAGEMAP_SCAN = 3 << 30 | _SCAN.size << 16 | ord("f") << 8 | 16  # _IOWR('f', 16, struct pm_scan_arg)
_PAGE_OF_FILE, _PAGE_PRESENT, _PAGE_SWAPPED = 4, 8, 16


def was_written(mapping: Mapping) -> bool:
    """Whether pages of a private mapping were written to, or the kernel does not say: its bytes may not be the file's.

    A page that was written to is a copy, which is not the file's.
    """
    try:
        return found_written(mapping)
    except OSError:  # a kernel before 6.7, which only has the list of all mappings
        return listed_written(mapping)


def found_written(mapping: Mapping) -> bool:
    """Let the kernel look for a page that was written to. Raises OSError if it does not support the search."""
    found = ctypes.create_string_buffer(24)  # struct page_region: begin, end, categories
    pages = mapping.begin, mapping.end, 0, ctypes.addressof(found), 1, 1
    one_of = _PAGE_PRESENT | _PAGE_SWAPPED
    query = bytearray(_SCAN.pack(_SCAN.size, 0, *pages, _PAGE_OF_FILE, _PAGE_OF_FILE, one_of, one_of))
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        count: int = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, query)
    return count > 0


def listed_written(mapping: Mapping) -> bool:
    """Find the mapping in the list of all mappings with their pages, which takes tens of milliseconds."""
    head = f"{mapping.begin:08x}-{mapping.end:08x} ".encode()
    try:
        with Path("/proc/self/smaps").open("rb") as lines:
            own = itertools.dropwhile(lambda line: not line.startswith(head), lines)
            sizes = itertools.takewhile(lambda line: not line.startswith(b"VmFlags:"), own)
            found = {line.split()[0]: int(line.split()[1]) for line in itertools.islice(sizes, 1, None)}
        return found[b"Anonymous:"] + found[b"Swap:"] > 0
    except (OSError, KeyError, ValueError):
        return True


def mapped_file(address: int, nbytes: int) -> tuple[str, int] | None:
    """Return the path of the file with these bytes, and the offset of the first; None unless this is certain.

    A private mapping does not count if it is writable or was written to, because its bytes may differ from the file's.
    Neither does a file that was removed or replaced, or one in /dev/shm, where files are short-lived.
    """
    mapping = mapping_of(address)
    if mapping is None or address + nbytes > mapping.end or not mapping.shows_file:
        return None
    if not mapping.shared and was_written(mapping):
        return None
    if mapping.path.startswith("/dev/shm/") or not mapping.shows(Path(mapping.path)):
        return None
    return mapping.path, mapping.offset + address - mapping.begin
