"""Shared memory of processes: files without a disk behind them, which are mapped, or only open and on their way.

torch's worker processes hand batches over in such files, which lose their name at once. A batch that waits to be
received is mapped by nobody: its descriptor lies in a process, or its file in /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC, FOLDER = Path("/proc"), Path("/dev/shm")
_OURS = "/memfd:memload"  # rows that ranks share, of which PSS counts each process's part
_BLOCK = 512  # of st_blocks

Segment = tuple[str, int]
"""Device and inode of a file."""


@dataclass(frozen=True)
class SharedMemory:
    """Shared memory of processes, each segment once, in bytes.

    Attributes:
        nbytes: that they have open, mapped or on their way.
        received: of it, what the first of them has mapped: batches on their way are not in it.
    """

    nbytes: int = 0
    received: int = 0


def shared_memory(pids: Iterable[int], proc: Path = PROC, folder: Path = FOLDER) -> SharedMemory:
    """Return the shared memory of these processes.

    Pages count that exist, whoever touched them. What may not be looked at, or is gone meanwhile, is left out.

    Args:
        pids: of the processes.
        proc: the folder of processes.
        folder: of shared memory with names.
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
    ours = [line for line in lines if b"/memfd:" in line or os.fsencode(folder) in line]  # of hundreds of others
    for line in ours:
        parts = os.fsdecode(line).split(None, 5)
        if len(parts) == 6 and _is_shared(parts[5], folder):
            yield _of_mapping(process, *parts[:1], *parts[3:])


def _of_mapping(process: Path, span: str, device: str, inode: str, name: str) -> tuple[Segment, int]:
    """Return a segment that is mapped; where its file cannot be asked, as large as its mapping."""
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
    """Files that torch's strategy "file_system" makes, whose names begin with the process that made them."""
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
