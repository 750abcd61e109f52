"""Destinations of batches other than plain slots on the CPU: pinned memory of torch, and a device.

plan -> gather, native threads -> pinned memory of torch's allocator -> batch                 PinnedCPU
plan -> gather, native threads -> the device -> casts and transforms there -> batch           ToDevice
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.device.destination_buffers import CopiedBatches, PinnedBatches, TransferredBatches, why_whole
from memload.device.device_batches import Casts, DeviceBatches, MovedBatches
from memload.device.devices import Target
from memload.device.interface import HostMemory, Interface
from memload.device.pinned_memory import PinnedField, resident_fields
from memload.device.placing import Placer
from memload.device.resident import resident_device
from memload.device.shared_frames import with_shared_frames
from memload.device.split_tier import gathered_by
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import Gatherer
from memload.engine.on_cpu import OnCPU, into_slots
from memload.engine.request import Arrival, Moving, PassRequest
from memload.engine.settings import BatchSizes, PassSettings
from memload.engine.transforms.seeding import PassSeed
from memload.kept_errors import level_outside
from memload.nested import mapped


def pinned(batch: Any, host: HostMemory | None = None) -> Any:
    """Return a batch in memory of torch's pinned allocator, which alone knows the copies in flight.

    Everything in nested containers that has a ``pin_memory`` method is pinned. Tensors that are on a device, or in the
    memory of `host`, stay there.
    """

    def pins_itself(value: Any) -> bool:
        return hasattr(value, "pin_memory")

    def copied(leaf: Any) -> Any:
        stays = isinstance(leaf, torch.Tensor) and (leaf.device.type != "cpu" or (host and host.is_pinned(leaf)))
        return leaf.pin_memory() if pins_itself(leaf) and not stays else leaf

    return mapped(batch, copied, pins_itself)


def whole_power(nbytes: int) -> int:
    """Return the bytes that torch's pinned allocator takes for `nbytes`: the next power of two."""
    return 1 << (nbytes - 1).bit_length()


class PinnedCPU(OnCPU):
    """Batches in pinned memory of torch's allocator. A `Destination`, and its `Arrival`.

    Args:
        host: pins memory; None: there is no accelerator, and nothing is pinned.
        named: the loader's ``pin_memory_device``, which is deprecated.
        warned: whether the user has been warned before, in an earlier pass of the same iterator.
    """

    def __init__(self, host: HostMemory | None, named: str, *, warned: bool) -> None:
        self._host, self._named, self._warned = host, named, warned
        self.pins = host is not None
        self.finish: Callable[[Any], Any] | None = None if host is None else functools.partial(pinned, host=host)

    def slot_bytes(self, nbytes: int) -> int:
        """Return the bytes that torch's allocator takes for `nbytes`."""
        return whole_power(nbytes)

    def open(self, kept: Arrival | None) -> PinnedCPU:  # noqa: ARG002
        """Return this destination; warn as stock iterators do."""
        if self._named and not self._warned:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device,"
                f"ignore pin_memory_device='{self._named}'.",
                stacklevel=level_outside(),
            )
        if self._host is None and not self._warned:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=level_outside(),
            )
        return self

    def gatherer(self, settings: PassSettings, kept: Gatherer | None) -> Gatherer:
        """Return the gatherer into pinned memory; or into slots, if functions make the batches."""
        if settings.pins and self._host is not None:
            return PinnedBatches(settings, self._host)
        return into_slots(settings, kept)

    def moving(self, request: PassRequest) -> Moving:
        """Return the function that casts and transforms batches of torch's machinery, which has pinned them."""
        stock = OnCPU()
        stock.finish = pinned if torch.accelerator.is_available() else None
        return stock.moving(request)


@dataclass(frozen=True)
class ToDevice:
    """Batches go to a device. A `Destination`.

    Attributes:
        target: the device, which is opened when a pass begins.
    """

    target: Target

    transforms, pins = True, False

    @property
    def device(self) -> torch.device | None:
        """The given device; None for an interface."""
        return self.target.wanted if isinstance(self.target.wanted, torch.device) else None

    def bound(self, source: GatherSpec, request: PassRequest) -> GatherSpec:
        """Return the gather specification for the device: gathered for it, or by the device itself."""
        if (there := resident_device(source.fields)) is not None:
            return self._gathered_there(source, there)
        if why_whole(source) is not None:
            return source
        if (seen := seen_by_device(source, self.target)) is not None:
            return seen
        raw, sampler = source.as_raw(), request.batches
        return with_shared_frames(raw, sampler, BatchSizes.of(sampler, source).batch_rows)

    def _gathered_there(self, source: GatherSpec, there: torch.device) -> GatherSpec:
        """Return a source of rows on devices, gathered by this one if it is among several that keep them."""
        if self.device in (None, there) or self.device.index is None:
            return source
        fields = gathered_by(source.fields, self.device)
        return source if fields is None else replace(source, fields=fields)

    def slot_bytes(self, nbytes: int) -> int:
        """Return the bytes of a slot of the ring: `nbytes` itself."""
        return nbytes

    def open(self, kept: Arrival | None) -> _DeviceArrival:
        """Open the device for a pass that begins now, in the streams of the one that kept its slots, and return it."""
        before = kept.interface if isinstance(kept, _DeviceArrival) else None
        return _DeviceArrival(Placer(self.target.open(before)))

    def moving(self, request: PassRequest) -> Moving:
        """Return the function that moves, casts and transforms batches of torch's machinery."""
        placer = Placer(self.target.open())
        casts = Casts(request.casts, request.names, request.grouped, request.gives_batches)

        def moved(batches: Iterator[Any], seed: PassSeed | None, number: int) -> Iterator[Any]:
            return MovedBatches(batches, placer, casts, request.transform, seed, number)

        return moved


def seen_by_device(source: GatherSpec, target: Target) -> GatherSpec | None:
    """Return a source with rows in pinned RAM with fields that the device gathers; None if it cannot."""
    if not source.rows or not all(isinstance(field, PinnedField) for field in source.fields.values()):
        return None
    fields = resident_fields(source.fields, target.open().device)
    return None if fields is None else replace(source, fields=fields)


class _DeviceArrival:
    """The device to which the batches of one pass go. An `Arrival`."""

    finish: Callable[[Any], Any] | None = None

    def __init__(self, placer: Placer) -> None:
        self._placer = placer

    @property
    def interface(self) -> Interface:
        """The device, with the streams of this pass."""
        return self._placer.interface

    def gatherer(self, settings: PassSettings, kept: Gatherer | None) -> Gatherer:
        """Return the gatherer to the device; or into slots, if batches are made on the CPU."""
        interface = self.interface
        if not settings.source.raw:
            return into_slots(settings, kept)
        if interface.native is not None:
            return TransferredBatches(settings, interface, kept)
        if interface.why_not_native:
            _warn_of_fallback(str(interface.device), interface.why_not_native)
        return CopiedBatches(settings, self._placer)

    def around(self, gatherer: Gatherer, settings: PassSettings, request: PassRequest) -> Gatherer:
        """Return a gatherer around this one that delivers its batches on the device."""
        source = settings.source
        casts = Casts(source.late_casts or {} if source.raw else {}, list(source.fields), batched=True)
        return DeviceBatches(gatherer, self._placer, casts, request.transform)


@functools.cache
def _warn_of_fallback(device: str, reason: str) -> None:
    warnings.warn(
        f"torch copies complete batches to {device}, instead of native threads while they gather: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
