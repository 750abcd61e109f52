"""Arguments of a loader that concern its dataset: ``ragged=``, and those that only torch's own machinery supports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset

from memload.columns.fields import HasFields
from memload.columns.numbers import kind
from memload.columns.ragged_fields import with_forms
from memload.dataset.dataset import Dataset
from memload.dataset.groups import GroupedDataset
from memload.dataset.mapped import MappedDataset


def in_form(dataset: Any, forms: Any) -> HasFields:
    """Return the dataset with batches of these forms: one form, or a dict by field; see `Dataset.with_ragged`.

    Raises:
        KeyError, ValueError: as `Dataset.with_ragged`.
        TypeError: `dataset` is not a memload dataset, or `forms` is neither a form nor a dict of forms by field.
    """
    if not isinstance(dataset, HasFields):
        raise TypeError(
            f"ragged= is for memload datasets; the dataset is {kind(dataset)}: leave it out, and give that form to the "
            f"memload dataset that goes into it, as in ds.with_ragged({forms!r})"
        )
    return replace(dataset, fields=with_forms([*dataset.fields.items()], forms))


def asks_for_stock(loader: DataLoader[Any]) -> str | None:
    """Return a sentence about the first argument that the native engine does not support; None if it supports all.

    They all are about worker processes: without ``num_workers`` there is nothing to ask.
    """
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
    return None


def without_worker_init_fn(loader: DataLoader[Any]) -> bool:
    """Return whether a native pass would skip a ``worker_init_fn`` that a stock pass calls in its workers."""
    return loader.worker_init_fn is not None and loader.num_workers > 0


def _is_memload(dataset: object) -> bool:
    """Return whether all datasets at the bottom are memload's, which are immutable and ignore who reads them."""
    if type(dataset) is Subset:
        return _is_memload(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(_is_memload, dataset.datasets))
    if type(dataset) is StackDataset:
        members = dataset.datasets
        return all(map(_is_memload, members.values() if isinstance(members, dict) else members))
    from memload.dataset.float32_view import Float32View

    if type(dataset) is Float32View:
        return _is_memload(dataset.base)
    return type(dataset) in (Dataset, GroupedDataset)
