"""What a GPU's memory holds: free, this process's, others'. The one place that asks a GPU for it.

    |<------------------------------- total ------------------------------->|
    | allocated | cached by torch | contexts, libraries, other processes | free |
    |<--------- reserved -------->|<-------------- others ------------->|

It has not run on a GPU yet; what is computed from torch's answers is tested without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memload.sizes import format_size

CONTEXT = 512 << 20
"""Bytes that are set aside for the context and the libraries of a process where no GPU can be asked: an assumption."""


@dataclass(frozen=True)
class AllocatorBytes:
    """What torch's caching allocator holds on one GPU for this process, in bytes.

    Attributes:
        allocated: of live tensors.
        reserved: taken from the driver: `allocated`, and what is kept for tensors to come.
        split: free parts of blocks that are partly in use. Much of it: memory is fragmented, since these parts can
            neither go back to the driver nor hold a tensor larger than the largest of them.
        peak_allocated: the most that was allocated at one time since the peaks were reset.
        peak_reserved: the most that was reserved.
        retries: how often the cache had to be emptied to serve an allocation; above 0: memory is short.
        failures: how often an allocation failed for good.
    """

    allocated: int = 0
    reserved: int = 0
    split: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    retries: int = 0
    failures: int = 0

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that is caught in blocks partly in use; 0: none."""
        return self.split / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU, in bytes.

    Attributes:
        index: its number, as torch counts the visible ones.
        name: of the model.
        total: what it has.
        free: what the driver could give now.
        own: what torch's allocator holds for this process.
    """

    index: int
    name: str
    total: int
    free: int
    own: AllocatorBytes

    @property
    def others(self) -> int:
        """What contexts, libraries and other processes hold; far above 500 MB: somebody else is on this GPU."""
        return max(0, self.total - self.free - self.own.reserved)

    @property
    def available(self) -> int:
        """What this process can still allocate: what is free, and what torch keeps for tensors to come."""
        return self.free + max(0, self.own.reserved - self.own.allocated)

    def __str__(self) -> str:
        return (
            f"GPU {self.index}, {self.name}: {format_size(self.available)} of {format_size(self.total)} available, "
            f"{format_size(self.own.allocated)} in tensors, {format_size(self.others)} in contexts and of others"
        )


def gpu_memory(device: torch.device | str | int | None = None) -> GpuMemory | None:
    """Return what the memory of a GPU holds now; None where torch finds none.

    Starts CUDA on that device, which takes some 100 ms, and memory of it that counts among `others`.

    Args:
        device: such as "cuda:1" or 1; None: torch's current device.

    Raises:
        ValueError: it is no CUDA device, or there are fewer.
    """
    if not torch.cuda.is_available():
        return None
    index = device_index(device, torch.cuda.device_count(), torch.cuda.current_device())
    return parse_memory(
        index, torch.cuda.get_device_name(index), torch.cuda.mem_get_info(index), torch.cuda.memory_stats(index)
    )


def gpu_memories() -> list[GpuMemory]:
    """Return what the memory of each visible GPU holds; empty where torch finds none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [found for index in range(count) if (found := gpu_memory(index)) is not None]


def parse_memory(index: int, name: str, info: tuple[int, int], stats: Mapping[str, Any]) -> GpuMemory:
    """Return a GPU's memory of `torch.cuda.mem_get_info`, (free, total), and `torch.cuda.memory_stats`."""
    free, total = info
    return GpuMemory(index, name, int(total), int(free), parse_stats(stats))


def parse_stats(stats: Mapping[str, Any]) -> AllocatorBytes:
    """Return the bytes that `torch.cuda.memory_stats` tells; of an allocator that tells nothing, zeros."""
    return AllocatorBytes(
        allocated=int(stats.get("allocated_bytes.all.current", 0)),
        reserved=int(stats.get("reserved_bytes.all.current", 0)),
        split=int(stats.get("inactive_split_bytes.all.current", 0)),
        peak_allocated=int(stats.get("allocated_bytes.all.peak", 0)),
        peak_reserved=int(stats.get("reserved_bytes.all.peak", 0)),
        retries=int(stats.get("num_alloc_retries", 0)),
        failures=int(stats.get("num_ooms", 0)),
    )


def device_index(device: torch.device | str | int | None, count: int, current: int) -> int:
    """Return the number of a CUDA device among `count`; `current` where none is named.

    Raises:
        ValueError: it is no CUDA device, or there are fewer.
    """
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    if named.type != "cuda":
        raise ValueError(f"the memory of a GPU was asked for, and {str(named)!r} is none: give cuda, cuda:0, ...")
    index = current if named.index is None else named.index
    if index >= count:
        raise ValueError(f"there is no {str(named)!r}: this process sees {count}, from cuda:0 to cuda:{count - 1}")
    return index
