"""Reads the memory of GPUs: free bytes, those of this process, and those of others. No other module queries them.

    |<------------------------------- total ------------------------------->|
    | allocated | cached by torch | contexts, libraries, other processes | free |
    |<--------- reserved -------->|<-------------- others ------------->|

The functions that evaluate torch's answers are tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memload.sizes import format_size

CONTEXT = 512 << 20
"""The assumed bytes of the context and the libraries of a process, where no GPU can be queried."""


@dataclass(frozen=True)
class AllocatorBytes:
    """The memory of torch's caching allocator on one GPU for this process, in bytes.

    Attributes:
        allocated: bytes of live tensors.
        reserved: bytes taken from the driver: `allocated`, and cached blocks for later tensors.
        split: free parts of blocks that are partly in use. A large figure means fragmentation: these parts can neither
            go back to the driver nor hold a tensor larger than the largest of them.
        peak_allocated: the most bytes allocated at one time since the peaks were reset.
        peak_reserved: the most bytes reserved at one time.
        retries: how often the cache was emptied to serve an allocation; above 0, memory is short.
        failures: how often an allocation failed.
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
        """The share of the reserved bytes in free parts of blocks that are partly in use."""
        return self.split / self.reserved if self.reserved else 0.0


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU, in bytes.

    Attributes:
        index: its number among the GPUs visible to torch.
        name: the name of the model.
        total: all bytes.
        free: bytes that the driver could allocate now.
        own: the memory of torch's allocator for this process.
    """

    index: int
    name: str
    total: int
    free: int
    own: AllocatorBytes

    @property
    def others(self) -> int:
        """The bytes of contexts, libraries and other processes; far above 500 MB, another process uses this GPU."""
        return max(0, self.total - self.free - self.own.reserved)

    @property
    def available(self) -> int:
        """The bytes that this process can still allocate: free ones, and those that torch keeps cached."""
        return self.free + max(0, self.own.reserved - self.own.allocated)

    def __str__(self) -> str:
        return (
            f"GPU {self.index}, {self.name}: {format_size(self.available)} of {format_size(self.total)} available, "
            f"{format_size(self.own.allocated)} in tensors, {format_size(self.others)} in contexts and of others"
        )


def gpu_memory(device: torch.device | str | int | None = None) -> GpuMemory | None:
    """Return the memory of a GPU now; None if torch finds none.

    This starts CUDA on that device, which takes some 100 ms, and memory that counts among `others`.

    Args:
        device: the device, such as "cuda:1" or 1; None: torch's current device.

    Raises:
        ValueError: it is no CUDA device, or does not exist.
    """
    if not torch.cuda.is_available():
        return None
    index = device_index(device, torch.cuda.device_count(), torch.cuda.current_device())
    return parse_memory(
        index, torch.cuda.get_device_name(index), torch.cuda.mem_get_info(index), torch.cuda.memory_stats(index)
    )


class OperationPeaks:
    """Reads from torch's allocator what single operations on a GPU take beside their results.

    The peaks of ``torch.cuda.max_memory_allocated`` begin again at each operation.

    Args:
        device: the GPU.
        read, reset: the allocator's figures and the reset of its peaks; others than those of torch are for tests.
    """

    def __init__(
        self,
        device: torch.device,
        read: Callable[[torch.device], Mapping[str, Any]] = torch.cuda.memory_stats,
        reset: Callable[[torch.device], object] = torch.cuda.reset_peak_memory_stats,
    ) -> None:
        self._device, self._read, self._reset = device, read, reset

    def begin(self) -> None:
        """Note that an operation begins."""
        self._reset(self._device)

    def scratch(self) -> int:
        """Return the bytes that the operation had at most beside what is there after it."""
        own = parse_stats(self._read(self._device))
        return max(0, own.peak_allocated - own.allocated)


def gpu_memories() -> list[GpuMemory]:
    """Return the memory of each visible GPU; empty if torch finds none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [found for index in range(count) if (found := gpu_memory(index)) is not None]


def parse_memory(index: int, name: str, info: tuple[int, int], stats: Mapping[str, Any]) -> GpuMemory:
    """Return a GPU's memory from `torch.cuda.mem_get_info`, (free, total), and `torch.cuda.memory_stats`."""
    free, total = info
    return GpuMemory(index, name, int(total), int(free), parse_stats(stats))


def parse_stats(stats: Mapping[str, Any]) -> AllocatorBytes:
    """Return the figures of `torch.cuda.memory_stats`; zeros where an allocator has none."""
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
    """Return the number of a CUDA device among `count`; `current` if none is named.

    Raises:
        ValueError: it is no CUDA device, or does not exist.
    """
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    if named.type != "cuda":
        raise ValueError(f"the memory of a GPU was asked for, and {str(named)!r} is none: give cuda, cuda:0, ...")
    index = current if named.index is None else named.index
    if index >= count:
        raise ValueError(f"there is no {str(named)!r}: this process sees {count}, from cuda:0 to cuda:{count - 1}")
    return index
