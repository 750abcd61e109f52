"""A dataset as a command tells it to programs."""

from __future__ import annotations

from typing import Any

from memload.columns.fields import Field
from memload.dataset.dataset import Dataset
from memload.formats.costs import cost_of
from memload.formats.remote.remote_shards import origins_of


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
        "stored": stored(field),
        "reading_a_row": {"nbytes": cost.nbytes, "touched": cost.touched, "chunks": cost.tiles, "unfit": cost.unfit},
    }


def stored(field: Field) -> str:
    """Return how the rows of a field are stored: "in place", how they are decoded, or that a store has them."""
    how = str(field.stored)
    return f"fetched from its store, {how}".replace(", in place", "") if origins_of([field.column]) else how
