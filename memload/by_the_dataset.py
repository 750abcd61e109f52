"""Batches that the dataset itself answers in a native pass, as a stock loader would ask it for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memload.carried import plain_collate
from memload.cast_batches import cast_batch
from memload.dataset import Dataset
from memload.groups import group_collate
from memload.plan import Unplanned
from memload.transforms import samples_here, transformed_here

if TYPE_CHECKING:
    from memload.loader import FastLoader


def answer(loader: FastLoader[Any], batch: Unplanned, position: int) -> Any:
    """Return or raise what the stock loader returns or raises for these indices, mostly an error of the dataset's own.

    Raises:
        Exception: whatever the sampler raised, or the dataset or the collation raises.
    """
    if batch.error is not None:
        raise batch.error
    dataset: Any = loader.dataset
    if loader.batch_sampler is None:
        samples = dataset[batch.indices]
    else:
        samples = samples_here(dataset, batch.indices, loader._state.seed(loader), position)
    collate = plain_collate(loader)
    collated = collate(samples)
    names = list(dataset.fields) if isinstance(dataset, Dataset) else []
    if loader._casts:
        collated = cast_batch(collated, loader._casts, names, collate is group_collate)
    if loader.batch_transform is None:
        return collated
    return transformed_here(loader.batch_transform, collated, loader._state.seed(loader), position)
