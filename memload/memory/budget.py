"""Read how many CPUs and how much memory, disk and pages the control groups and limits of this process allow.

The host's figures are wrong inside a container or under a batch scheduler. Each figure here is the smallest of the
hardware's and those that the process's affinity, control groups (versions 1 and 2) and resource limits allow.
Functions that parse take text and return values; functions that read take the file system's root, so that a test
can pass a tree of its own.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memload._core import free_spares, spare_bytes
from memload.memory.limits import DATA, SLURM, MemoryLimit, group_name, process_limits
from memload.sizes import format_size

_ROOT = Path("/")
_NAMES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@dataclass(frozen=True)
class Cpus:
    """The CPUs of this process.

    Attributes:
        affinity: CPUs that its threads may be scheduled on.
        quota: CPU time that its control groups grant, in CPUs; None without a limit.
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
        total: bytes that the machine has.
        available: bytes that the machine could give now without swapping.
        limits: the limits on this process: those of control groups (cache that can be dropped counts as left), of a
            SLURM job, and of the process itself.
    """

    total: int
    available: int
    limits: tuple[MemoryLimit, ...] = ()

    @property
    def tightest(self) -> MemoryLimit | None:
        """The limit that leaves least; None without one."""
        return min(self.limits, key=lambda one: one.left, default=None)

    @property
    def free(self) -> int:
        """Bytes that this process can still take; near 0, the next large buffer is refused or ends the process."""
        return self.free_for(1)

    @property
    def usable(self) -> int:
        """Bytes that the processes of this machine, control group and job may have together."""
        return min([self.total, *(one.nbytes for one in self.limits if not one.of_one_process)])

    @property
    def free_together(self) -> int:
        """Bytes that these processes can still take together; the page cache, which they share, is included."""
        return min([self.available, *(one.left for one in self.limits if not one.of_one_process)])

    def free_for(self, processes: int) -> int:
        """Return the bytes that each of `processes` can still take, if all take as much."""
        own = (one.left for one in self.limits if one.of_one_process)
        return min([self.free_together // processes, *own])

    @property
    def own(self) -> MemoryLimit | None:
        """The tightest limit on this process by itself; None without one."""
        return min((one for one in self.limits if one.of_one_process), key=lambda one: one.left, default=None)

    def together(self) -> Memory:
        """The same memory without the limits on this process by itself."""
        return replace(self, limits=tuple(one for one in self.limits if not one.of_one_process))

    def to_share(self) -> Memory:
        """The same memory, without RLIMIT_DATA, which does not count shared memory and mapped files."""
        return replace(self, limits=tuple(one for one in self.limits if one.name != DATA))

    @property
    def described(self) -> str:
        """The free memory for a message, with the limit that leaves least if that is less than the machine has."""
        there, found = f"the machine has {format_size(self.total)}", self.tightest
        if found is None or found.left > self.available:
            return there
        return f"{there}, and {found.name} allows {format_size(found.nbytes)}"


@dataclass(frozen=True)
class GroupMemory:
    """The memory that a control group counts, in bytes.

    Attributes:
        used: bytes that its processes use, page cache included.
        cache: bytes of `used` that are page cache and can be dropped.
        limit: bytes that the group may use; None without a limit.
    """

    used: int
    cache: int
    limit: int | None

    @property
    def left(self) -> int | None:
        """Bytes that its processes can still take; None without a limit."""
        return None if self.limit is None else max(0, self.limit - max(0, self.used - self.cache))


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that counts memory: its folder, and the version that decides the names of its files."""

    folder: Path
    version: int

    def read(self) -> GroupMemory | None:
        """Return the group's current figures; None where it counts no memory or is not visible."""
        names = ("memory.max", "memory.current") if self.version == 2 else _NAMES_V1
        limit, used = (read_text(self.folder / name) for name in names)
        if limit is None and used is None:
            return None
        stat = parse_memory_stat(read_text(self.folder / "memory.stat") or "")
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


def cpus() -> Cpus:
    """Return the CPUs that affinity and control groups leave to this process.

    The affinity is asked each time. The quota, whose files take half a millisecond to find and read, is read at most
    once in a second: a change of it is known a second later.
    """
    return Cpus(len(os.sched_getaffinity(0)), _quota_in(int(time.monotonic())))


@functools.lru_cache(maxsize=1)
def _quota_in(second: int) -> float | None:  # noqa: ARG001 - the key under which the answer is remembered
    return cpu_quota()


def default_threads(world_size: int = 1) -> int:
    """Return the threads for one of `world_size` processes that share this machine's CPUs; at least 1.

    Raises:
        ValueError: `world_size` is below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size is the number of processes on this machine: at least 1, not {world_size}")
    return max(1, cpus().usable // world_size)


def local_threads() -> int:
    """Return the threads for this process; the environment's LOCAL_WORLD_SIZE says how many share the machine.

    Raises:
        ValueError: LOCAL_WORLD_SIZE is no such number.
    """
    return default_threads(local_processes())


def local_processes() -> int:
    """Return this program's processes on this machine: the environment's LOCAL_WORLD_SIZE, as torchrun sets it; else 1.

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
    """Return the machine's memory, with the limits of this process, its control groups and its SLURM job.

    Args:
        root: of the file system.
        job: the environment variables of a SLURM job; default: this process's environment.
    """
    host = parse_meminfo(read_text(root / "proc/meminfo") or "")
    total = host.get("MemTotal", 0)
    status = parse_meminfo(read_text(root / "proc/self/status") or "")
    granted = parse_slurm_memory(os.environ if job is None else job)
    limits = [one for one in _group_limits(root, granted) if one.nbytes < total]
    if granted is not None and granted < total:
        limits.append(MemoryLimit(SLURM, granted, max(0, granted - _resident(status))))
    limits += process_limits(read_text(root / "proc/self/limits") or "", status)
    return Memory(total, host.get("MemAvailable", total), tuple(limits))


def memory_to_take(need: float | None = None) -> Memory:
    """Return `memory()` for a decision to take some of it, where nothing is kept of passes that have ended.

    Args:
        need: what is kept is freed only where fewer bytes than these are free beside it; None: in any case.
    """
    if need is not None and ((found := memory()).free >= need or not spare_bytes()):
        return found
    free_spares()
    return memory()


def process_bytes(root: Path = _ROOT) -> int:
    """Return this process's bytes in memory that no file backs: private memory, and shared memory that it touched."""
    return _resident(parse_meminfo(read_text(root / "proc/self/status") or ""))


def process_is_limited() -> bool:
    """Return whether this process has its own memory limit (`ulimit -v`, `ulimit -d`); the call takes a microsecond."""
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in kinds)


def memory_groups(root: Path = _ROOT, process: str = "self") -> Iterator[MemoryGroup]:
    """Yield the control groups that count the memory of a process, its own first; some may not be visible from here."""
    yield from (MemoryGroup(folder, 2) for folder in _groups_v2(root, process))
    yield from (MemoryGroup(folder, 1) for folder in _groups_v1(root, "memory", process))


def groups_of(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups above this process: version 2, and version 1 with this controller."""
    yield from _groups_v2(root)
    yield from _groups_v1(root, controller)


def disk_free(path: str | os.PathLike[str]) -> int:
    """Return the bytes free for this user on the file system that holds `path`, or will hold it once it is made."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def huge_pages(root: Path = _ROOT) -> HugePages:
    """Return how the system hands out transparent huge pages; `never` where it does not support them."""
    base = root / "sys/kernel/mm/transparent_hugepage"
    size = read_text(base / "hpage_pmd_size")
    return HugePages(parse_choice(read_text(base / "enabled") or "[never]"), int(size) if size else 2 << 20)


def memlock_limit() -> int | None:
    """Return the bytes that this process may lock in memory (and pin for a GPU); None without a limit.

    Root may lock more than the limit says.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def last_level_cache(root: Path = _ROOT) -> int | None:
    """Return the bytes of CPU 0's cache of the highest level; None where the system does not report it."""
    caches = sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*"))
    levels = [(int(read_text(c / "level") or 0), parse_size(read_text(c / "size") or "0")) for c in caches]
    return max(levels)[1] if levels else None


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the CPU time, in CPUs, that the tightest control group above this process grants; None without a limit."""
    quotas = [parse_cpu_max(read_text(group / "cpu.max") or "max") for group in _groups_v2(root)]
    for group in _groups_v1(root, "cpu"):
        quotas.append(parse_cfs(read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def parse_cpu_max(text: str) -> float | None:
    """Return the CPUs that a version 2 `cpu.max` grants: `"150000 100000"` is 1.5, `"max 100000"` is no limit."""
    quota, _, period = text.strip().partition(" ")
    return None if quota in ("", "max") else int(quota) / int(period or 100_000)


def parse_cfs(quota: str | None, period: str | None) -> float | None:
    """Return the CPUs that version 1's quota and period, in microseconds, grant; a quota of -1 is no limit."""
    if quota is None or period is None or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the bytes by name of a `/proc/meminfo`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}


def parse_slurm_memory(job: Mapping[str, str]) -> int | None:
    """Return the bytes that SLURM granted here: SLURM_MEM_PER_NODE, or SLURM_MEM_PER_CPU for SLURM_CPUS_ON_NODE.

    Both count MiB. The result is None outside of a job, where the job may use the whole machine (0), and where a value
    is not a number.

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
    """Return the bytes by name of a control group's `memory.stat`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def parse_limit(text: str | None) -> int | None:
    """Return a limit in bytes; `max` and a missing file are no limit."""
    return None if text is None or text.strip() in ("", "max") else int(text)


def parse_groups(text: str) -> dict[str, str]:
    """Return the path by controller of a `/proc/self/cgroup`; the empty controller is version 2's."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def parse_choice(text: str) -> str:
    """Return the chosen word of a line such as `always [madvise] never`."""
    return text.partition("[")[2].partition("]")[0]


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `32768K`, `1M` or `512`."""
    text = text.strip()
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def _resident(status: Mapping[str, int]) -> int:
    """Return the bytes in memory that no file backs, from the values of a `/proc/PID/status`."""
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def _group_limits(root: Path, granted: int | None) -> Iterator[MemoryLimit]:
    """Yield the limits of the control groups above this process."""
    for group in memory_groups(root):
        found = group.read()
        if found is not None and found.limit is not None and found.left is not None:
            yield MemoryLimit(group_name(str(group.folder), found.limit, granted), found.limit, found.left)


def _groups_v2(root: Path, process: str = "self") -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    if not (mount / "cgroup.controllers").exists():
        mount /= "unified"
    return _with_ancestors(mount, parse_groups(read_text(root / "proc" / process / "cgroup") or "").get(""))


def _groups_v1(root: Path, controller: str, process: str = "self") -> Iterator[Path]:
    path = parse_groups(read_text(root / "proc" / process / "cgroup") or "").get(controller)
    return _with_ancestors(root / "sys/fs/cgroup" / controller, path)


def _with_ancestors(mount: Path, group: str | None) -> Iterator[Path]:
    """Yield the group's folder and those above it. Inside a container only the mount's own root may be visible."""
    if group is None:
        return
    place = Path(group.strip("/"))
    for level in (place, *place.parents) if place.parts else (place,):
        yield mount / level


def read_text(path: Path) -> str | None:
    """Return what a file of the system says; None where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return None
