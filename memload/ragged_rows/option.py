"""The loader's `ragged=`: the form of batches of rows that differ in length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memload.dataset import Dataset
from memload.ragged_rows.fields import with_forms
from memload.rows.numbers import kind


def in_form(dataset: Any, forms: Any) -> Dataset:
    """Return the dataset with batches of these forms: one, or such by field; see `Dataset.with_ragged`.

    Raises:
        KeyError, ValueError: as `Dataset.with_ragged`.
        TypeError: it is no memload dataset, or `forms` is neither a form nor forms by field.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"ragged= is for memload datasets; the dataset is {kind(dataset)}: use ds.with_ragged(...) where the "
            "memload dataset goes into it"
        )
    return replace(dataset, fields=with_forms([*dataset.fields.items()], forms))
