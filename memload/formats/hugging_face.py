"""Datasets of Hugging Face: where the rows of their columns lie, and what their torch format makes of them.

The one place that knows what is private to the datasets library: `_indices`, the selection that `select`, `shuffle`
and `train_test_split` leave.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memload.columns.fields import Field
from memload.dtypes import from_numpy_dtype
from memload.errors import FormatError
from memload.formats.members import Key


def is_hugging_face(dataset: object) -> bool:
    """Return whether this is a `datasets.Dataset`; subclasses do not count, because they may answer differently."""
    module = sys.modules.get("datasets")  # of somebody who has not imported it, there is none
    return type(dataset) is getattr(module, "Dataset", ())


def fields_of(dataset: Any, key: Key = None) -> dict[str, Field]:
    """Return the columns of a `datasets.Dataset` as fields, with their stored dtypes.

    Args:
        dataset: the dataset. Its Arrow buffers are read in place, with its selection of rows and without its format.
        key: the columns to return; all if not given.

    Raises:
        FormatError: the rows of a column are not runs of bytes; the message names all such columns.
        KeyError: `key` names a column that does not exist.
    """
    from memload.formats.arrow_file import columns_as_fields

    table = dataset.data.table
    columns = {name: table.column(name).chunks or [_empty(table, name)] for name in table.column_names}
    fields = columns_as_fields("the dataset", columns, key, None)
    if dataset._indices is None:
        return fields
    rows = dataset._indices.column(0).to_numpy().astype(np.int64)
    return {name: field.select(rows) for name, field in fields.items()}


@dataclass(frozen=True)
class TorchFormat:
    """The effect of `with_format("torch", ...)` on columns.

    Attributes:
        columns: the formatted columns; batches have no others.
        dtype: the dtype of all of them, if the format states one.
    """

    columns: tuple[str, ...]
    dtype: torch.dtype | None

    def dtype_of(self, stored: torch.dtype) -> torch.dtype | None:
        """Return the dtype of elements in batches, by their stored dtype; None if torch does not accept them."""
        if stored == torch.uint64 or stored.is_complex:
            return None
        if self.dtype is not None:
            return self.dtype
        return torch.float32 if stored.is_floating_point else torch.int64


def torch_format(dataset: Any) -> TorchFormat:
    """Return the torch format of a dataset.

    Raises:
        FormatError: it has another format, or memload does not support its batches; the message says what to do.
    """
    stated = dataset.format
    options = dict(stated["format_kwargs"])
    dtype = options.pop("dtype", None)
    if stated["type"] == "custom":
        raise FormatError(
            'its rows go through a function: give dataset.with_format("torch"), and the function as batch_transform='
        )
    if stated["type"] != "torch":
        kind = "none" if stated["type"] is None else repr(stated["type"])
        raise FormatError(f'its format is {kind}: give dataset.with_format("torch")')
    if stated["output_all_columns"] and set(dataset.column_names) - set(stated["columns"]):
        raise FormatError("output_all_columns adds columns that are no tensors: leave it out")
    if options or not (dtype is None or isinstance(dtype, torch.dtype)):
        raise FormatError(f"its torch format has the options {sorted(stated['format_kwargs'])}: dtype= alone is known")
    columns = tuple(name for name in dataset.column_names if name in stated["columns"])
    return TorchFormat(columns, dtype)


def stated_dtypes(dataset: Any) -> dict[str, torch.dtype]:
    """Return the dtypes of columns of numbers, or of lists of numbers, whose rows are numbers of Python's."""
    if dataset.format["type"] is not None:
        return {}
    table = dataset.data.table
    found = {name: _element(table.column(name).type) for name in table.column_names}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def _element(kind: Any) -> torch.dtype | None:
    """Return the dtype of the numbers in a type of Arrow; None if it has others, or torch has no such numbers."""
    while (inner := getattr(kind, "storage_type", None) or getattr(kind, "value_type", None)) is not None:
        kind = inner
    try:
        return from_numpy_dtype(np.dtype(kind.to_pandas_dtype()))
    except (NotImplementedError, TypeError):
        return None


def parts_of(dataset: Any) -> list[Any]:
    """Return the objects that decide the samples of a dataset; a change of the dataset replaces them."""
    return [dataset.data, dataset._indices, dataset._format_type, dataset._format_columns, dataset._format_kwargs]


def _empty(table: Any, name: str) -> Any:
    return table.column(name).combine_chunks()
