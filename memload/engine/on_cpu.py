"""The destination that leaves batches in slots on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from memload.engine.cast_batches import CastBatches
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import Gatherer, WholeBatches
from memload.engine.request import Moving, PassRequest
from memload.engine.settings import PassSettings
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import TransformedBatches


def into_slots(settings: PassSettings, kept: Gatherer | None) -> WholeBatches:
    """Return what gathers batches into slots, those of an earlier pass if given."""
    if not settings.source.is_cached:
        return WholeBatches(settings, kept)
    from memload.engine.tiers.pressure import ShrinkingBatches

    return ShrinkingBatches(settings, kept)


class OnCPU:
    """Batches stay on the CPU, as they were gathered. A `Destination`, and its `Arrival`, since nothing is opened."""

    transforms = pins = False
    device: torch.device | None = None
    finish: Callable[[Any], Any] | None = None

    def bound(self, source: GatherSpec, request: PassRequest) -> GatherSpec:  # noqa: ARG002 - as all destinations are asked
        """Return the source: it is gathered as it is."""
        return source

    def slot_bytes(self, nbytes: int) -> int:
        """Return the bytes of a slot: so many."""
        return nbytes

    def open(self) -> OnCPU:
        """Return this."""
        return self

    def gatherer(self, settings: PassSettings, kept: Gatherer | None) -> Gatherer:
        """Return what gathers into slots, those of an earlier pass if given."""
        return into_slots(settings, kept)

    def around(self, gatherer: Gatherer, settings: PassSettings, request: PassRequest) -> Gatherer:  # noqa: ARG002
        """Return the gatherer: the loop gets what it gives."""
        return gatherer

    def moving(self, request: PassRequest) -> Moving:
        """Return the function that casts and transforms the batches of the stock machinery."""

        def moved(batches: Iterator[Any], seed: PassSeed | None, number: int) -> Iterator[Any]:
            if request.casts:
                casts, names, grouped = request.casts, request.names, request.grouped
                batched = request.gives_batches
                batches = CastBatches(batches, casts, names, grouped, seed=seed, number=number, batched=batched)
            if request.transform is None or seed is None:
                return batches
            return TransformedBatches(batches, request.transform, seed, number, finish=self.finish)

        return moved


ON_CPU = OnCPU()
"""There is nothing to choose about it."""
