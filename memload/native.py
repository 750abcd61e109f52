"""Which datasets the native engine can read, and how: dataset -> fields, casts, and the shape of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torch.utils.dlpack import from_dlpack

from memload import _core
from memload.cast import Cast, Float32View
from memload.dataset import Dataset
from memload.dtypes import code_of
from memload.fields import Field
from memload.mapped import MappedDataset
from memload.plan import as_indices, from_end
from memload.sources.arrays import borrow_array

Key = str | int
PipelineField = tuple[_core.Column, tuple[str, str, bool] | None, int, int, list[int]]

_CASTABLE = {"U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64"}
_CAST_TARGETS = {"F16", "BF16", "F32", "F64"}

# DLPack's type codes for the dtypes that torch takes through it; others travel as unsigned integers of their width.
_DLPACK_CODES = {torch.bool: 6, torch.bfloat16: 4, torch.complex64: 5}
_DLPACK_UINT = 1


class NotNative(Exception):  # noqa: N818 - an answer, not an error: the loader goes on with stock machinery
    """Why a dataset cannot be read natively, as one sentence that also says how to change that."""


@dataclass(frozen=True)
class Source:
    """A dataset as the engine sees it.

    Attributes:
        fields: by key, in the order of a batch: field names, or positions in a tuple.
        layout: ``"dict"``, ``"tuple"`` or ``"only"`` (one tensor); what a sample is.
        casts: what becomes of a field on the way; fields without an entry stay as they are.
        maps: functions that each sample goes through after the gather, in this order.
        late_casts: what becomes of a field of the batches made of mapped samples.
    """

    fields: Mapping[Key, Field]
    layout: str
    casts: Mapping[Key, Cast]
    maps: tuple[Callable[..., Any], ...] = ()
    late_casts: Mapping[Any, Cast] | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return next(iter(self.fields.values())).rows

    @property
    def selection_bytes(self) -> int:
        """Bytes of the row selections of all fields."""
        return sum(field.column.selection_bytes for field in self.fields.values())

    def check_in_place(self) -> None:
        """Raise RuntimeError if the memory of a tensor was moved since its field was made."""
        for field in self.fields.values():
            field.check_in_place()

    def with_casts(self, casts: Mapping[Any, Cast]) -> Source:
        """Return this source with casts for some fields.

        Raises:
            KeyError: a cast names a field that is not there.
            ValueError: a field is cast already.
        """
        if self.maps:  # which fields there are is for the functions to say
            return replace(self, late_casts=dict(casts))
        for key in casts:
            if key not in self.fields:
                raise KeyError(f"cast= names the field {key!r}; the dataset has {', '.join(map(repr, self.fields))}")
            if key in self.casts:
                raise ValueError(f"the field {key!r} is cast by the dataset already: leave it out of cast=")
        return replace(self, casts={**self.casts, **casts})

    def pipeline_fields(self) -> list[PipelineField]:
        """Return the fields as the native pipeline takes them."""
        return [_pipeline_field(field, self._fused(key)) for key, field in self.fields.items()]

    def unpacker(self) -> Callable[[list[Any]], Any]:
        """Return the function that makes a batch of the pipeline's capsules, as default_collate would shape it."""
        tensors = self._tensors()
        if self.layout == "dict":
            keys = list(self.fields)
            return lambda capsules: dict(zip(keys, tensors(capsules), strict=True))
        if self.layout == "only":
            return lambda capsules: tensors(capsules)[0]
        return tensors

    def _tensors(self) -> Callable[[list[Any]], list[torch.Tensor]]:
        finish = [_finisher(field, self._fused(key), self.casts.get(key)) for key, field in self.fields.items()]
        if not any(finish):
            return lambda capsules: [from_dlpack(capsule) for capsule in capsules]
        steps = [step or _as_it_is for step in finish]
        return lambda capsules: [step(from_dlpack(c)) for step, c in zip(steps, capsules, strict=True)]

    def _fused(self, key: Key) -> Cast | None:
        """The cast of a field if the gather can do it."""
        cast = self.casts.get(key)
        dtype = self.fields[key].dtype
        if cast is None or (cast.dtype == dtype and not cast.norm_removed):
            return None
        return cast if code_of(dtype) in _CASTABLE and code_of(cast.dtype) in _CAST_TARGETS else None


def _pipeline_field(field: Field, cast: Cast | None) -> PipelineField:
    code = code_of(field.dtype)
    fused = None if cast is None else (code, code_of(cast.dtype), cast.norm_removed and field.dtype == torch.uint8)
    dtype = field.dtype if cast is None else cast.dtype
    return field.column, fused, _dlpack_code(dtype), dtype.itemsize * 8, list(field.shape)


def _dlpack_code(dtype: torch.dtype) -> int:
    if dtype in _DLPACK_CODES:
        return _DLPACK_CODES[dtype]
    if dtype in (torch.float16, torch.float32, torch.float64):
        return 2
    return 0 if dtype in (torch.int8, torch.int16, torch.int32, torch.int64) else _DLPACK_UINT


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _finisher(field: Field, fused: Cast | None, wanted: Cast | None) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What is left to do to a tensor that comes out of the pipeline; None: nothing."""
    dtype = field.dtype if fused is None else fused.dtype
    if wanted is not None and fused is None and wanted.dtype != dtype:
        return lambda x: wanted.apply(x.view(dtype))
    if _dlpack_code(dtype) == _DLPACK_UINT and dtype != torch.uint8:
        return lambda x: x.view(dtype)
    return None


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
        raise NotNative("the parts of the ConcatDataset differ in fields, dtypes, shapes, casts or functions")
    fields = {key: Field.concat([part.fields[key] for part in parts]) for key in first.fields}
    return replace(first, fields=fields)


def _signature(source: Source) -> Any:
    return source.layout, source.casts, source.maps, [(key, f.dtype, f.shape) for key, f in source.fields.items()]


def _of_view(view: Float32View) -> Source:
    base = resolve(view.base)
    if base.casts:
        raise NotNative("a Float32View of a Float32View converts twice: one view, or cast=, is enough")
    if base.maps:
        raise NotNative("a Float32View of mapped samples converts what a function returns: map the view instead")
    if base.layout != "dict":
        raise NotNative("a Float32View needs samples that are dicts; its base yields something else")
    return base.with_casts(view.rules({str(name): field for name, field in base.fields.items()}))


def _of_mapped(mapped: MappedDataset) -> Source:
    if mapped.in_processes:
        raise NotNative("map(..., in_processes=True) asks for the num_workers processes of the stock machinery")
    base = resolve(mapped.base)
    return replace(base, maps=(*base.maps, mapped.fn))


_READERS: dict[type, Callable[[Any], Source]] = {
    Dataset: _of_dataset,
    TensorDataset: _of_tensors,
    Subset: _of_subset,
    ConcatDataset: _of_concat,
    Float32View: _of_view,
    MappedDataset: _of_mapped,
}
