"""What a monitor sees of GPUs: torch's allocator where CUDA runs already, and what others take, by NVML if it is there.

Looking starts nothing: CUDA is never initialised here, and only devices on which this process has memory are asked.
What asks a GPU has not run on one yet; what is computed from the answers is tested without one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memload.gpu.memory import parse_memory


@dataclass(frozen=True)
class GpuSample:
    """The memory of one GPU at one moment, in bytes; None: not known.

    Attributes:
        index: its number, as torch counts the visible ones; for other processes, as NVML counts.
        total: what it has.
        free: what the driver could give.
        allocated: of live tensors of this process.
        reserved: what torch's allocator took from the driver for them and for tensors to come.
        peak: the most that was allocated at one time since the peaks were reset.
        at_batch: what was allocated when the loop last asked for a batch: always at the same point of a step.
        own: what the driver counts for the process and its children, contexts included.
        others: what it counts for all other processes.
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
        """What part of it nobody can have any more; what torch keeps for tensors to come can be had."""
        cached = (self.reserved or 0) - (self.allocated or 0)
        return 1 - (self.free + max(0, cached)) / max(1, self.total)


def split(used: Mapping[int, int | None], family: Collection[int]) -> tuple[int | None, int | None]:
    """What processes take of a GPU, as (of the family, of the others).

    Args:
        used: bytes by process, as NVML lists them; None where it does not know.
        family: process numbers. NVML counts those of the host: from inside a container none of them may be found, and
            then nothing is known of either.
    """
    own = [nbytes for pid, nbytes in used.items() if pid in family]
    if not own:
        return None, None
    return sum(nbytes or 0 for nbytes in own), sum(nbytes or 0 for pid, nbytes in used.items() if pid not in family)


class Nvml:
    """The driver's own view of GPUs. Make it with `Nvml.open`."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    @classmethod
    def open(cls) -> Nvml | None:
        """Return it, or None without pynvml (the extra `monitor`), or without a driver."""
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
        """Bytes by process on one GPU; empty where that is not told."""
        try:
            return self._processes(self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        except self._nvml.NVMLError:
            return {}

    def samples(self, family: Collection[int]) -> list[GpuSample]:
        """What each GPU holds on which one of these processes has memory."""
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


def own_samples(nvml: Nvml | None, family: Collection[int], at_batch: Mapping[int, int]) -> list[GpuSample]:
    """What each GPU holds on which torch has memory in this process; nothing as long as CUDA has not been started.

    Args:
        nvml: asked for what others take.
        family: this process and its children.
        at_batch: what was allocated when the loop last asked for a batch, by device.
    """
    if not _running():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        if not stats.get("reserved_bytes.all.current"):
            continue  # asking the driver for its free memory would make a context there
        memory = parse_memory(index, "", torch.cuda.mem_get_info(index), stats)
        taken, others = split(nvml.used_by(_uuid(index)), family) if nvml else (None, None)
        own, between = memory.own, at_batch.get(index)
        figures = (own.allocated, own.reserved, own.peak_allocated, between, taken, others)
        found.append(GpuSample(index, memory.total, memory.free, *figures))
    return found


def allocated_now() -> dict[int, int]:
    """Bytes of live tensors by device, on all devices that this process uses."""
    if not _running():
        return {}
    each = {index: torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())}
    return {index: nbytes for index, nbytes in each.items() if nbytes}


def _running() -> bool:
    """Whether this process has started CUDA; looking does not start it."""
    running: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return running


def _uuid(index: int) -> str:
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", "")  # of torch 2.7 on
    return f"GPU-{uuid}"
