"""Arguments that only the stock machinery can follow, whatever the dataset."""

from __future__ import annotations

from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset

from memload.batches.collate_rules import as_shipped
from memload.casts.float32_view import Float32View
from memload.dataset import Dataset
from memload.groups.datasets import GroupedDataset
from memload.transforms.mapped import MappedDataset


def asks_for_stock(loader: DataLoader[Any]) -> str | None:
    """Return the first argument of a loader that the native engine cannot follow, as a sentence; None if it can all."""
    if without_worker_init_fn(loader) and type(loader.dataset) is MappedDataset:
        return (
            "A worker_init_fn runs in worker processes, and the mapped function may look there for what it did: leave "
            "it out to have the function called in threads, with random numbers that are seeded for each row."
        )
    if without_worker_init_fn(loader) and not _is_memload(loader.dataset):
        return (
            "A worker_init_fn runs in worker processes and may change the dataset there: leave it out, or give "
            "memload's own datasets, which nothing in a worker changes and which are read without it."
        )
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        return "prefetch_factor=0 is refused by stock workers when the loop begins: leave it out."
    if not as_shipped():
        return "default_collate was changed for tensors, dicts or tuples: take that out of default_collate_fn_map."
    return None


def without_worker_init_fn(loader: DataLoader[Any]) -> bool:
    """Whether a native pass of this loader would leave out to call what a stock one calls in its workers."""
    return loader.worker_init_fn is not None and loader.num_workers > 0


def _is_memload(dataset: object) -> bool:
    """Whether all that is read in the end is memload's, which cannot be changed and never asks who reads it."""
    if type(dataset) is Subset:
        return _is_memload(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(_is_memload, dataset.datasets))
    if type(dataset) is StackDataset:
        members = dataset.datasets
        return all(map(_is_memload, members.values() if isinstance(members, dict) else members))
    if type(dataset) is Float32View:
        return _is_memload(dataset.base)
    return type(dataset) in (Dataset, GroupedDataset)
