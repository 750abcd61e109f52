"""What this process may use: CPUs, memory, disk and pages, as its control groups and limits allow.

The host's figures are not the truth inside a container or under a batch scheduler. Each figure here is the least of
what the hardware has and what the process's affinity, control groups (versions 1 and 2) and resource limits leave of
it. Functions that parse take text and return values; functions that read take the file system's root, so that a test
can hand them a tree of its own.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_NAMES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@dataclass(frozen=True)
class Cpus:
    """The CPUs of this process.

    Attributes:
        affinity: CPUs that its threads may be scheduled on.
        quota: CPUs' worth of time that its control groups grant, None without a limit.
    """

    affinity: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that can compute at the same time without being throttled; at least 1."""
        if self.quota is None:
            return max(1, self.affinity)
        return max(1, min(self.affinity, math.floor(self.quota)))


@dataclass(frozen=True)
class Memory:
    """Memory in bytes.

    Attributes:
        total: what the machine has.
        available: what the machine could give now without swapping.
        limit: the tightest limit of this process's control groups and of its SLURM job, None without one.
        available_in_limit: what that limit leaves, cache that can be dropped counted as free; None without a limit.
    """

    total: int
    available: int
    limit: int | None
    available_in_limit: int | None

    @property
    def free(self) -> int:
        """What this process can still take: near 0, the next large buffer ends it."""
        return self.available if self.available_in_limit is None else min(self.available, self.available_in_limit)


@dataclass(frozen=True)
class GroupMemory:
    """What a control group counts, in bytes.

    Attributes:
        used: by its processes, page cache included.
        cache: how much of that is page cache that can be dropped.
        limit: None without one.
    """

    used: int
    cache: int
    limit: int | None

    @property
    def left(self) -> int | None:
        """What its processes can still take; None without a limit."""
        return None if self.limit is None else max(0, self.limit - max(0, self.used - self.cache))


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that counts memory: its folder, and the version whose names its files have."""

    folder: Path
    version: int

    def read(self) -> GroupMemory | None:
        """What it counts now; None where it does not, or cannot be seen."""
        names = ("memory.max", "memory.current") if self.version == 2 else _NAMES_V1
        limit, used = (_read(self.folder / name) for name in names)
        if limit is None and used is None:
            return None
        stat = parse_memory_stat(_read(self.folder / "memory.stat") or "")
        prefix = "" if self.version == 2 else "total_"
        cache = stat.get(prefix + "inactive_file", 0) + stat.get(prefix + "active_file", 0)
        return GroupMemory(int(used or 0), cache, parse_limit(limit))


@dataclass(frozen=True)
class HugePages:
    """Transparent huge pages: the system's setting (`always`, `madvise` or `never`) and the size of one in bytes."""

    mode: str
    nbytes: int

    @property
    def usable(self) -> bool:
        """Whether memory that asks for huge pages can get them."""
        return self.mode in ("always", "madvise")


def cpus(root: Path = _ROOT) -> Cpus:
    """The CPUs that affinity and control groups leave to this process."""
    return Cpus(len(os.sched_getaffinity(0)), cpu_quota(root))


def default_threads(world_size: int = 1) -> int:
    """Threads for one of `world_size` processes that share this machine's CPUs; at least 1.

    Raises:
        ValueError: `world_size` is below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size is the number of processes on this machine: at least 1, not {world_size}")
    return max(1, cpus().usable // world_size)


def local_threads() -> int:
    """Threads for this process, where the environment's LOCAL_WORLD_SIZE says how many share the machine.

    Raises:
        ValueError: LOCAL_WORLD_SIZE is no such number.
    """
    return default_threads(local_processes())


def local_processes() -> int:
    """Processes of this program on this machine: the environment's LOCAL_WORLD_SIZE, as torchrun sets it; else 1.

    Raises:
        ValueError: LOCAL_WORLD_SIZE is no such number.
    """
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not processes.isdecimal() or int(processes) < 1:
        raise ValueError(
            f"the environment says LOCAL_WORLD_SIZE={processes!r}; it is the number of processes on this machine, as "
            "torchrun sets it: unset it, or set it right"
        )
    return int(processes)


def memory(root: Path = _ROOT, job: Mapping[str, str] | None = None) -> Memory:
    """Memory of the machine, and what the control groups of this process, and its SLURM job, leave of it.

    Args:
        root: of the file system.
        job: the variables in which SLURM says what it granted; default: this process's environment.
    """
    host = parse_meminfo(_read(root / "proc/meminfo") or "")
    total = host.get("MemTotal", 0)
    limits = [(limit, left) for limit, left in _memory_limits(root) if limit < total]
    granted = parse_slurm_memory(os.environ if job is None else job)
    if granted is not None and granted < total:
        limits.append((granted, max(0, granted - process_bytes(root))))
    limit = min((limit for limit, _ in limits), default=None)
    left = min((left for _, left in limits), default=None)
    return Memory(total, host.get("MemAvailable", total), limit, left)


def process_bytes(root: Path = _ROOT) -> int:
    """Bytes of this process in memory that no file backs: what it has for itself, and shared memory that it touched."""
    status = parse_meminfo(_read(root / "proc/self/status") or "")
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def memory_groups(root: Path = _ROOT, process: str = "self") -> Iterator[MemoryGroup]:
    """The control groups that count the memory of a process, its own first; some may not be visible from here."""
    yield from (MemoryGroup(folder, 2) for folder in _groups_v2(root, process))
    yield from (MemoryGroup(folder, 1) for folder in _groups_v1(root, "memory", process))


def disk_free(path: str | os.PathLike[str]) -> int:
    """Free bytes for this user on the file system that holds `path`, or would hold it once it is made."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def huge_pages(root: Path = _ROOT) -> HugePages:
    """How the system hands out transparent huge pages; `never` where it does not know them."""
    base = root / "sys/kernel/mm/transparent_hugepage"
    size = _read(base / "hpage_pmd_size")
    return HugePages(parse_choice(_read(base / "enabled") or "[never]"), int(size) if size else 2 << 20)


def memlock_limit() -> int | None:
    """Bytes that this process may lock in memory (and pin for a GPU); None without a limit.

    Root may lock more than the limit says.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def last_level_cache(root: Path = _ROOT) -> int | None:
    """Bytes of the cache of the highest level that CPU 0 reads through; None where the system does not say."""
    caches = sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*"))
    levels = [(int(_read(c / "level") or 0), parse_size(_read(c / "size") or "0")) for c in caches]
    return max(levels)[1] if levels else None


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs' worth of time that the tightest control group above this process grants; None without a limit."""
    quotas = [parse_cpu_max(_read(group / "cpu.max") or "max") for group in _groups_v2(root)]
    for group in _groups_v1(root, "cpu"):
        quotas.append(parse_cfs(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def parse_cpu_max(text: str) -> float | None:
    """CPUs granted by a version 2 `cpu.max`: `"150000 100000"` is 1.5, `"max 100000"` no limit."""
    quota, _, period = text.strip().partition(" ")
    return None if quota in ("", "max") else int(quota) / int(period or 100_000)


def parse_cfs(quota: str | None, period: str | None) -> float | None:
    """CPUs granted by version 1's quota and period in microseconds; a quota of -1 is no limit."""
    if quota is None or period is None or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name of a `/proc/meminfo`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}


def parse_slurm_memory(job: Mapping[str, str]) -> int | None:
    """Bytes that SLURM granted on this machine: SLURM_MEM_PER_NODE, or SLURM_MEM_PER_CPU for SLURM_CPUS_ON_NODE.

    Both count MiB. None outside of a job, where the job may use the whole machine (0), and where the words are no
    numbers.

    Source: https://slurm.schedmd.com/sbatch.html, "Output environment variables".
    """
    whole, each, cpus = (
        job.get(name, "") for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    )
    if whole.isdecimal():
        mebibytes = int(whole)
    else:
        mebibytes = int(each) * int(cpus) if each.isdecimal() and cpus.isdecimal() else 0
    return mebibytes << 20 or None


def parse_memory_stat(text: str) -> dict[str, int]:
    """Bytes by name of a control group's `memory.stat`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def parse_limit(text: str | None) -> int | None:
    """A limit in bytes; `max` and a missing file are no limit."""
    return None if text is None or text.strip() in ("", "max") else int(text)


def parse_groups(text: str) -> dict[str, str]:
    """Path by controller of a `/proc/self/cgroup`; the empty controller is version 2's."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def parse_choice(text: str) -> str:
    """The chosen word of a line such as `always [madvise] never`."""
    return text.partition("[")[2].partition("]")[0]


def parse_size(text: str) -> int:
    """Bytes of a size such as `32768K`, `1M` or `512`."""
    text = text.strip()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, what is left of it) for each control group above this process that has one."""
    for group in memory_groups(root):
        found = group.read()
        if found is not None and found.limit is not None and found.left is not None:
            yield found.limit, found.left


def _groups_v2(root: Path, process: str = "self") -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    if not (mount / "cgroup.controllers").exists():
        mount /= "unified"
    return _with_ancestors(mount, parse_groups(_read(root / "proc" / process / "cgroup") or "").get(""))


def _groups_v1(root: Path, controller: str, process: str = "self") -> Iterator[Path]:
    path = parse_groups(_read(root / "proc" / process / "cgroup") or "").get(controller)
    return _with_ancestors(root / "sys/fs/cgroup" / controller, path)


def _with_ancestors(mount: Path, group: str | None) -> Iterator[Path]:
    """The group's folder and those above it. Inside a container only the mount's own root may be visible."""
    if group is None:
        return
    place = Path(group.strip("/"))
    for level in (place, *place.parents) if place.parts else (place,):
        yield mount / level


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
