"""Samples of the memory of a process, of its control group, of the machine and of its loaders."""

from __future__ import annotations

import dataclasses
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memload.engine.observers import known_passes
from memload.memory.budget import MemoryGroup, disk_free, memory_groups, parse_meminfo
from memload.monitoring.gpu_samples import GpuSample, GpuTick, Nvml, Split, counted_by_driver, own_samples
from memload.monitoring.own_memory import OwnMemory
from memload.monitoring.pacing import Credit, Paced
from memload.monitoring.processes import Proportional, ResidentPages, family, proportional, resident
from memload.monitoring.shared_segments import SharedMemory, shared_memory
from memload.stats import LoaderStats

# The shares of one core that expensive figures may take; together less than half of the monitor's 0.5 %.
_PSS_SHARE, _FAMILY_SHARE, _NVML_SHARE, _SHARED_SHARE = 0.001, 0.0005, 0.0005, 0.001
# Shared memory is measured more often at first, until that has taken so many seconds of processor time: batches that a
# short run keeps may lie there.
_SHARED_CREDIT = Credit(share=0.02, seconds=2.0)


@dataclass(frozen=True)
class Sample:
    """The memory in use at one moment. Sizes are in bytes; None: not known here.

    Attributes:
        time: seconds since 1970.
        epoch: the number of passes that the busiest loader has begun since the monitor started, or the last one given
            to `mark`.
        step: the number of batches that loops have asked for since then, or the last one given to `mark`.
        processes: the number of processes: this one and its living descendants.
        rss: resident pages of these processes, shared ones counted in each; includes pages of mapped files, which can
            be dropped.
        pss: resident pages, shared ones divided among their processes; taken more rarely, since the kernel walks
            through all pages for it.
        pss_age: seconds since `pss` was taken; it may be above `rss` if memory was freed since.
        held: resident memory that no file backs, shared pages counted once: only these processes can free it.
        shared: shared memory that they have open or mapped, including batches on their way from worker processes; a
            part of `held`.
        received: the part of `shared` that the process itself has mapped, such as batches that its loop received.
        own: memload's own memory: caches and rows of the RAM tier. Pages of it that were never touched are not in
            `held`.
        cached: the part of `own` that is rows in the caches of the hybrid tier.
        at_batch: memory that the process itself held, without `own`, when a loop last asked for a batch: always at the
            same point of a step. It includes mapped shared memory, as of the previous sample.
        at_epoch: the same figure at the beginning of the epoch.
        free_at_batch, free_at_epoch: the parts of these that the C library's heap had free then, the first as it was
            last taken: that uses at most 0.1 % of one core.
        fresh_at_batch: `fresh_batches` at the time of `at_batch`.
        total: memory of the machine.
        available: memory that the machine could allocate without swapping.
        page_cache: the page cache of the control group if that has a limit, else of the machine.
        group_used: the memory charged to the tightest control group, including page cache.
        group_limit: the limit of that group.
        disk_free: free bytes on the file system of the log, or of the working directory.
        batches: batches that FastLoaders delivered.
        rows: rows in them.
        bytes_out: bytes of them.
        fresh_batches: batches for which there was no free slot.
        wait_seconds: time that loops waited for batches.
        wall_seconds: time of these passes.
        gpus: the GPUs on which this process has memory.
    """

    time: float
    epoch: int = 0
    step: int = 0
    processes: int = 1
    rss: int = 0
    pss: int | None = None
    pss_age: float = 0.0
    held: int = 0
    shared: int = 0
    received: int = 0
    own: int = 0
    cached: int = 0
    at_batch: int | None = None
    at_epoch: int | None = None
    free_at_batch: int = 0
    free_at_epoch: int = 0
    fresh_at_batch: int = 0
    total: int = 0
    available: int = 0
    page_cache: int = 0
    group_used: int | None = None
    group_limit: int | None = None
    disk_free: int | None = None
    batches: int = 0
    rows: int = 0
    bytes_out: int = 0
    fresh_batches: int = 0
    wait_seconds: float = 0.0
    wall_seconds: float = 0.0
    gpus: tuple[GpuSample, ...] = ()

    @property
    def limit(self) -> int:
        """Bytes that the process may use: its control group's limit, or the machine's memory."""
        return self.total if self.group_limit is None else min(self.total, self.group_limit)

    @property
    def share(self) -> float:
        """The share of `limit` that is in use and cannot be reclaimed; reclaimable page cache counts as free."""
        used = 1 - self.available / self.total if self.total else 0.0
        if self.group_used is None or not self.group_limit:
            return used
        return max(used, (self.group_used - self.page_cache) / self.group_limit)

    def as_json(self) -> dict[str, Any]:
        """Return the sample as plain data, without figures that are zero or unknown."""
        values = {name: getattr(self, name) for name in _NAMES}
        data = {name: value for name, value in values.items() if value}
        if self.gpus:
            data["gpus"] = [{k: v for k, v in dataclasses.asdict(gpu).items() if v is not None} for gpu in self.gpus]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """Return the sample from which `as_json` made `data`; names that this version does not know are ignored.

        Raises:
            TypeError, ValueError: `data` is not such data.
        """
        known = {name: data[name] for name in _NAMES if name in data}
        if not all(isinstance(value, int | float) for value in known.values()):
            raise ValueError("a figure of a sample is a number")
        return cls(**known, gpus=tuple(GpuSample(**gpu) for gpu in data.get("gpus", ())))


_NAMES = [field.name for field in dataclasses.fields(Sample) if field.name != "gpus"]


@dataclass(frozen=True)
class LoopPosition:
    """The position of a loop, and what its own thread measured there; None: not measured yet.

    Attributes:
        epoch, step, at_batch, at_epoch, free_at_batch, free_at_epoch, fresh_at_batch: as in a `Sample`.
        gpus: what it measured of GPUs when it last asked for a batch.
    """

    epoch: int = 0
    step: int = 0
    at_batch: int | None = None
    at_epoch: int | None = None
    free_at_batch: int = 0
    free_at_epoch: int = 0
    fresh_at_batch: int = 0
    gpus: Mapping[int, GpuTick] | None = None


class Sampler:
    """Takes samples of a process and all its descendants.

    Expensive figures are taken as often as their cost allows: PSS takes at most 0.1 % of one core, the search for new
    children and the driver's view of GPUs 0.05 % each.

    Args:
        pid: the process; default: this one, whose GPUs and loaders are then measured from inside.
        folder: a folder of the file system whose free bytes are sampled; None: no file system.
        root: the root of the file system with `/proc` and `/sys`.
    """

    def __init__(self, pid: int | None = None, folder: Path | None = None, root: Path = Path("/")) -> None:
        self._inside = pid is None
        self.pid = os.getpid() if pid is None else pid
        self._folder, self._root, self._proc = folder, root, root / "proc"
        self._family = Paced(self._find_family, _FAMILY_SHARE)
        self._group = Paced(self._find_group, _FAMILY_SHARE)
        self._shared = Paced(self._measure_shared, _SHARED_SHARE, credit=_SHARED_CREDIT)
        self._received = 0  # bytes of shared memory that the process had mapped at the last sample
        self._look = Paced(self._measure_pss, _PSS_SHARE)
        self._nvml = Nvml.open()
        self._by_driver = Paced(self._count_by_driver, _NVML_SHARE)
        self._own = OwnMemory()
        self.caches = self._own.caches
        before = {loader: _stats(loader) for loader in known_passes()} if self._inside else {}
        for loader in before:
            self.caches.know(loader)
        self._before = weakref.WeakKeyDictionary(before)

    def take(self, position: LoopPosition | None = None, at_once: bool = False) -> Sample:
        """Return a sample of the memory in use now.

        Args:
            position: the position of the loop, and what it measured there.
            at_once: whether expensive figures are taken now, whenever they were last taken.

        Raises:
            ProcessLookupError: the process has ended.
        """
        pids = self._family.get(at_once)
        pages = resident(pids, self._proc)
        if self.pid not in pages:
            raise ProcessLookupError(
                f"there is no process {self.pid} (any more); `pgrep -af python` lists those of Python"
            )
        look, shared = self._look.get(at_once), self._shared.get(at_once)
        self._received = shared.received
        stats = self._loaders() if self._inside else LoaderStats()
        position = position or LoopPosition()
        return Sample(
            time=time.time(),
            epoch=position.epoch,
            step=position.step,
            processes=len(pages),
            rss=sum(own.rss for own in pages.values()),
            pss=look.whole.pss if look.whole else None,
            pss_age=round(max(0.0, time.monotonic() - look.time), 3) if look.whole else 0.0,
            held=look.held_now(pages, shared.nbytes),
            shared=shared.nbytes,
            received=shared.received,
            own=self._own.nbytes if self._inside else 0,
            cached=self.caches.nbytes,
            at_batch=position.at_batch,
            at_epoch=position.at_epoch,
            free_at_batch=position.free_at_batch,
            free_at_epoch=position.free_at_epoch,
            fresh_at_batch=position.fresh_at_batch,
            **self._system(),
            disk_free=_disk_free(self._folder),
            batches=stats.batches,
            rows=stats.rows,
            bytes_out=stats.bytes_out,
            fresh_batches=stats.fresh_batches,
            wait_seconds=round(stats.consumer_wait_seconds, 4),
            wall_seconds=round(stats.wall_seconds, 4),
            gpus=tuple(self._gpus(pids, position.gpus)),
        )

    def private(self) -> int:
        """Return the bytes that the process holds now, without its children and `own`; takes some ten microseconds.

        Shared memory counts as it was mapped at the last sample.
        """
        return max(0, resident([self.pid], self._proc)[self.pid].private - self._own.nbytes) + self._received

    def fresh(self) -> int:
        """Return how many batches found no free slot since the sampler was made."""
        return self._loaders().fresh_batches

    def _gpus(self, pids: Sequence[int], ticks: Mapping[int, GpuTick] | None) -> list[GpuSample]:
        if self._inside:
            return own_samples(ticks, self._by_driver.get())
        return self._nvml.samples(pids) if self._nvml else []

    def _find_family(self) -> list[int]:
        return family(self.pid, self._proc)

    def _count_by_driver(self) -> dict[int, Split]:
        return counted_by_driver(self._nvml, self._family.get())

    def _measure_pss(self) -> Look:
        pids = self._family.get()
        shared = self._shared.get(at_once=True).nbytes
        return Look(proportional(pids, self._proc), resident(pids, self._proc), time.monotonic(), shared)

    def _measure_shared(self) -> SharedMemory:
        return shared_memory(self._family.get(), self._proc)

    def _find_group(self) -> MemoryGroup | None:
        total = parse_meminfo((self._proc / "meminfo").read_text()).get("MemTotal", 0)
        return tightest(memory_groups(self._root, str(self.pid)), total)

    def _system(self) -> dict[str, Any]:
        host = parse_meminfo((self._proc / "meminfo").read_text())
        figures = {
            "total": host.get("MemTotal", 0),
            "available": host.get("MemAvailable", 0),
            "page_cache": host.get("Active(file)", 0) + host.get("Inactive(file)", 0),
        }
        group = self._group.get()
        found = group.read() if group else None
        if found is None:
            return figures
        if found.limit is None or found.limit >= figures["total"]:
            return {**figures, "group_used": found.used}
        return {**figures, "group_used": found.used, "group_limit": found.limit, "page_cache": found.cache}

    def _loaders(self) -> LoaderStats:
        """Return the counters of all loaders since the sampler was made."""
        counters = (_since(self._before.get(loader, LoaderStats()), _stats(loader)) for loader in known_passes())
        return sum(counters, LoaderStats())


@dataclass(frozen=True)
class Look:
    """The proportional memory of processes, at the time at which it was taken.

    Attributes:
        whole: of all processes together; None: not permitted.
        each: the resident pages of each process.
        time: by `time.monotonic`.
        shared: bytes of their shared memory.
    """

    whole: Proportional | None
    each: Mapping[int, ResidentPages]
    time: float = 0.0
    shared: int = 0

    def held_now(self, now: Mapping[int, ResidentPages], shared: int = 0) -> int:
        """Return the bytes that processes hold now and no file backs: those of this look, plus the changes since.

        The result is at least `shared`. Where `whole` is not known, it is the sum over the processes, which counts
        pages that forked children share more than once.

        Args:
            now: the resident pages of each process now.
            shared: bytes of their shared memory now, touched or not.
        """
        if self.whole is None or self.whole.held is None:
            return sum(pages.private for pages in now.values()) + shared
        since = sum(pages.private - self.each[pid].private for pid, pages in now.items() if pid in self.each)
        private = max(0, self.whole.held - self.whole.shared + since)
        of_ranks = max(0, self.whole.shared - self.shared)  # rows that ranks share, which `shared` leaves out
        return private + of_ranks + shared


def tightest(groups: Iterable[MemoryGroup], total: int) -> MemoryGroup | None:
    """Return the control group whose limit leaves the least memory; without a limit below `total`, the first."""
    read = [(group, found) for group in groups if (found := group.read()) is not None]
    limited = [(found.left or 0, group) for group, found in read if found.limit is not None and found.limit < total]
    if limited:
        return min(limited, key=lambda pair: pair[0])[1]
    return read[0][0] if read else None


_COUNTED = ("batches", "rows", "bytes_out", "fresh_batches", "consumer_wait_seconds", "wall_seconds")


def _since(before: LoaderStats, now: LoaderStats) -> LoaderStats:
    return LoaderStats(**{name: max(0, getattr(now, name) - getattr(before, name)) for name in _COUNTED})


def _stats(loader: Any) -> LoaderStats:
    """Return the counters of a loader; its passes may begin and end meanwhile."""
    for _ in range(3):
        try:
            stats: LoaderStats = loader.stats()
            return stats
        except RuntimeError:  # a pass began or ended during the iteration
            continue
    return LoaderStats()


def _disk_free(folder: Path | None) -> int | None:
    try:
        return None if folder is None else disk_free(folder)
    except OSError:
        return None
