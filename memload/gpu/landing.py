"""Gatherers whose batches do not come in slots of memload's: on the device, or in pinned memory of torch's.

plan -> gather, native threads -> pinned slot -> copies, slice by slice -> landing -> cast -> batch on the device
plan -> gather, native threads -> pinned memory of torch's allocator -> batch
"""

from __future__ import annotations

import abc
import functools
import math
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from memload import _core
from memload.engine.pipelined import PipelinedBatches
from memload.engine.source import PipelineField, Source
from memload.gpu.casting import cast_on_device
from memload.gpu.interface import HostMemory, Interface
from memload.gpu.near_batches import lies_near
from memload.gpu.placing import AHEAD_OF_DEVICE, Placer
from memload.gpu.ring import PinnedRing
from memload.gpu.shared_frames import with_shared_frames
from memload.gpu.target import Target
from memload.groups.source import GroupedSource
from memload.sampling.batch_sizes import BatchSizes
from memload.state import batches_of
from memload.transforms.recipe import attempted

if TYPE_CHECKING:
    from memload.engine.passes import Gatherer, PassSettings
    from memload.loader import FastLoader

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
    """A batch that is on the device once the stream `work` comes to it."""

    batch: Any


class _Landed(PipelinedBatches):
    """Such a gatherer: its pipeline asks for memory for each batch."""

    def __init__(self, settings: PassSettings, pipeline: _core.Pipeline) -> None:
        super().__init__(settings, pipeline)
        self._landings: deque[tuple[torch.Tensor | None, ...]] = deque()  # of batches that have begun

    def is_ready(self) -> bool:
        """Whether `next` has something without waiting."""
        self._land_all(self._pipeline.need())
        return self._pipeline.ready()

    def next(self, timeout: float) -> Any:
        """Return the next batch, or an `Outcome`; None at the end."""
        while isinstance(found := self._pipeline.next(timeout), tuple):
            self._land_all(found)
        return None if found is None else self._batch(self._landings.popleft(), found)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        super().close(keep_slots, at_once)
        self._landings.clear()

    def _land_all(self, need: tuple[int, int] | None) -> None:
        while need is not None:
            landing = self._memory(*need)
            addresses = [0 if part is None else part.data_ptr() for part in landing]
            self._landings.append(landing)
            self._pipeline.land(addresses[0], addresses[-1], landing)
            need = self._pipeline.need()

    @abc.abstractmethod
    def _memory(self, first: int, second: int) -> tuple[torch.Tensor | None, ...]:
        """Return memory for the two parts of a batch, of which a part of no bytes needs none."""

    @abc.abstractmethod
    def _batch(self, landing: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> Any:
        """Return the batch of these arrays in its memory."""


class PinnedBatches(_Landed):
    """Batches in pinned memory of torch's allocator, which goes back to it when the last tensor dies.

    Torch's allocator notes which copies are made from its memory, as long as a tensor shows that the memory is its own.
    So batches are views of its tensors, and it decides when the memory is used again.
    """

    def __init__(self, settings: PassSettings, loader: FastLoader[Any], host: HostMemory) -> None:
        settings.source.check_in_place()
        super().__init__(settings, settings.pipeline(loader, None, lent=True))
        self._host = host
        self._unpack = settings.source.unpacker(take=_as_it_is)

    def _memory(self, first: int, second: int) -> tuple[torch.Tensor | None, ...]:  # noqa: ARG002 - there is one part
        return (self._host.pinned(max(1, first)),)

    def _batch(self, landing: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> Any:
        return attempted(self._unpack, _views(landing, arrays, _CPU))


class CopiedBatches(PinnedBatches):
    """Such batches, copied whole to the device: where native code cannot copy while it gathers."""

    def __init__(self, settings: PassSettings, loader: FastLoader[Any], placer: Placer) -> None:
        super().__init__(settings, loader, placer.interface)
        self._placer = placer
        self._unpack = settings.source.unpacker(take=_as_it_is, cast=cast_on_device)

    def _batch(self, landing: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> OnDevice:
        placed = self._placer.place(_views(landing, arrays, _CPU))
        return OnDevice(self._placer.launch(self._unpack, placed))


class TransferredBatches(_Landed):
    """Batches that native threads copy to the device while they gather, through a ring of pinned slots.

    A landing has two parts: what is cast on the device, and is let go then, and what the loop gets as it is. Both
    belong to the stream of copies.
    """

    def __init__(
        self, settings: PassSettings, loader: FastLoader[Any], interface: Interface, reuse: Gatherer | None
    ) -> None:
        settings.source.check_in_place()
        kept = reuse if isinstance(reuse, TransferredBatches) and reuse._interface is interface else None
        self._interface: Interface = interface
        self._made = len(settings.source.made_there())
        self._ring: PinnedRing = kept._ring if kept else PinnedRing.of(interface, loader._engine.pinned_bytes)
        route = (interface.native, interface.handle(interface.copies), interface.handle(interface.work))
        pipeline = settings.pipeline(
            loader,
            kept._pipeline if kept else None,
            slots=self._ring.slots,
            route=(*route, self._made),
        )
        super().__init__(settings, pipeline)
        self._unpack = settings.source.unpacker(take=_as_it_is, cast=cast_on_device)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the ring that are pinned now."""
        return self._ring.slots.pinned_bytes

    def _memory(self, first: int, second: int) -> tuple[torch.Tensor | None, ...]:
        self._ring.warn_of_refusal()
        interface = self._interface
        return tuple(interface.empty(nbytes, interface.copies) if nbytes else None for nbytes in (first, second))

    def _batch(self, landing: tuple[torch.Tensor | None, ...], arrays: Sequence[Array]) -> OnDevice:
        interface = self._interface
        for part in landing:
            if part is not None:
                interface.hold(part, interface.work)
        views = _views(landing, arrays, interface.device)
        return OnDevice(interface.launch(interface.work, self._unpack, views) if self._made else self._unpack(views))


def gathered_elsewhere(
    settings: PassSettings, loader: FastLoader[Any], placer: Placer | None, reuse: Gatherer | None
) -> Gatherer | None:
    """Return what gathers the batches of a pass to where they go; None: into slots, as ever."""
    if placer is not None:
        if not settings.source.raw:
            return None
        if placer.interface.native is not None:
            return TransferredBatches(settings, loader, placer.interface, reuse)
        if placer.interface.why_not_native:
            _warn_of_fallback(str(placer.interface.device), placer.interface.why_not_native)
        return CopiedBatches(settings, loader, placer)
    host = loader._host_memory() if settings.pins else None
    return None if host is None else PinnedBatches(settings, loader, host)


@functools.cache
def _warn_of_fallback(device: str, reason: str) -> None:
    warnings.warn(
        f"batches are copied to {device} by torch once they are whole, rather than while they are gathered: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def bound_for(loader: FastLoader[Any], source: Source) -> Source:
    """Return a source as it is gathered for where the loader's batches go."""
    if loader._target is None or why_whole(source) is not None:
        return source
    sampler = batches_of(loader)
    return with_shared_frames(replace(source, raw=True), sampler, BatchSizes.of(sampler, source).batch_rows)


def device_bytes(settings: PassSettings) -> int:
    """Return the bytes of the device that a pass has at most: batches under way, and batches as the loop gets them.

    Of these there is one ahead, one in the loop's hands, and those that the device has not come to.
    """
    source = settings.source
    crossing = settings.depth * _slot_bytes(source.pipeline_fields(), settings.slot_rows) if source.raw else 0
    return crossing + (2 + AHEAD_OF_DEVICE) * handed_bytes(settings)


def handed_bytes(settings: PassSettings) -> int:
    """Return the bytes that a batch has at most when the loop gets it, without what ``batch_transform`` makes of it."""
    source, rows = settings.source, settings.slot_rows
    fields = source.pipeline_fields()
    whole = _slot_bytes(fields, rows)
    if not source.raw:
        return whole
    made = source.made_there()
    passing = [_slot_bytes([field], rows) for field in fields[: len(made)]]
    bits = [field[3] for field in fields]
    there = sum(n * dtype.itemsize * 8 // b for n, dtype, b in zip(passing, made, bits, strict=False))
    return max(0, whole - sum(passing)) + there + rows * source.late_row_bytes


def _slot_bytes(fields: list[PipelineField], rows: int) -> int:
    return _core.Pipeline.ring_bytes(fields, rows, depth=1) // 2


def why_whole(source: Source) -> str | None:
    """Return why batches go to a device after they are whole, as a clause; None: they go as they are made."""
    if source.maps:
        return "functions of samples run on the CPU"
    if source.collate is not None:
        return "a collate function of your own makes them"
    if not source.makes_plain_containers:
        return "their containers are made of CPU tensors"
    return None


def how_they_go(source: Source | GroupedSource, target: Target) -> str:
    """Return a clause that says how batches of a source get to their device."""
    if isinstance(source, Source) and lies_near(source):
        return "its rows lie on a device, where batches are gathered"
    why = "groups are made of several gathers" if isinstance(source, GroupedSource) else why_whole(source)
    if why is None:
        return f"batches are copied to {target} while they are gathered"
    return f"batches are moved to {target} whole, since {why}"


def _views(landing: Sequence[torch.Tensor | None], arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """The arrays of a batch in its memory on a device, each a tensor of its own to autograd."""
    return [_view(landing[array[0]], array, device) for array in arrays]


def _view(part: torch.Tensor | None, array: Array, device: torch.device) -> torch.Tensor:
    _, offset, code, bits, shape = array
    dtype, elements = _DTYPES[code, bits], math.prod(shape)
    if part is None or not elements:
        return torch.empty(shape, dtype=dtype, device=device)
    return part[offset : offset + elements * dtype.itemsize].view(dtype).view(shape).data


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x
