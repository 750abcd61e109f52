"""Batches in slots on the CPU: what gathers them by one native pipeline, and the destination that leaves them there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from memload import _core
from memload.engine.cast_batches import CastBatches
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import BatchResult, Gatherer, longest_close
from memload.engine.request import Arrival, Moving, PassRequest
from memload.engine.settings import PassSettings
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import TransformedBatches
from memload.sampling.draws import Indices
from memload.stats import LoaderStats


class PipelinedBatches(Gatherer):
    """A `Gatherer` of batches as they are planned, by one pipeline."""

    def __init__(self, settings: PassSettings, pipeline: _core.Pipeline) -> None:
        self.rows, self.depth = pipeline.rows, settings.depth
        self._pipeline = pipeline
        self._draws = any(
            getattr(column, "draws", False) or (images is not None and images[1] is not None)
            for column, *_, images in settings.fields
        )

    def begin(self, seed: PassSeed) -> None:
        """Give the pipeline what the draws of rows follow from, if it draws."""
        if self._draws:
            self._pipeline.begin(seed.key)

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._pipeline.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._pipeline.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._pipeline.finish()

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last."""
        return self._pipeline.row_numbers()

    def check_files(self) -> None:
        """Raise if a file of the pass was cut since it was opened."""
        self._pipeline.check_files()

    def cancel(self) -> _core.PlanQueue:
        """Stop gathering, and return the plan of the batches that `next` has not returned."""
        return self._pipeline.cancel()

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        counted = LoaderStats(**self._pipeline.stats())
        # What is read past the page cache comes from the disk, though for tiers of such reads no faults are watched.
        return replace(counted, disk_bytes=max(counted.disk_bytes, counted.direct_bytes))

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        self._pipeline.close(keep_slots, longest_close(at_once))


class WholeBatches(PipelinedBatches):
    """Gathers each batch as it is planned, into a slot."""

    def __init__(self, settings: PassSettings, kept: Gatherer | None) -> None:
        pipeline = settings.pipeline(kept._pipeline if isinstance(kept, WholeBatches) else None)
        self._unpack = settings.source.unpacker()
        super().__init__(settings, pipeline)

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        capsules = self._pipeline.next(timeout)
        if capsules is None:
            return None
        try:
            return self._unpack(capsules)
        except Exception as error:  # of a collate function of the user's, as a rule: it ends no pass
            return BatchResult(error=error, may_stop=True)


class ShrinkingBatches(WholeBatches):
    """Gathers as `WholeBatches` does, from files behind caches that give memory back when it is short."""

    def __init__(self, settings: PassSettings, kept: Gatherer | None) -> None:
        from memload.engine.tiers.pressure import Pressure, caches_of

        super().__init__(settings, kept)
        self._pressure = Pressure.on(caches_of(settings.source.fields.values()))

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        if self._pressure:
            self._pressure.look()
        return super().next(timeout)


def into_slots(settings: PassSettings, kept: Gatherer | None) -> WholeBatches:
    """Return what gathers batches into slots, those of an earlier pass if given."""
    return ShrinkingBatches(settings, kept) if settings.cached else WholeBatches(settings, kept)


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

    def open(self, kept: Arrival | None) -> OnCPU:  # noqa: ARG002 - as all destinations are asked
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
