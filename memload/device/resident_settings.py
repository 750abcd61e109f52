"""What a pass over rows on a device is set to, and what gathers its batches.

request, source -> ResidentSettings -> resident_batches.py: when the loop asks for them, out of the device's own memory
                                    `- gathered_ahead.py: one batch ahead, where rows cross a bus
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from memload.device.copied_rows import CopyOptions
from memload.device.destinations import ToDevice
from memload.device.devices import Target
from memload.device.gathered_ahead import GatheredAhead
from memload.device.placing import AHEAD_OF_DEVICE, Placer
from memload.device.resident import ResidentField, resident_device
from memload.device.resident_batches import DEPTH, ResidentBatches, made_bytes
from memload.device.split_transfer import SplitTransfer, TransferPlan
from memload.engine.gather_spec import GatherSpec
from memload.engine.mutation_guards import MutationGuard
from memload.engine.on_cpu import ON_CPU
from memload.engine.request import Destination, PassRequest
from memload.engine.settings import BatchSizes, gathering_threads


def how_gathered(request: PassRequest, source: GatherSpec) -> str:
    """Return a clause that says how batches of a source on a device are gathered."""
    bound, here = request.destination.bound(source, request), "its rows lie on a device, where batches are gathered"
    ahead = _gathers_ahead(request.destination, bound) is not None
    transfer = _transfer(request, bound, BatchSizes.of(request.batches, bound)) if ahead else None
    return here if transfer is None else f"{here}, and {transfer.choice}"


@dataclass(frozen=True)
class ResidentSettings:
    """The settings of a pass over rows on a device.

    Attributes:
        source: the gather specification of the dataset.
        sizes: the sizes of its batches.
        drop_last: whether an incomplete last batch is left out.
        destination: the destination of batches.
        transform: the last function of a batch; None: no function.
        depth: batches of row numbers planned ahead.
        target: the device that gathers a batch ahead of the loop; None: batches are gathered in the loop's stream.
        transfer: how rows come out of pinned RAM; None: the kernel alone can read them, or none lie there.
    """

    source: GatherSpec
    sizes: BatchSizes
    drop_last: bool
    destination: Destination = ON_CPU
    transform: Callable[..., Any] | None = None
    depth: int = DEPTH
    target: Target | None = None
    transfer: TransferPlan | None = None

    around: ClassVar[None] = None
    """No layers are around the gatherer."""
    guards: ClassVar[Sequence[MutationGuard]] = ()
    """No writes to device memory are detected."""

    @classmethod
    def of(cls, request: PassRequest, source: GatherSpec) -> ResidentSettings:
        """Return the settings for a request.

        Raises:
            ValueError: the loader's batches are to be on another device, or the dataset maps samples by functions,
                which run on the CPU.
        """
        _check_destination(request.destination, source)
        if source.maps:
            raise ValueError(
                "ds.map(fn) calls a function for each sample on the CPU, and these rows are on "
                f"{resident_device(source.fields)}: give batch_transform=, whose function gets whole batches there"
            )
        drop_last = bool(getattr(request.batches, "drop_last", False))
        destination = ON_CPU if request.destination.transforms else request.destination  # batches are there already
        sizes, target = BatchSizes.of(request.batches, source), _gathers_ahead(request.destination, source)
        transfer = None if target is None else _transfer(request, source, sizes)
        depth = DEPTH if transfer is None else transfer.most_ahead + 1
        return cls(source, sizes, drop_last, destination, request.transform, depth, target, transfer)

    @property
    def slot_rows(self) -> int:
        """Rows of the largest batch, as far as it is known beforehand."""
        return self.sizes.slot_rows

    @property
    def ring_bytes(self) -> int:
        """The bytes of RAM of a pass: row numbers planned ahead, and pinned slots if the copy engine may be used."""
        slots = 0 if self.transfer is None else self.transfer.ring_bytes
        return slots + (self.depth + 1) * self.slot_rows * 8

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch, as far as it is known beforehand, as the loop gets it."""
        return self.slot_rows * sum(made_bytes(self.source, key) for key in self.source.fields)

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's memory of batches that are gathered ahead, and of rows that arrive for them.

        One batch is ahead, one is used by the loop, and further ones wait for the device. 0: nothing is gathered ahead.
        """
        arriving = 0 if self.transfer is None else self.transfer.device_bytes
        return 0 if self.target is None else arriving + (2 + AHEAD_OF_DEVICE) * self.batch_bytes

    def gatherer(self, kept: object) -> ResidentBatches:
        """Return the gatherer of one pass, with the slots that an earlier one kept."""
        options: dict[str, Any] = {"drop_last": self.drop_last, "transform": self.transform, "depth": self.depth}
        if self.target is None:
            return ResidentBatches(self.source, self.sizes, **options)
        before, copied = (kept.interface, kept.kept) if isinstance(kept, GatheredAhead) else (None, None)
        placer = Placer(self.target.open(before))
        transfer = None if self.transfer is None else SplitTransfer(self.transfer, placer.interface, copied)
        return GatheredAhead(self.source, self.sizes, placer, transfer, **options)


def _transfer(request: PassRequest, source: GatherSpec, sizes: BatchSizes) -> TransferPlan | None:
    options = CopyOptions(sizes.slot_rows, gathering_threads(request), request.options.pinned_bytes)
    return TransferPlan.of(source, options, -(-sizes.planned_rows // sizes.batch_rows))


def _gathers_ahead(destination: Destination, source: GatherSpec) -> Target | None:
    """Return the device that gathers ahead of the loop; None: rows do not cross a bus, or there is no device."""
    if not any(isinstance(field, ResidentField) and field.column.is_far for field in source.fields.values()):
        return None
    if isinstance(destination, ToDevice):
        return destination.target
    device = resident_device(source.fields)
    return Target(device) if device is not None and device.type == "cuda" else None


def _check_destination(destination: Destination, source: GatherSpec) -> None:
    there, wanted = resident_device(source.fields), destination.device
    if wanted is not None and there is not None and wanted not in (there, torch.device(there.type)):
        raise ValueError(
            f"device={str(wanted)!r}, but the rows are on {there}: leave device= out, or load the dataset to {wanted} "
            "by memload.to_device"
        )
