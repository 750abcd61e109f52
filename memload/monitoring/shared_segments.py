"""Shared memory of processes: files in memory that are mapped, or only open while they are sent.

torch's worker processes send batches in such files, and unlink them at once. No process maps a batch that waits to be
received: a process holds its descriptor, or its file is in /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from memload.monitoring.processes import PROC

FOLDER = Path("/dev/shm")
_OURS = "/memfd:memload"  # rows that ranks share; PSS counts each process's part of them
_BLOCK = 512  # bytes, the unit of st_blocks

Segment = tuple[str, int]
"""Device and inode of a file."""


@dataclass(frozen=True)
class SharedMemory:
    """Shared memory of processes, each segment once, in bytes.

    Attributes:
        nbytes: bytes that they have open or mapped, including batches that are being sent.
        received: the bytes of these that the first process has mapped.
    """

    nbytes: int = 0
    received: int = 0


def shared_memory(pids: Iterable[int], proc: Path = PROC, folder: Path = FOLDER) -> SharedMemory:
    """Return the shared memory of these processes.

    All allocated pages count, whichever process touched them. Files that cannot be read, or are gone, are left out.

    Args:
        pids: the numbers of the processes.
        proc: the folder of processes.
        folder: the folder of named shared memory.
    """
    pids = list(pids)
    found: dict[Segment, int] = {}
    for pid in pids:
        found.update(_open(proc / str(pid) / "fd", folder))
    mapped = {pid: dict(_mapped(proc / str(pid), folder)) for pid in pids}
    for segments in mapped.values():
        found = segments | found
    found.update(_named(pids, folder))
    received = mapped[pids[0]] if pids else {}
    return SharedMemory(sum(found.values()), sum(found[segment] for segment in received))


def _open(descriptors: Path, folder: Path) -> Iterator[tuple[Segment, int]]:
    try:
        names = os.listdir(descriptors)  # noqa: PTH208 - the names, which Path would wrap one by one
    except OSError:
        return
    for name in names:
        place = f"{descriptors}/{name}"
        try:
            if _is_shared(os.readlink(place), folder):  # noqa: PTH115
                yield _size(os.stat(place))  # noqa: PTH116
        except OSError:
            continue


def _mapped(process: Path, folder: Path) -> Iterator[tuple[Segment, int]]:
    try:
        lines = (process / "maps").read_bytes().splitlines()
    except OSError:
        return
    ours = [line for line in lines if b"/memfd:" in line or os.fsencode(folder) in line]  # of hundreds of lines
    for line in ours:
        parts = os.fsdecode(line).split(None, 5)
        if len(parts) == 6 and _is_shared(parts[5], folder):
            yield _of_mapping(process, *parts[:1], *parts[3:])


def _of_mapping(process: Path, span: str, device: str, inode: str, name: str) -> tuple[Segment, int]:
    """Return a mapped segment and its bytes: those of its file, or of the mapping if the file cannot be read."""
    for place in (process / "map_files" / span, Path(name)):
        try:
            segment, nbytes = _size(place.stat())
        except OSError:
            continue
        if segment == (device, int(inode)):
            return segment, nbytes
    begin, _, end = span.partition("-")
    return (device, int(inode)), int(end, 16) - int(begin, 16)


def _named(pids: Iterable[int], folder: Path) -> Iterator[tuple[Segment, int]]:
    """Yield the files of torch's strategy "file_system", whose names contain the process that made them."""
    prefixes = tuple(f"torch_{pid}_" for pid in pids)
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(prefixes):
            try:
                yield _size(entry.stat())
            except OSError:
                continue


def _is_shared(name: str, folder: Path) -> bool:
    return name.startswith((f"{folder}/", "/memfd:")) and not name.startswith(_OURS)


def _size(info: os.stat_result) -> tuple[Segment, int]:
    device = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}"
    return (device, info.st_ino), info.st_blocks * _BLOCK
