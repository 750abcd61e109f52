"""The functions that loaders call for devices; they import the modules for devices only when a device is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from memload.device.devices import Target
    from memload.device.interface import HostMemory
    from memload.device.static_buffers import StaticBuffers
    from memload.engine.request import Destination
    from memload.engine.settings import PassSettings


def target_of(device: Any) -> Target | None:
    """Return the target of batches, as `checked_target` does."""
    from memload.device.devices import checked_target

    return checked_target(device)


def destination_of(target: Target) -> Destination:
    """Return the destination of batches that go to a device."""
    from memload.device.destinations import ToDevice

    return ToDevice(target)


def pinned(host: HostMemory | None, named: str, *, warned: bool) -> Destination:
    """Return the destination of batches in pinned memory; the arguments are those of `PinnedCPU`."""
    from memload.device.destinations import PinnedCPU

    return PinnedCPU(host, named, warned=warned)


def host_memory() -> HostMemory | None:
    """Return the memory of ``pin_memory=True``; None without an accelerator."""
    if not torch.accelerator.is_available():
        return None
    from memload.device.torch_interface import TorchHostMemory

    return TorchHostMemory()


def buffers_of(count: Any, batch_sampler: Any, *, pinned: bool) -> StaticBuffers:
    """Return the buffers of a loader's ``static_buffers=``, as `checked_buffers` does."""
    from memload.device.static_buffers import checked_buffers

    return checked_buffers(count, batch_sampler, pinned=pinned)


def in_buffers(batches: Any, buffers: StaticBuffers) -> Any:
    """Return the batches of a pass, copied into buffers."""
    from memload.device.static_buffers import StaticBatches

    return StaticBatches(batches, buffers)


def pass_bytes(each: Sequence[PassSettings], buffers: int, count: int) -> int:
    """Return the most bytes of the device's memory that a pass takes.

    Args:
        each: the settings of the pass's pipelines.
        buffers: bytes of static buffers; 0 before they are made.
        count: the number of sets of static buffers.
    """
    from memload.device.destination_buffers import device_bytes, handed_bytes

    return sum(map(device_bytes, each)) + (buffers or count * sum(map(handed_bytes, each)))
