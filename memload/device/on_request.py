"""The functions that loaders call for devices; they import the modules for devices only when a device is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from memload.columns.fields import Field
from memload.engine.tiers.tier import Tier
from memload.sizes import parse_size

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


def loaded_there(
    fields: Mapping[str, Field],
    device: Any,
    tier: Tier,
    nbytes: int | str | None,
    weights: Any,
    progress: bool | None,
    group: Any = None,
) -> dict[str, Field]:
    """Return fields on a tier that a device gathers from: "device", "pinned" or "split".

    Args:
        fields: fields by name, in files or arrays.
        device: the device; for "split", one or several.
        tier: one of these three.
        nbytes: for "split", the bytes of rows on each device; None: all rows are on the devices.
        weights: for "split", how often each row is drawn; None: all alike.
        progress: whether to show a bar; None: if standard error is a terminal.
        group: for "split", the processes that share the rows; None: this one alone.

    Raises:
        MemorySpaceError, DeviceError, ValueError, TypeError: as `memload.to_device`.
    """
    from memload.device.devices import device_of, devices_of

    if tier is not Tier.SPLIT:
        from memload.device.loading import loaded

        return loaded(fields, device_of(device), tier, progress)
    if group is not None:
        from memload.device.group_loading import loaded_for_group

        return loaded_for_group(fields, device, nbytes, weights, group, progress)
    each = None if nbytes is None else parse_size(nbytes)
    from memload.device.split_tier import loaded_in_parts

    return loaded_in_parts(fields, devices_of(device), each, weights, progress)


def pass_bytes(each: Sequence[PassSettings], buffers: int, count: int) -> int:
    """Return the most bytes of the device's memory that a pass takes.

    Args:
        each: the settings of the pass's pipelines.
        buffers: bytes of static buffers; 0 before they are made.
        count: the number of sets of static buffers.
    """
    from memload.device.destination_buffers import device_bytes, handed_bytes

    return sum(map(device_bytes, each)) + (buffers or count * sum(map(handed_bytes, each)))
