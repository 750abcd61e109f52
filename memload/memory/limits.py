"""Limits on memory: the origin of each limit, the bytes that it allows, and the bytes that it leaves.

machine > control groups of containers and batch jobs > SLURM's allocation     counted for many processes together
RLIMIT_AS (ulimit -v), RLIMIT_DATA (ulimit -d)                                 counted for each process by itself
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CONTROL_GROUP = "its control group"
SLURM = "SLURM's allocation (--mem)"
ADDRESSES = "the limit RLIMIT_AS (ulimit -v)"
DATA = "the limit RLIMIT_DATA (ulimit -d)"

_ROWS = (("Max address space", "VmSize", ADDRESSES), ("Max data size", "VmData", DATA))


@dataclass(frozen=True)
class MemoryLimit:
    """One limit, in bytes.

    Attributes:
        name: the origin of the limit, with the option that users set it by.
        nbytes: bytes that it allows.
        left: bytes that it leaves now.
    """

    name: str
    nbytes: int
    left: int

    @property
    def of_one_process(self) -> bool:
        """Whether the limit counts each process by itself, rather than all together."""
        return self.name in (ADDRESSES, DATA)


def process_limits(limits: str, status: Mapping[str, int]) -> Iterator[MemoryLimit]:
    """Yield the limits on one process by itself.

    Args:
        limits: the text of its `/proc/PID/limits`.
        status: the bytes by name of its `/proc/PID/status`. VmSize counts all its addresses, mapped files included;
            VmData counts private, writable memory, touched or not.
    """
    for line in limits.splitlines():
        for title, counted, name in _ROWS:
            soft = line.removeprefix(title).split()[:1]
            if line.startswith(title) and soft and soft[0].isdecimal():
                yield MemoryLimit(name, int(soft[0]), max(0, int(soft[0]) - status.get(counted, 0)))


def group_name(folder: str, limit: int, granted: int | None) -> str:
    """Return the users' name of a control group: SLURM's allocation if its path or its limit shows that SLURM made it.

    Args:
        folder: the folder of the group.
        limit: its limit in bytes.
        granted: bytes that SLURM granted the job on this machine; None outside of a job.
    """
    made_by_slurm = any(part.startswith("slurm") for part in folder.split("/"))
    return SLURM if made_by_slurm or limit == granted else CONTROL_GROUP
