"""The loader's `ragged=`: the form of batches of rows that differ in length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memload.columns.fields import HasFields
from memload.columns.numbers import kind
from memload.columns.ragged_fields import with_forms


def in_form(dataset: Any, forms: Any) -> HasFields:
    """Return the dataset with batches of these forms: one form, or a dict by field; see `Dataset.with_ragged`.

    Raises:
        KeyError, ValueError: as `Dataset.with_ragged`.
        TypeError: `dataset` is not a memload dataset, or `forms` is neither a form nor a dict of forms by field.
    """
    if not isinstance(dataset, HasFields):
        raise TypeError(
            f"ragged= is for memload datasets; the dataset is {kind(dataset)}: use ds.with_ragged(...) where the "
            "memload dataset goes into it"
        )
    return replace(dataset, fields=with_forms([*dataset.fields.items()], forms))
