"""Memory of a process and its descendants, as `/proc` reports it.

Functions that parse take text. Functions that read return None, or leave an entry out, where a file is gone, forbidden
or unknown to this kernel: processes may begin and end at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from memload.memory.budget import parse_meminfo

PROC = Path("/proc")

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ResidentPages:
    """Pages of one process that are in memory, in bytes.

    Attributes:
        rss: all of them; what is shared with other processes counts in each.
        private: pages that no file backs and no other program maps; pages that a forked child has not written count in
            parent and child.
    """

    rss: int
    private: int


@dataclass(frozen=True)
class Proportional:
    """Resident pages in bytes; pages that several processes share are divided among them.

    Attributes:
        pss: all of them.
        held: pages that no file backs, with shared memory; None where the kernel does not report them.
        shared: the part of `held` that is shared memory which they have touched.
    """

    pss: int
    held: int | None
    shared: int = 0

    def __add__(self, other: Proportional) -> Proportional:
        held = None if self.held is None or other.held is None else self.held + other.held
        return Proportional(self.pss + other.pss, held, self.shared + other.shared)


def parse_statm(text: str) -> ResidentPages:
    """Return the pages that a `/proc/PID/statm` reports; zeros for a process that has just ended."""
    numbers = [int(word) * _PAGE for word in text.split()[:3]]
    if len(numbers) < 3:
        return ResidentPages(0, 0)
    _, resident, shared = numbers
    return ResidentPages(resident, max(0, resident - shared))


def parse_smaps_rollup(text: str) -> Proportional:
    """Return the pages that a `/proc/PID/smaps_rollup` reports; zeros for a process that has just ended."""
    sizes = parse_meminfo(text)
    shared = sizes.get("Pss_Shmem", 0)
    held = sizes["Pss_Anon"] + shared if "Pss_Anon" in sizes else None
    return Proportional(sizes.get("Pss", 0), 0 if not sizes else held, shared)


def family(pid: int, proc: Path = PROC) -> list[int]:
    """Return the process and all its living descendants; empty if it is gone."""
    if not (proc / str(pid)).exists():
        return []
    found, waiting = {pid: None}, [pid]
    while waiting:
        children = [child for child in _children(waiting.pop(), proc) if child not in found]
        found.update(dict.fromkeys(children))
        waiting += children
    return list(found)


def resident(pids: Iterable[int], proc: Path = PROC) -> dict[int, ResidentPages]:
    """Return the resident pages of each process that can be read."""
    texts = {pid: _read(proc / str(pid) / "statm") for pid in pids}
    return {pid: parse_statm(text) for pid, text in texts.items() if text}


def proportional(pids: Iterable[int], proc: Path = PROC) -> Proportional | None:
    """Return the memory of the processes together; None if none of them can be read.

    The kernel walks through all their pages: some 20 ms for each GB on small pages.
    """
    texts = (_read(proc / str(pid) / "smaps_rollup") for pid in pids)
    parsed = [parse_smaps_rollup(text) for text in texts if text]
    return sum(parsed[1:], parsed[0]) if parsed else None


def command_of(pid: int, proc: Path = PROC) -> str:
    """Return the command line of a process, or its short name; empty if it is gone."""
    line = (_read(proc / str(pid) / "cmdline") or "").replace("\0", " ").strip()
    return line or (_read(proc / str(pid) / "comm") or "").strip()


def _children(pid: int, proc: Path) -> list[int]:
    try:
        threads = os.listdir(proc / str(pid) / "task")  # noqa: PTH208 - the names, which Path would wrap one by one
    except OSError:
        return []
    texts = (_read(proc / str(pid) / "task" / thread / "children") for thread in threads)
    return [int(child) for text in texts if text for child in text.split()]


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None
