"""Batches by one native pipeline, and the destination that leaves them in slots on the CPU."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from memload import _core
from memload.engine.cast_batches import CastBatches
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import Gatherer, capture
from memload.engine.request import Moving, PassRequest
from memload.engine.settings import PassSettings
from memload.engine.tiers.pressure import Pressure, caches_of
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import TransformedBatches
from memload.sampling.draws import Indices
from memload.stats import LoaderStats


def longest_close(at_once: bool) -> float:
    """Return for how many seconds the end of a pass waits for reads: after a timeout, they were waited for before."""
    return 0.1 if at_once else 2.0


class PipelinedBatches(Gatherer, abc.ABC):
    """A `Gatherer` of batches as they are planned, by one pipeline."""

    def __init__(self, settings: PassSettings, pipeline: _core.Pipeline) -> None:
        self.rows, self.depth = settings.source.rows, settings.depth
        self._pipeline = pipeline

    def begin(self, seed: PassSeed) -> None:
        """Give the pipeline what the draws of rows follow from."""
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

    def cancel(self) -> _core.PlanQueue:
        """Stop gathering, and return the plan of the batches that `next` has not returned."""
        return self._pipeline.cancel()

    @abc.abstractmethod
    def next(self, timeout: float) -> Any:
        """Return the next batch, None at the end."""

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
        settings.source.check_in_place()
        super().__init__(settings, settings.pipeline(kept._pipeline if isinstance(kept, WholeBatches) else None))
        self._pressure = Pressure.on(caches_of(settings.source.fields.values()))
        self._unpack = settings.source.unpacker()

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        if self._pressure:
            self._pressure.look()
        capsules = self._pipeline.next(timeout)
        return None if capsules is None else capture(self._unpack, capsules)


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
        return WholeBatches(settings, kept)

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
