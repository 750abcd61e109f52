"""Batches that the dataset itself answers in a native pass, as a stock loader would ask it for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memload.casts.batches import Casting, cast_batch
from memload.dataset import Dataset
from memload.frameworks.carried import plain_collate
from memload.groups.datasets import group_collate
from memload.sampling.draws import Indices
from memload.sampling.row_plan import Unplanned
from memload.transforms.recipe import samples_here, transformed_here
from memload.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.loader import FastLoader


def answer(loader: FastLoader[Any], batch: Unplanned, seed: PassSeed, number: int) -> Any:
    """Return or raise what the stock loader returns or raises for these indices, mostly an error of the dataset's own.

    Args:
        loader: whose dataset answers.
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
    return answer_rows(loader, batch.indices, seed, number)


def answer_rows(loader: FastLoader[Any], indices: Any, seed: PassSeed, batch: Indices | int) -> Any:
    """Return the batch of these indices, with the randomness of these rows, or of the batch of this number."""
    dataset: Any = loader.dataset
    samples = dataset[indices] if loader.batch_sampler is None else samples_here(dataset, indices, seed, batch)
    collate = plain_collate(loader)
    collated = collate(samples)
    names = list(dataset.fields) if isinstance(dataset, Dataset) else []
    if loader._casts:
        collated = cast_batch(collated, loader._casts, names, collate is group_collate, Casting(seed, batch))
    if loader.batch_transform is None or loader._transforms_last():
        return collated
    return transformed_here(loader.batch_transform, collated, seed, batch)
