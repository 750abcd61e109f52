"""Batches that the dataset itself answers in a native pass, as a stock loader would ask it for them.

It answers indices that the engine cannot gather, and every batch of a pass whose data is changed meanwhile:

plan -> GuardedBatches -> pipeline -> device -> batch                 as long as nothing has changed
           |
           +-> rows of the next batch -> dataset -> collate -> device -> batch     from the first change on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memload import _core
from memload.engine.cast_batches import Casting, cast_batch
from memload.engine.gatherer import AroundGatherer, BatchResult, Gatherer, capture
from memload.engine.mutation_guards import MutationGuard
from memload.engine.request import PassRequest
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import samples_here, transformed_here
from memload.sampling.draws import Indices
from memload.sampling.row_plan import Unplanned


class GuardedBatches(AroundGatherer):
    """Gathers as another gatherer does until what it reads is changed; from then on, asks the dataset for each batch.

    A stock loader without workers reads each batch when the loop asks for it, so that it shows what the loop has
    written before. What was gathered ahead would not.

    Args:
        gatherer: what gathers.
        guards: what it reads.
        request: whose dataset answers then.
    """

    def __init__(self, gatherer: Gatherer, guards: Sequence[MutationGuard], request: PassRequest) -> None:
        super().__init__(gatherer)
        self._guards = guards
        self._before = self._now()
        self._request: PassRequest | None = request  # until the pass ends
        self._left: _core.PlanQueue | None = None  # of the plan, since something has changed

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        (self._left or self.gatherer).extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        (self._left or self.gatherer).push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        (self._left or self.gatherer).finish()

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass."""
        self._seed = seed
        super().begin(seed)

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        request = self._request
        if request is None:
            return None
        if self._left is None and self._now() != self._before:
            self._left = self.gatherer.cancel()
            self.gatherer.close(keep_slots=True)
        if self._left is None:
            return self.gatherer.next(timeout)
        if not self._left.ready:
            return None
        rows = self._left.take()
        return capture(lambda: BatchResult(self.placed(answer_rows(request, rows.tolist(), self._seed, rows), rows)))

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        super().close(keep_slots, at_once)
        self._guards, self._left, self._request = (), None, None

    def _now(self) -> list[Any]:
        return [guard.state() for guard in self._guards]


def answer(request: PassRequest, batch: Unplanned, seed: PassSeed, number: int) -> Any:
    """Return or raise what the stock loader returns or raises for these indices, mostly an error of the dataset's own.

    Args:
        request: whose dataset answers.
        batch: what the sampler gave, or raised.
        seed: what the randomness of the pass follows from.
        number: of the batch, counted from the beginning of the pass. Randomness follows from it, since these indices
            are no rows.

    Raises:
        Exception: whatever the sampler raised, or the dataset or the collation raises.
    """
    if batch.error is not None:
        try:
            raise batch.error
        finally:
            del batch  # the traceback of the error holds this frame, which would hold the error
    return answer_rows(request, batch.indices, seed, number)


def answer_rows(request: PassRequest, indices: Any, seed: PassSeed, batch: Indices | int) -> Any:
    """Return the batch of these indices, with the randomness of these rows, or of the batch of this number."""
    dataset = request.dataset
    samples = samples_here(dataset, indices, seed, batch) if request.batched else dataset[indices]
    collated = request.collate(samples)
    if request.casts:
        casting = Casting(seed, batch, batched=request.gives_batches)
        collated = cast_batch(collated, request.casts, request.names, request.grouped, casting)
    if request.transform is None or request.destination.transforms:
        return collated
    return transformed_here(request.transform, collated, seed, batch)
