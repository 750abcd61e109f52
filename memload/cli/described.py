"""A dataset as a command tells it to programs."""

from __future__ import annotations

from typing import Any

from memload.columns.fields import Field
from memload.dataset.dataset import Dataset
from memload.formats.costs import cost_of


def described(dataset: Dataset) -> dict[str, Any]:
    """Return rows, bytes and fields of a dataset, with how each field is read and what a row costs."""
    fields = {name: of_field(field) for name, field in dataset.fields.items()}
    return {"rows": len(dataset), "nbytes": dataset.nbytes, "fields": fields}


def of_field(field: Field) -> dict[str, Any]:
    """Return dtype, shape, bytes and cost of a field; a side of its shape is None where rows differ in length."""
    cost = cost_of(field)
    return {
        "dtype": field.kind,
        "shape": field.shape,
        "row_bytes": field.row_bytes,
        "nbytes": field.nbytes,
        "stored": str(field.stored),
        "reading_a_row": {"nbytes": cost.nbytes, "touched": cost.touched, "chunks": cost.tiles, "unfit": cost.unfit},
    }
