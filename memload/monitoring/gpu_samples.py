"""Samples of GPU memory: torch's allocator where CUDA runs already, and other processes by NVML where it is installed.

This module never initialises CUDA, and queries only devices on which this process has memory. The queries have not run
on a GPU yet; the functions that evaluate the answers are tested without one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memload.device.memory import parse_memory


@dataclass(frozen=True)
class GpuSample:
    """The memory of one GPU at one moment, in bytes; None: not known.

    Attributes:
        index: its number among the GPUs visible to torch; for other processes, its number in NVML.
        total: its memory.
        free: the bytes that the driver could allocate.
        allocated: bytes of live tensors of this process.
        reserved: the bytes that torch's allocator took from the driver for present and future tensors.
        peak: the most bytes allocated at one time since the peaks were reset.
        at_batch: the bytes allocated when the loop last asked for a batch: always at the same point of a step.
        own: the driver's count for the process and its children, contexts included.
        others: the driver's count for all other processes.
    """

    index: int
    total: int
    free: int
    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    at_batch: int | None = None
    own: int | None = None
    others: int | None = None

    @property
    def share(self) -> float:
        """The share of `total` that is in use; memory that torch keeps cached for later tensors counts as free."""
        cached = (self.reserved or 0) - (self.allocated or 0)
        return 1 - (self.free + max(0, cached)) / max(1, self.total)


Split = tuple[int | None, int | None]
"""Bytes that the driver counts on a GPU for some processes, and for all others; None: not known."""


def split(used: Mapping[int, int | None], family: Collection[int]) -> Split:
    """Return the bytes that processes take of a GPU, as (of the family, of the others).

    Args:
        used: bytes by process, as NVML lists them; None where it does not know.
        family: process numbers. NVML lists numbers of the host, so inside a container none may match; then neither
            figure is known.
    """
    own = [nbytes for pid, nbytes in used.items() if pid in family]
    if not own:
        return None, None
    return sum(nbytes or 0 for nbytes in own), sum(nbytes or 0 for pid, nbytes in used.items() if pid not in family)


class Nvml:
    """The driver's figures of GPUs; `Nvml.open` makes it."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    @classmethod
    def open(cls) -> Nvml | None:
        """Return the library; None without pynvml (the extra `monitor`) or without a driver."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def used_by(self, uuid: str) -> dict[int, int | None]:
        """Return bytes by process on one GPU; empty if the driver does not report them."""
        try:
            return self._processes(self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        except self._nvml.NVMLError:
            return {}

    def samples(self, family: Collection[int]) -> list[GpuSample]:
        """Return a sample of each GPU on which one of these processes has memory."""
        found = []
        with contextlib.suppress(self._nvml.NVMLError):
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                own, others = split(self._processes(handle), family)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                if own is not None:
                    found.append(GpuSample(index, int(memory.total), int(memory.free), own=own, others=others))
        return found

    def _processes(self, handle: Any) -> dict[int, int | None]:
        listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {process.pid: process.usedGpuMemory for process in listed}


@dataclass(frozen=True)
class GpuTick:
    """Bytes of a GPU that the loop's own thread measured between two batches, always at the same point of a step."""

    allocated: int
    free: int
    total: int


def ticks_now() -> dict[int, GpuTick]:
    """Return a tick of each GPU on which torch has memory in this process.

    The loop's own thread calls it between two batches: it queries the driver, and no thread may do that while another
    captures a CUDA graph.
    """
    return {index: GpuTick(torch.cuda.memory_allocated(index), *torch.cuda.mem_get_info(index)) for index in _used()}


def own_samples(ticks: Mapping[int, GpuTick] | None, by_driver: Mapping[int, Split]) -> list[GpuSample]:
    """Return a sample of each GPU on which torch has memory in this process; none before CUDA was started.

    Args:
        ticks: what the loop last measured between two batches; None: there is no loop, and the driver is queried here.
        by_driver: the driver's counts, by GPU.
    """
    found = []
    for index in _used():
        tick = (ticks_now() if ticks is None else ticks).get(index)
        if tick is not None:
            stats = torch.cuda.memory_stats(index)
            found.append(gpu_sample(index, tick, stats, by_driver.get(index, (None, None)), ticks is not None))
    return found


def gpu_sample(
    index: int, tick: GpuTick, stats: Mapping[str, Any], counted: Split, between_batches: bool = True
) -> GpuSample:
    """Return a sample from a tick, `torch.cuda.memory_stats`, and the driver's counts."""
    own = parse_memory(index, "", (tick.free, tick.total), stats).own
    at_batch = tick.allocated if between_batches else None
    figures = (own.allocated, own.reserved, own.peak_allocated, at_batch, *counted)
    return GpuSample(index, tick.total, tick.free, *figures)


def counted_by_driver(nvml: Nvml | None, family: Collection[int]) -> dict[int, Split]:
    """Return the driver's counts for the family and for others, on each GPU on which torch has memory here."""
    return {} if nvml is None else {index: split(nvml.used_by(_uuid(index)), family) for index in _used()}


def _used() -> list[int]:
    """Return the GPUs on which torch has memory; a query of another GPU would start a context there."""
    if not _running():
        return []
    return [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]


def _running() -> bool:
    """Return whether this process has started CUDA; this call does not start it."""
    running: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return running


def _uuid(index: int) -> str:
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", "")  # of torch 2.7 on
    return f"GPU-{uuid}"
