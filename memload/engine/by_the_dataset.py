"""Batches that the dataset itself answers in a native pass, as a stock loader would ask it for them."""

from __future__ import annotations

from typing import Any

from memload.engine.cast_batches import Casting, cast_batch
from memload.engine.request import PassRequest
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import samples_here, transformed_here
from memload.sampling.draws import Indices
from memload.sampling.row_plan import Unplanned


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
