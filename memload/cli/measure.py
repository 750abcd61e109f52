"""Measures speed and memory: epochs timed in turn, medians with their spread, memory peaks, pages held in memory.

A machine's speed drifts by tens of percent within minutes, so only figures of the same round are compared: `in_turn`
runs the contestants alternately, and `ratio` pairs their figures round by round.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import platform
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from memload import _core
from memload.memory import budget
from memload.memory.c_heap import trim_heap
from memload.monitoring.processes import family
from memload.nested import leaves
from memload.progress import Bar

T = TypeVar("T")
Bytes = np.memmap[Any, np.dtype[np.uint8]]

WATCHER = "peak-memory"  # the name of the thread that samples memory
_COPY_BYTES = 256 << 20
_COPY_SECONDS = 0.5
_MEASURED_EVERY = 0.005  # seconds between two samples of a process's memory


@dataclass(frozen=True)
class Spread:
    """A measured figure: its median, and the least and greatest value seen."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one value."""
        seen = sorted(values)
        return cls(statistics.median(seen), seen[0], seen[-1], len(seen))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Epoch:
    """One pass over a loader, or over the ceiling.

    Attributes:
        seconds: from the first request for a batch until the iterator is freed.
        first_batch: seconds until the first batch.
        cpu_seconds: CPU time of this process and of the workers that it started and ended.
        batches: batches delivered.
        samples: rows delivered.
        nbytes: bytes delivered, as the training loop sees them.
    """

    seconds: float
    first_batch: float
    cpu_seconds: float
    batches: int
    samples: int
    nbytes: int

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def gb_per_second(self) -> float:
        """10^9 bytes delivered per second."""
        return self.nbytes / self.seconds / 1e9

    @property
    def cpu_per_gb(self) -> float:
        """CPU seconds per 10^9 bytes delivered."""
        return self.cpu_seconds / self.nbytes * 1e9


def run_epoch(batches: Iterable[Any], limit: int | None = None, seconds: float = math.inf) -> Epoch:
    """Iterate once, over at most `limit` batches and about `seconds`; batches are kept no longer than in a loop."""
    cpu = cpu_seconds()
    begin = time.perf_counter()
    first = 0.0
    count = samples = nbytes = 0
    batch: Any = None
    iterator = iter(batches)
    for batch in iterator:
        if count == 0:
            first = time.perf_counter() - begin
        rows, size = _size_of(batch)
        count, samples, nbytes = count + 1, samples + rows, nbytes + size
        if count == limit or time.perf_counter() - begin > seconds:
            break
    del iterator, batch
    return Epoch(time.perf_counter() - begin, first, cpu_seconds() - cpu, count, samples, nbytes)


def in_turn(contestants: Mapping[str, Callable[[], T]], rounds: int, progress: Bar | None = None) -> dict[str, list[T]]:
    """Run every contestant once per round; every second round is in reverse order, so that none always comes first.

    A bar that is given as `progress` counts the runs, between them.
    """
    results: dict[str, list[T]] = {name: [] for name in contestants}
    for turn in range(rounds):
        gc.collect()
        for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
            results[name].append(contestants[name]())
            if progress is not None:
                progress.update(1)
    return results


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of the quotients of figures taken in the same rounds."""
    return Spread.of(a / b for a, b in zip(ours, theirs, strict=True))


def cpu_seconds() -> float:
    """Return the CPU seconds, user and system, of this process and its children; living children to a tick (10 ms)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime + cpu_seconds_of_children()


def cpu_seconds_of_children() -> float:
    """Return the CPU seconds of all descendants of this process; those of living ones to a tick."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(_cpu_seconds_of, family(os.getpid())[1:]))


def private_bytes() -> int:
    """Return the memory of this process and its children that no file backs, shared pages counted once."""
    return sum(_private_bytes(pid) for pid in family(os.getpid()))


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Sample the memory of this process and its children; yields a function that returns the peak above the start."""
    gc.collect()
    trim_heap()
    start = peak = private_bytes()
    stop = threading.Event()

    def sample() -> int:
        nonlocal peak
        peak = max(peak, private_bytes())
        return peak - start

    def watch() -> None:
        while not stop.wait(_MEASURED_EVERY):
            sample()

    watcher = threading.Thread(target=watch, name=WATCHER, daemon=True)
    watcher.start()
    try:
        yield sample
    finally:
        stop.set()
        watcher.join()


@contextlib.contextmanager
def held_in_memory(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Keep files in the page cache while measuring; yields a sentence that says how.

    Some machines drop cached pages within seconds. The files are locked in memory if this process may do so, and
    otherwise read beforehand. Locking counts against RLIMIT_MEMLOCK, which does not bind root.
    """
    files = [Path(path) for path in paths]
    views = [np.memmap(path, np.uint8, mode="r") for path in files]
    problems = [problem for problem in map(_lock, views) if problem]
    try:
        if not problems:
            yield "the files were locked in memory while measuring"
            return
        for path in files:
            _read_through(path)
        yield f"the files were read beforehand but not locked in memory ({problems[0]})"
    finally:
        for view in views:
            _unlock(view)


def memcpy_gb_per_second(threads: int) -> float:
    """Return the rate of plain memcpy between huge-page buffers larger than the caches, in 10^9 bytes per second."""
    run = _core.bench_memcpy(_COPY_BYTES, threads, _COPY_SECONDS)
    return float(run["bytes"] / run["seconds"] / 1e9)


def machine() -> dict[str, Any]:
    """Return the machine, the date and the versions, which belong to each figure."""
    memory = budget.memory()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpus": asdict(budget.cpus()),
        "isas": list(_core.isas()),
        "last_level_cache": budget.last_level_cache(),
        "huge_pages": asdict(budget.huge_pages()),
        "memory": {"total": memory.total, "free": memory.free},
        "kernel": platform.release(),
        "versions": {
            "memload": _core.version,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _size_of(batch: Any) -> tuple[int, int]:
    """Return the rows and bytes of a batch: tensors, texts, ragged rows or graphs, in a dict or a sequence.

    A list of dicts, one for each dataset, counts as one batch.
    """
    return _rows_of(batch), _bytes_of(batch)


def _rows_of(batch: Any) -> int:
    for name in ("offsets", "ptr"):  # Ragged and GraphBatch, and the batches of PyTorch Geometric
        if isinstance(getattr(batch, name, None), torch.Tensor):
            return len(getattr(batch, name)) - 1
    if isinstance(batch, Mapping):
        return _rows_of(next(iter(batch.values())))
    if isinstance(batch, list) and isinstance(batch[0], Mapping):
        return sum(map(_rows_of, batch))
    if isinstance(batch, list | tuple) and not isinstance(batch[0], str):
        return _rows_of(batch[0])
    return len(batch)


def _bytes_of(batch: Any) -> int:
    def is_graph(value: Any) -> bool:
        return hasattr(value, "to_dict")

    def nbytes(leaf: Any) -> int:
        if isinstance(leaf, torch.Tensor):
            return leaf.nbytes
        return len(leaf.encode()) if isinstance(leaf, str) else _bytes_of(leaf.to_dict()) if is_graph(leaf) else 0

    return sum(map(nbytes, leaves(batch, is_graph)))


def _private_bytes(pid: int) -> int:
    try:
        sizes = budget.parse_meminfo(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:  # a process that ended meanwhile
        return 0
    return sizes.get("Pss_Anon", sizes.get("Anonymous", 0)) + sizes.get("Pss_Shmem", 0)


def _cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds of a living process and of its ended children: fields 14 to 17 of `proc_pid_stat(5)`."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # a process that ended meanwhile
        return 0.0
    after_name = stat.rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")


def _lock(view: Bytes) -> str | None:
    """Lock a mapping in memory; return the reason if that was refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(view.nbytes)) == 0:
        return None
    return os.strerror(ctypes.get_errno())


def _unlock(view: Bytes) -> None:
    ctypes.CDLL(None).munlock(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(view.nbytes))


def _read_through(path: Path) -> None:
    piece = bytearray(1 << 24)
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass
