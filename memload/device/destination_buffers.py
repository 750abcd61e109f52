"""Gatherers whose batches are not in memload's slots, but on the device, or in pinned memory of torch.

plan -> gather, native threads -> pinned slot -> copies, slice by slice -> buffer -> cast -> batch on the device
plan -> gather, native threads -> pinned memory of torch's allocator -> batch
"""

from __future__ import annotations

import abc
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from memload import _core
from memload.device.casting import cast_on_device
from memload.device.interface import HostMemory, Interface
from memload.device.placing import AHEAD_OF_DEVICE, Placer
from memload.engine.gather_spec import GatherSpec, as_it_is
from memload.engine.gatherer import Gatherer, capture
from memload.engine.on_cpu import PipelinedBatches
from memload.engine.settings import PassSettings, bytes_of_slot
from memload.sizes import format_size

_PROBED_BYTES = 16 << 20


class PinnedRing:
    """The memory of a pass's slots; it warns when they are not pinned.

    Args:
        device: the device that reads the slots.
        slots: the native source of memory.
    """

    def __init__(self, device: torch.device, slots: _core.PinnedSlots) -> None:
        self._device, self.slots = device, slots
        self._warned = False

    @classmethod
    def of(cls, interface: Interface, limit: int | None) -> PinnedRing:
        """Return a ring that pins at most `limit` bytes."""
        assert interface.native is not None
        node = interface.near.number if interface.near else None
        return cls(interface.device, _core.PinnedSlots(interface.native, limit, node))

    def warn_of_refusal(self) -> None:
        """Warn once if slots are pageable."""
        if self._warned or not (why := self.slots.refusal):
            return
        self._warned = True
        warnings.warn(
            f"slots are not all pinned: {why}. {format_size(self.slots.pinned_bytes)} are; copies from the others to "
            f"{self._device} are several times slower. Give a smaller batch_size or depth, allow more by "
            "EngineOptions(pinned_bytes=...), or let the machine (a container's memory limit, `ulimit -l`) allow it",
            RuntimeWarning,
            stacklevel=2,
        )


def pinned_copy_rate(interface: Interface) -> float:
    """Return the bytes per second of copies from pinned slots to a device; 0 if it pins nothing. Takes some 10 ms.

    Args:
        interface: the device, with `native`.
    """
    assert interface.native is not None
    memory = interface.empty(_PROBED_BYTES, interface.copies)
    try:
        handle = interface.handle(interface.copies)
        seconds = _core.copy_seconds(interface.native, handle, memory.data_ptr(), memory.nbytes)
    except RuntimeError:  # pinning was refused; a pass warns of that itself
        return 0.0
    return memory.nbytes / max(seconds, 1e-9)


Array = tuple[int, int, int, int, list[int]]  # part, offset in it, DLPack code, bits, shape

_DTYPES = {
    (0, 8): torch.int8,
    (0, 16): torch.int16,
    (0, 32): torch.int32,
    (0, 64): torch.int64,
    (1, 8): torch.uint8,
    (1, 16): torch.uint16,
    (1, 32): torch.uint32,
    (1, 64): torch.uint64,
    (2, 16): torch.float16,
    (2, 32): torch.float32,
    (2, 64): torch.float64,
    (4, 16): torch.bfloat16,
    (5, 64): torch.complex64,
    (6, 8): torch.bool,
}

_CPU = torch.device("cpu")


class OnDevice(NamedTuple):
    """A batch that is on the device for work that follows in the stream `work`.

    Attributes:
        batch: the batch.
        memory: a tensor of each memory that it lies in; None: that is not known.
    """

    batch: Any
    memory: Sequence[torch.Tensor] | None = None


class _IntoDestination(PipelinedBatches):
    """A gatherer whose pipeline requests memory for each batch."""

    def __init__(self, settings: PassSettings, pipeline: _core.Pipeline) -> None:
        super().__init__(settings, pipeline)
        self._destinations: deque[tuple[torch.Tensor | None, ...]] = deque()  # one for each batch that has begun

    def is_ready(self) -> bool:
        """Return whether `next` has a batch without waiting."""
        while isinstance(found := self._pipeline.ready(), tuple):
            self._provide_destinations(found)
        return bool(found)

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        while isinstance(found := self._pipeline.next(timeout), tuple):
            self._provide_destinations(found)
        return None if found is None else self._batch(self._destinations.popleft(), found)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and free memory and threads, or keep the slots for a later pass."""
        super().close(keep_slots, at_once)
        self._destinations.clear()

    def _provide_destinations(self, need: tuple[int, int] | None) -> None:
        while need is not None:
            buffers = self._memory(*need)
            addresses = [0 if part is None else part.data_ptr() for part in buffers]
            self._destinations.append(buffers)
            need = self._pipeline.set_destination(addresses[0], addresses[-1], buffers)

    @abc.abstractmethod
    def _memory(self, first: int, second: int) -> tuple[torch.Tensor | None, ...]:
        """Return memory for the two parts of a batch; an empty part needs none."""

    @abc.abstractmethod
    def _batch(self, buffers: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> Any:
        """Return the batch of these arrays in its memory."""


class PinnedBatches(_IntoDestination):
    """Batches in pinned memory of torch's allocator, which gets it back when the last tensor is freed.

    Torch's allocator records the copies from its memory if the tensor's storage is its own. So batches are views of its
    tensors, and the allocator decides when the memory is reused.
    """

    def __init__(self, settings: PassSettings, host: HostMemory) -> None:
        super().__init__(settings, settings.pipeline(None, borrowed=True))
        self._host = host
        self._unpack = settings.source.unpacker(take=as_it_is)

    def _memory(self, first: int, second: int) -> tuple[torch.Tensor | None, ...]:  # noqa: ARG002 - there is one part
        return (self._host.pinned(max(1, first)),)

    def _batch(self, buffers: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> Any:
        return capture(self._unpack, _small_apart(_views(buffers, arrays, _CPU), arrays, self._host))


class CopiedBatches(PinnedBatches):
    """Pinned batches that are copied whole to the device, where native code cannot copy while it gathers."""

    def __init__(self, settings: PassSettings, placer: Placer) -> None:
        super().__init__(settings, placer.interface)
        self._placer = placer
        self._unpack = settings.source.unpacker(take=as_it_is, cast=cast_on_device)

    def _batch(self, buffers: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> OnDevice:
        placed = self._placer.place(_views(buffers, arrays, _CPU))
        return OnDevice(self._placer.launch(self._unpack, placed))


class TransferredBatches(_IntoDestination):
    """Batches that native threads copy to the device while they gather, through a ring of pinned slots.

    The buffers of a batch have two parts: fields that are cast on the device, whose part is freed then, and fields that
    the loop gets unchanged. Both belong to the stream of copies.
    """

    def __init__(self, settings: PassSettings, interface: Interface, reuse: Gatherer | None) -> None:
        kept = reuse if isinstance(reuse, TransferredBatches) and reuse._interface.native is interface.native else None
        self._interface: Interface = interface
        self._made = len(settings.source.made_there())
        self._cast_there = bool(self._made or settings.source.late_casts)
        self._ring: PinnedRing = kept._ring if kept else PinnedRing.of(interface, settings.options.pinned_bytes)
        route = (interface.native, interface.handle(interface.copies), interface.handle(interface.work))
        pipeline = settings.pipeline(
            kept._pipeline if kept else None,
            slots=self._ring.slots,
            route=(*route, self._made),
            cpus=interface.near.cpus if interface.near else (),
        )
        super().__init__(settings, pipeline)
        self._unpack = settings.source.unpacker(take=as_it_is, cast=cast_on_device)

    @property
    def pinned_bytes(self) -> int:
        """The bytes of the ring that are pinned now."""
        return self._ring.slots.pinned_bytes

    def _memory(self, first: int, second: int) -> tuple[torch.Tensor | None, ...]:
        self._ring.warn_of_refusal()
        interface = self._interface
        return tuple(interface.empty(nbytes, interface.copies) if nbytes else None for nbytes in (first, second))

    def _batch(self, buffers: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> OnDevice:
        interface, memory = self._interface, [part for part in buffers if part is not None]
        views = _views(buffers, arrays, interface.device)
        if not self._cast_there:
            return OnDevice(self._unpack(views), memory)
        for part in memory:
            interface.hold(part, interface.work)
        return OnDevice(interface.launch(interface.work, self._unpack, views) if self._made else self._unpack(views))


def device_bytes(settings: PassSettings) -> int:
    """Return the most bytes of device memory of a pass: copies in flight, and batches as the loop gets them.

    Of the latter one is ahead, one is used by the loop, and further ones wait for the device.
    """
    source = settings.source
    crossing = settings.depth * bytes_of_slot(source.pipeline_fields(), settings.slot_rows) if source.raw else 0
    return crossing + (2 + AHEAD_OF_DEVICE) * handed_bytes(settings)


def handed_bytes(settings: PassSettings) -> int:
    """Return the most bytes of a batch as the loop gets it, before ``batch_transform``."""
    source, rows = settings.source, settings.slot_rows
    fields = source.pipeline_fields()
    whole = bytes_of_slot(fields, rows)
    if not source.raw:
        return whole
    made = source.made_there()
    passing = [bytes_of_slot([field], rows) for field in fields[: len(made)]]
    bits = [field[3] for field in fields]
    there = sum(n * dtype.itemsize * 8 // b for n, dtype, b in zip(passing, made, bits, strict=False))
    return max(0, whole - sum(passing)) + there + rows * source.late_row_bytes


def why_whole(source: GatherSpec) -> str | None:
    """Return why batches are copied to a device only when they are complete, as a clause; None: during the gather."""
    if source.maps:
        return "functions of samples run on the CPU"
    if source.collate is not None:
        return "a collate function of your own makes them"
    if not source.makes_plain_containers:
        return "their containers are made of CPU tensors"
    return None


def _views(buffers: Sequence[torch.Tensor | None], arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Return the arrays of a batch in its memory on a device, each a separate tensor for autograd."""
    storages = [None if part is None else part.untyped_storage() for part in buffers]
    return [_view(storages[array[0]], array, device) for array in arrays]


def _small_apart(views: list[torch.Tensor], arrays: Sequence[Array], host: HostMemory) -> list[torch.Tensor]:
    """Give small arrays pinned memory of their own, so that a loop that keeps them keeps no batch."""
    for place in _core.small_arrays([view.nbytes for view in views]):
        own = host.pinned(views[place].nbytes).untyped_storage()
        views[place] = _view(own, (0, 0, *arrays[place][2:]), _CPU).copy_(views[place])
    return views


def _view(storage: torch.UntypedStorage | None, array: Array, device: torch.device) -> torch.Tensor:
    _, offset, code, bits, shape = array
    dtype = _DTYPES[code, bits]
    if storage is None or 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    made = torch.empty(0, dtype=dtype, device=device)  # no view: views of views take five calls of torch
    return made.set_(storage, offset * 8 // bits, shape)  # type: ignore[call-overload,no-any-return]
