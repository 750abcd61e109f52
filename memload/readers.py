"""Which datasets the native engine can read, and how: dataset -> fields, casts, and the structure of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from memload.cast import Float32View
from memload.dataset import Dataset
from memload.fields import Field
from memload.native import Key, NotNative, Source
from memload.plan import as_indices, from_end
from memload.sources.arrays import borrow_array


def resolve(dataset: Any) -> Source:
    """Find out how the engine reads ``dataset``: memload's own, TensorDataset, Subset, ConcatDataset, Float32View.

    Only the exact types count, since a subclass may answer differently.

    Raises:
        NotNative: it cannot; the message says why.
    """
    reader = _READERS.get(type(dataset))
    if reader is None:
        raise NotNative(
            f"{type(dataset).__name__} is not a dataset that memload reads natively: give it memload.open(...) or "
            "memload.from_arrays(...), or a TensorDataset, Subset or ConcatDataset of these"
        )
    return reader(dataset)


def _of_dataset(dataset: Dataset) -> Source:
    fields: dict[Key, Field] = dict(dataset.fields.items())
    return Source(fields, dataset.layout, {})


def _of_tensors(dataset: TensorDataset) -> Source:
    fields: dict[Key, Field] = {}
    for k, tensor in enumerate(dataset.tensors):
        if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
            raise NotNative(f"tensor {k} of the TensorDataset is not a plain dense tensor without gradient")
        if tensor.device.type != "cpu":
            raise NotNative(f"tensor {k} of the TensorDataset lies on {tensor.device}: there is nothing left to load")
        try:
            fields[k] = borrow_array(str(k), tensor)
        except (TypeError, ValueError) as error:
            raise NotNative(f"tensor {k} of the TensorDataset: {error}") from error
    return Source(fields, "tuple", {})


def _of_subset(dataset: Subset[Any]) -> Source:
    base = resolve(dataset.dataset)
    try:
        rows = from_end(as_indices(dataset.indices), base.rows)
        fields = {key: replace(field, column=field.column.select(rows)) for key, field in base.fields.items()}
    except (TypeError, ValueError, IndexError) as error:
        raise NotNative(f"the indices of the Subset are not row indices: {error}") from error
    return replace(base, fields=fields)


def _of_concat(dataset: ConcatDataset[Any]) -> Source:
    parts = [resolve(part) for part in dataset.datasets]
    first = parts[0]
    if any(_signature(part) != _signature(first) for part in parts):
        raise NotNative("the parts of the ConcatDataset differ in fields, dtypes, shapes or casts")
    fields = {key: Field.concat([part.fields[key] for part in parts]) for key in first.fields}
    return replace(first, fields=fields)


def _signature(source: Source) -> Any:
    return source.layout, source.casts, [(key, f.dtype, f.shape) for key, f in source.fields.items()]


def _of_view(view: Float32View) -> Source:
    base = resolve(view.base)
    if base.casts:
        raise NotNative("a Float32View of a Float32View converts twice: one view, or cast=, is enough")
    if base.layout != "dict":
        raise NotNative("a Float32View needs samples that are dicts; its base yields something else")
    return base.with_casts(view.rules({str(name): field for name, field in base.fields.items()}))


_READERS: dict[type, Callable[[Any], Source]] = {
    Dataset: _of_dataset,
    TensorDataset: _of_tensors,
    Subset: _of_subset,
    ConcatDataset: _of_concat,
    Float32View: _of_view,
}
