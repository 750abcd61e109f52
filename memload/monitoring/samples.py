"""One look at the memory of a process, of its control group, of the machine and of its loaders."""

from __future__ import annotations

import dataclasses
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memload.memory.budget import MemoryGroup, disk_free, memory_groups, parse_meminfo
from memload.monitoring import loops
from memload.monitoring.gpu_samples import GpuSample, Nvml, Turn, counted_by_driver, own_samples
from memload.monitoring.pacing import Paced
from memload.monitoring.processes import Proportional, Resident, family, proportional, resident
from memload.monitoring.row_caches import KnownCaches
from memload.stats import LoaderStats

# Shares of one core that the costly looks may take, together less than half of what a monitor may.
_PSS_SHARE, _FAMILY_SHARE, _NVML_SHARE = 0.001, 0.0005, 0.0005


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment, sizes in bytes; None: not known here.

    Attributes:
        time: seconds since 1970.
        epoch: how many passes the busiest loader has begun since the monitor started, or what `mark` was told.
        step: how many batches loops have asked for since then, or what `mark` was told.
        processes: the process and its living descendants.
        rss: pages of theirs in memory, shared ones counted in each; those of mapped files too, which can be dropped.
        pss: the same, shared ones divided; taken more rarely, since the kernel walks through all pages for it.
        held: what of it no file backs, shared ones counted once: what only they can give back.
        cached: what of it are rows in the caches of the hybrid tier.
        at_batch: what the process itself held, caches apart, when a loop last asked for a batch: always at the same
            point of a step.
        at_epoch: the same when the epoch began.
        fresh_at_batch: of `fresh_batches`, those until `at_batch` was taken.
        total: memory of the machine.
        available: what the machine could give without swapping.
        page_cache: files in memory: of the control group where it has a limit, else of the machine.
        group_used: what the tightest control group counts, page cache included.
        group_limit: its limit.
        disk_free: on the file system of the log, or of the working directory.
        batches: batches that FastLoaders handed out.
        rows: rows in them.
        bytes_out: bytes of them.
        fresh_batches: those for which there was no free slot.
        wait_seconds: time that loops waited for them.
        wall_seconds: time of these passes.
        gpus: the GPUs on which this process has memory.
    """

    time: float
    epoch: int = 0
    step: int = 0
    processes: int = 1
    rss: int = 0
    pss: int | None = None
    held: int = 0
    cached: int = 0
    at_batch: int | None = None
    at_epoch: int | None = None
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
        """The share of it that is in use and cannot be reclaimed; page cache that can be dropped counts as free."""
        used = 1 - self.available / self.total if self.total else 0.0
        if self.group_used is None or not self.group_limit:
            return used
        return max(used, (self.group_used - self.page_cache) / self.group_limit)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, without what is zero or not known."""
        plain = {name: getattr(self, name) for name in _NAMES}
        told = {name: value for name, value in plain.items() if value}
        if self.gpus:
            told["gpus"] = [{k: v for k, v in dataclasses.asdict(gpu).items() if v is not None} for gpu in self.gpus]
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Sample:
        """Return what `as_json` was of; names that this version does not know are left out.

        Raises:
            TypeError, ValueError: it is not that.
        """
        known = {name: told[name] for name in _NAMES if name in told}
        if not all(isinstance(value, int | float) for value in known.values()):
            raise ValueError("a figure of a sample is a number")
        return cls(**known, gpus=tuple(GpuSample(**gpu) for gpu in told.get("gpus", ())))


_NAMES = [field.name for field in dataclasses.fields(Sample) if field.name != "gpus"]


@dataclass(frozen=True)
class Place:
    """Where a loop is, and what its own thread saw there; None: it has not been there yet.

    Attributes:
        epoch, step, at_batch, at_epoch, fresh_at_batch: as of a `Sample`.
        gpus: what it saw of GPUs when it last asked for a batch.
    """

    epoch: int = 0
    step: int = 0
    at_batch: int | None = None
    at_epoch: int | None = None
    fresh_at_batch: int = 0
    gpus: Mapping[int, Turn] | None = None


class Sampler:
    """Takes samples of a process and all its descendants.

    What costs most is taken as often as its cost allows: PSS takes at most 0.1 % of one core, the search for new
    children and the driver's view of GPUs 0.05 % each.

    Args:
        pid: default: this process, whose GPUs and loaders are then looked at from inside.
        folder: whose file system's free bytes are told; None: nobody's.
        root: of the file system that the system's figures are read from.
    """

    def __init__(self, pid: int | None = None, folder: Path | None = None, root: Path = Path("/")) -> None:
        self._inside = pid is None
        self.pid = os.getpid() if pid is None else pid
        self._folder, self._root, self._proc = folder, root, root / "proc"
        self._family = Paced(lambda: family(self.pid, self._proc), _FAMILY_SHARE)
        self._group = Paced(self._tightest, _FAMILY_SHARE)
        self._look = Paced(self._looked, _PSS_SHARE)
        self._nvml = Nvml.open()
        self._by_driver = Paced(lambda: counted_by_driver(self._nvml, self._family.get()), _NVML_SHARE)
        self.caches = KnownCaches()
        before = {loader: _stats(loader) for loader in loops.known_passes()} if self._inside else {}
        for loader in before:
            self.caches.know(loader)
        self._before = weakref.WeakKeyDictionary(before)

    def take(self, place: Place | None = None, closely: bool = False) -> Sample:
        """Return what is seen now.

        Args:
            place: where the loop is, and what it saw.
            closely: whether to take what costs most, whenever it was last taken.

        Raises:
            ProcessLookupError: the process has ended.
        """
        pids = self._family.get(closely)
        here = resident(pids, self._proc)
        if self.pid not in here:
            raise ProcessLookupError(f"there is no process {self.pid} (any more)")
        look = self._look.get(closely)
        stats = self._loaders() if self._inside else LoaderStats()
        place = place or Place()
        return Sample(
            time=time.time(),
            epoch=place.epoch,
            step=place.step,
            processes=len(here),
            rss=sum(one.rss for one in here.values()),
            pss=look.whole.pss if look.whole else None,
            held=look.held_now(here),
            cached=self.caches.nbytes,
            at_batch=place.at_batch,
            at_epoch=place.at_epoch,
            fresh_at_batch=place.fresh_at_batch,
            **self._system(),
            disk_free=_disk_free(self._folder),
            batches=stats.batches,
            rows=stats.rows,
            bytes_out=stats.bytes_out,
            fresh_batches=stats.fresh_batches,
            wait_seconds=round(stats.consumer_wait_seconds, 4),
            wall_seconds=round(stats.wall_seconds, 4),
            gpus=tuple(self._gpus(pids, place.gpus)),
        )

    def private(self) -> int:
        """Return what the process itself, without its children and caches, holds now; some ten microseconds."""
        return max(0, resident([self.pid], self._proc)[self.pid].private - self.caches.nbytes)

    def fresh(self) -> int:
        """Return how many batches found no free slot since the first look."""
        return self._loaders().fresh_batches

    def _gpus(self, pids: Sequence[int], turns: Mapping[int, Turn] | None) -> list[GpuSample]:
        if self._inside:
            return own_samples(turns, self._by_driver.get())
        return self._nvml.samples(pids) if self._nvml else []

    def _looked(self) -> Look:
        pids = self._family.get()
        return Look(proportional(pids, self._proc), resident(pids, self._proc))

    def _tightest(self) -> MemoryGroup | None:
        total = parse_meminfo((self._proc / "meminfo").read_text()).get("MemTotal", 0)
        return tightest(memory_groups(self._root, str(self.pid)), total)

    def _system(self) -> dict[str, Any]:
        host = parse_meminfo((self._proc / "meminfo").read_text())
        told = {
            "total": host.get("MemTotal", 0),
            "available": host.get("MemAvailable", 0),
            "page_cache": host.get("Active(file)", 0) + host.get("Inactive(file)", 0),
        }
        group = self._group.get()
        found = group.read() if group else None
        if found is None:
            return told
        if found.limit is None or found.limit >= told["total"]:
            return {**told, "group_used": found.used}
        return {**told, "group_used": found.used, "group_limit": found.limit, "page_cache": found.cache}

    def _loaders(self) -> LoaderStats:
        """The counters of all loaders since the first look."""
        each = (_since(self._before.get(loader, LoaderStats()), _stats(loader)) for loader in loops.known_passes())
        return sum(each, LoaderStats())


@dataclass(frozen=True)
class Look:
    """A close look at processes: what they have in memory together, and each for itself at that moment."""

    whole: Proportional | None
    each: Mapping[int, Resident]

    def held_now(self, now: Mapping[int, Resident]) -> int:
        """What processes hold that no file backs: what it was at this look, and what has changed in each since.

        Without a close look it is the sum of what each holds, which counts twice what forked children share.
        """
        if self.whole is None or self.whole.held is None:
            return sum(one.private for one in now.values())
        since = sum(one.private - self.each[pid].private for pid, one in now.items() if pid in self.each)
        return max(0, self.whole.held + since)


def tightest(groups: Iterable[MemoryGroup], total: int) -> MemoryGroup | None:
    """The control group whose limit leaves least; where none is limited to less than `total`, the first that counts."""
    read = [(group, found) for group in groups if (found := group.read()) is not None]
    limited = [(found.left or 0, group) for group, found in read if found.limit is not None and found.limit < total]
    if limited:
        return min(limited, key=lambda one: one[0])[1]
    return read[0][0] if read else None


_COUNTED = ("batches", "rows", "bytes_out", "fresh_batches", "consumer_wait_seconds", "wall_seconds")


def _since(before: LoaderStats, now: LoaderStats) -> LoaderStats:
    return LoaderStats(**{name: max(0, getattr(now, name) - getattr(before, name)) for name in _COUNTED})


def _stats(loader: Any) -> LoaderStats:
    """The counters of a loader, which may begin and end passes meanwhile."""
    for _ in range(3):
        try:
            stats: LoaderStats = loader.stats()
            return stats
        except RuntimeError:  # its set of passes changed while it was walked through
            continue
    return LoaderStats()


def _disk_free(folder: Path | None) -> int | None:
    try:
        return None if folder is None else disk_free(folder)
    except OSError:
        return None
