"""Memory of a process and of all that it started, as `/proc` tells it.

Functions that parse take text. Functions that read give None, or leave out, what is gone, forbidden or unknown to this
kernel: processes come and go while they are looked at.
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
        private: those that no file backs and no other program maps; what a child has not written since it was forked
            counts in both.
    """

    rss: int
    private: int


@dataclass(frozen=True)
class Proportional:
    """Pages in memory, those that several processes share divided among them, in bytes.

    Attributes:
        pss: all of them.
        held: those that no file backs, shared memory included; None where the kernel does not tell them apart.
        shared: of `held`, shared memory that they have touched.
    """

    pss: int
    held: int | None
    shared: int = 0

    def __add__(self, other: Proportional) -> Proportional:
        both = None if self.held is None or other.held is None else self.held + other.held
        return Proportional(self.pss + other.pss, both, self.shared + other.shared)


def parse_statm(text: str) -> ResidentPages:
    """Return what a `/proc/PID/statm` says; of a process that has just ended, nothing."""
    numbers = [int(word) * _PAGE for word in text.split()[:3]]
    if len(numbers) < 3:
        return ResidentPages(0, 0)
    _, resident, shared = numbers
    return ResidentPages(resident, max(0, resident - shared))


def parse_smaps_rollup(text: str) -> Proportional:
    """Return what a `/proc/PID/smaps_rollup` says; of a process that has just ended, nothing."""
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
    """Return what each process that can be read has in memory."""
    texts = {pid: _read(proc / str(pid) / "statm") for pid in pids}
    return {pid: parse_statm(text) for pid, text in texts.items() if text}


def proportional(pids: Iterable[int], proc: Path = PROC) -> Proportional | None:
    """Return what the processes have in memory together; None if none of them may be looked at.

    The kernel walks through all their pages for it: some 20 ms for each GB on small pages.
    """
    texts = (_read(proc / str(pid) / "smaps_rollup") for pid in pids)
    each = [parse_smaps_rollup(text) for text in texts if text]
    return sum(each[1:], each[0]) if each else None


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
