"""Rows in RAM that a GPU reads by itself: one run of memory that native threads and the device both read.

    memory (huge pages, registered with the driver)
      |- storage: native threads gather rows of it, for the ring and for loops on the CPU
      `- device tensor: a tensor of the GPU over these bytes; its kernels read them across the bus

Where the device is a CPU, the device tensor is the memory itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from memload._core import Column, Storage, Windows, withheld
from memload.columns.fields import Field, MemoryOwner
from memload.device.cuda_module import cuda_module
from memload.device.devices import lasting
from memload.device.frames import FrameIndex, Numbers, frames_of
from memload.device.numa import node_of_gpu
from memload.device.resident import ResidentColumn, ResidentField
from memload.device.torch_interface import native_device
from memload.errors import DeviceError, first_line
from memload.sizes import format_size

_PORTABLE = 1  # CUDA's cudaHostRegisterPortable: pinned for all devices of the process


_STILL_READ: list[torch.Tensor] = []
"""Memory of which nobody could tell whether a device still reads it; it stays until the process ends."""


class Reads:
    """The reads of memory by the streams of devices that may be under way."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], Callable[[], None]] = {}  # waits for each stream, by device and handle

    def note(self, device: torch.device) -> None:
        """Note what is queued in a device's current stream now."""
        if device.type != "cuda":
            return
        stream = torch.cuda.current_stream(device)
        native, handle = native_device(stream.device_index), stream.cuda_stream
        if native is None:
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
            wait: Callable[[], None] = event.synchronize
        else:
            wait = functools.partial(native.synchronise, native.record(handle))
        self._last[stream.device_index, handle] = wait  # for all that the stream did before, too

    def wait(self) -> bool:
        """Wait until all that was noted is done; return whether it is: False where a stream cannot be asked."""
        done = True
        for wait in list(self._last.values()):
            try:
                wait()
            except RuntimeError as error:
                done = done and bool(lasting(str(error)))  # after a failed kernel, nothing runs any more
        return done


class PinnedMemory:
    """Memory for a table of rows: uint8 (rows, row_bytes).

    Forked processes do not inherit it: the kernel would have to copy all of it, since a device reads it.

    Args:
        rows, row_bytes: the shape of the table.
        device: the device that reads it, on whose NUMA node it lies as far as there is room; for a CPU nothing is
            pinned.

    Attributes:
        table: the rows, as a CPU tensor.
        storage: the rows, as native threads read them.
    """

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        near = node_of_gpu(torch.cuda.current_device() if device.index is None else device.index) if cuda else None
        memory = withheld(rows * row_bytes, near.number if near else None)
        self._begin(from_dlpack(memory).view(rows, row_bytes), device, Reads())

    @classmethod
    def over(cls, table: torch.Tensor, device: torch.device, reads: Reads) -> PinnedMemory:
        """Return rows in memory of the caller's, whose reads are noted in `reads`, too."""
        made = cls.__new__(cls)
        made._begin(table, device, reads)
        return made

    def _begin(self, table: torch.Tensor, device: torch.device, reads: Reads) -> None:
        self.table, self.device, self._reads = table, device, reads
        self.storage = Storage.borrow(table, table.data_ptr(), table.nbytes, "pinned memory")
        self._process = os.getpid()

    def check_here(self) -> None:
        """Raise DeviceError in a process that was forked."""
        if os.getpid() != self._process:
            raise DeviceError(
                f"rows in RAM that is pinned for {self.device} belong to the process that loaded them, and this one "
                "was forked from it: let it read the dataset in files (memload.FastLoader needs no worker processes), "
                "or call memload.to_device in it"
            )

    def pin(self) -> None:
        """Register the memory with the driver, after it is filled: pinning untouched pages takes the driver longer.

        Raises:
            DeviceError: the driver refuses to pin so much.
        """
        if self.device.type != "cuda" or not self.table.numel():
            return
        try:
            with torch.cuda.device(self.device):
                _register(self.table)
        except RuntimeError as error:
            raise DeviceError(
                f"{format_size(self.table.nbytes)} of RAM could not be pinned for {self.device} ({first_line(error)}). "
                'A container\'s memory limit or `ulimit -l` may forbid it: give tier="device" if it fits there, or '
                "keep the dataset in files"
            ) from error
        weakref.finalize(self, _unpin, self.device, self.table, self._reads, os.getpid()).atexit = False

    def was_read(self, device: torch.device | None = None) -> None:
        """Keep the memory pinned until a device's current stream has finished the work queued now."""
        self._reads.note(device or self.device)

    def seen(self) -> torch.Tensor | None:
        """Return the table as a tensor of the device, which keeps this object alive.

        None if torch cannot make such a tensor, or the device reads the memory at another address than the CPU.
        """
        if self.device.type != "cuda" or not self.table.numel():
            return self.table
        address = self.table.data_ptr()
        try:
            if _device_address(address, self.device) != address:
                return None
            seen = torch.as_tensor(_AsCuda(self), device=self.device)
        except (RuntimeError, TypeError, ValueError):
            return None
        return seen if seen.data_ptr() == address else None  # another address means a copy


def _device_address(address: int, device: torch.device) -> int:
    """Return the device's address of registered memory, which on some systems differs from the CPU's."""
    try:
        module = cuda_module()
    except ImportError:
        return address  # torch cannot query it
    return int(module.mapped_address(address, device.index))


class _AsCuda:
    """An object from which torch makes a CUDA tensor at the same address; the tensor keeps it alive."""

    def __init__(self, memory: PinnedMemory) -> None:
        self._memory = memory
        shape, address = tuple(memory.table.shape), memory.table.data_ptr()
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (address, False), "version": 3}


def _register(table: torch.Tensor) -> None:
    """Register memory with the driver, for all devices of the process. Raises RuntimeError."""
    device, address = torch.cuda.current_device(), table.data_ptr()
    native = native_device(device)
    if native is not None:
        native.register_host(address, table.nbytes)
        return
    status = torch.cuda.cudart().cudaHostRegister(address, table.nbytes, _PORTABLE)  # type: ignore[no-untyped-call]
    if int(status) != 0:
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device=device).fill_(1)  # torch's next kernel reports the error of the call as its own
        raise RuntimeError(f"cudaHostRegister: {status}")


def _unregister(table: torch.Tensor) -> None:
    native = native_device(torch.cuda.current_device())
    if native is None:
        torch.cuda.cudart().cudaHostUnregister(table.data_ptr())  # type: ignore[no-untyped-call]
    else:
        native.unregister_host(table.data_ptr())


def _unpin(device: torch.device, table: torch.Tensor, reads: Reads, process: int) -> None:
    """Unpin the memory after all streams have read it; do nothing in a forked child, which does not have it."""
    if os.getpid() != process:
        return
    if not reads.wait():
        _STILL_READ.append(table)
        return
    with contextlib.suppress(RuntimeError), torch.cuda.device(device):  # after a failed kernel, all calls fail
        _unregister(table)


@dataclass(frozen=True, eq=False)
class SeenColumn(ResidentColumn):
    """Rows in pinned memory, as the device reads them.

    Args:
        memory: the memory of the rows.
    """

    memory: PinnedMemory | None = None

    is_far = True

    def was_read(self) -> None:
        """Keep the memory pinned until the device's current stream has finished the work queued now."""
        if self.memory is not None:
            self.memory.was_read()


@dataclass(frozen=True, eq=False)
class _PinnedOwner(MemoryOwner):
    """The owner of pinned memory, which each of its fields keeps alive; it exists only in its own process."""

    memory: PinnedMemory

    guarded = False

    def check(self) -> None:
        """Raise DeviceError in a process that was forked."""
        self.memory.check_here()


@dataclass(frozen=True)
class PinnedField(Field):
    """A field in pinned memory. For the CPU it is a field in RAM; `resident_fields` makes device fields of it.

    Args:
        memory: the memory of its rows.
    """

    memory: PinnedMemory | None = None

    @classmethod
    def of(cls, field: Field, memory: PinnedMemory, index: FrameIndex) -> PinnedField:
        """Return a field like this one whose frames lie in pinned memory."""
        rows, row_bytes = memory.table.shape
        stored = Column(row_bytes, [(memory.storage, 0, rows, row_bytes)])
        owners = (_PinnedOwner("pinned memory", memory.table, None, memory),)
        return cls(
            field.dtype, field.shape, _indexed(stored, index), owners, field.digest, memory=memory, meant=field.meant
        )


def _indexed(stored: Column, index: FrameIndex) -> Column | Windows:
    """Return the column of the rows of an index into stored frames, for native threads."""
    frames = stored if index.places is None else stored.select(index.places)
    if index.steps is None:
        return frames if isinstance(index.begins, range) else frames.select(index.begins)
    first = max(0, -min(index.steps))
    after = frames.rows - max(0, max(index.steps))
    every = Windows(frames, list(index.steps), [(first, after - first, 1)])
    return every.select(np.asarray(index.begins) - first)


def resident_fields(fields: Mapping[Any, Field], device: torch.device) -> dict[Any, Field] | None:
    """Return fields in pinned memory as fields that the device gathers; None if not all are in such memory."""
    found: dict[Any, Field] = {}
    for key, field in fields.items():
        resident = _resident(field) if isinstance(field, PinnedField) else None
        if resident is None or resident.device != device:
            return None
        found[key] = resident
    return found


def _resident(field: PinnedField) -> ResidentField | None:
    """Return the field that its device gathers; None if it cannot, or some rows are elsewhere."""
    memory = field.memory
    frames, index = frames_of(field)
    if memory is None or not isinstance(frames.column, Column) or frames.row_bytes != memory.table.shape[1]:
        return None
    numbers, seen = _numbers(frames.column, memory), memory.seen()
    if numbers is None or seen is None:
        return None
    if not isinstance(numbers, range):
        index = index.into(numbers)
    return ResidentField(
        field.dtype, field.shape, SeenColumn(seen, index, memory=memory), digest=field.digest, meant=field.meant
    )


def _numbers(column: Column, memory: PinnedMemory) -> Numbers | range | None:
    """Return the numbers in the memory of a column's stored rows; a range: all rows in order."""
    row_bytes, parts = column.row_bytes, []
    for storage, offset, rows, stride in column.segments:
        if storage is not memory.storage or offset % max(1, row_bytes) or (stride != row_bytes and rows > 1):
            return None
        parts.append(offset // max(1, row_bytes) + np.arange(rows))
    if len(parts) == 1 and len(parts[0]) == len(memory.table):
        return range(len(memory.table))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
