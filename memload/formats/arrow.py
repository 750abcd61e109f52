"""Columns of Apache Arrow tables: pyarrow says where their buffers lie, and the rows are read there.

A column fits if each row is one run of bytes: numbers, or lists that have one length throughout, nested as deep as may
be. Buffers of a mapped file are read from memload's own mapping of that file; others are borrowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memload._core import Column, Storage
from memload.columns.fields import Field
from memload.dtypes import from_numpy_dtype
from memload.formats.memory_maps import Mapping, mapping_of
from memload.sizes import counted


class UnfitColumnError(ValueError):
    """The rows of an Arrow column cannot be read in place; the message says why, without a full stop."""


@dataclass(frozen=True)
class Run:
    """Rows of an Arrow array, one after the other in memory.

    Attributes:
        dtype, shape: the dtype and shape of one row.
        rows: the number of rows.
        address: the address of the first row.
        owner: the buffer with the rows.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: int
    address: int
    owner: Any

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize


class Buffers:
    """Finds the storage of buffers: memload's mapping of the mapped file, or borrowed memory."""

    def __init__(self) -> None:
        self._mappings: list[Mapping] = []
        self._files: dict[str, Storage] = {}

    def locate(self, name: str, run: Run) -> tuple[Storage, int]:
        """Return the storage that holds the run, and the offset of its first byte."""
        mapping = self._mapping(run)
        if mapping is None:
            storage = Storage.borrow(run.owner, run.address, run.rows * run.row_bytes, f"the column {name!r}")
            return storage, 0
        if mapping.path not in self._files:
            self._files[mapping.path] = Storage.map_file(mapping.path)
        return self._files[mapping.path], mapping.offset + run.address - mapping.begin

    def _mapping(self, run: Run) -> Mapping | None:
        end = run.address + run.rows * run.row_bytes
        for mapping in self._mappings:
            if mapping.begin <= run.address and end <= mapping.end:
                return mapping if mapping.shows_file else None
        mapping_there = mapping_of(run.address)
        if mapping_there is None or end > mapping_there.end or not mapping_there.shows(Path(mapping_there.path)):
            return None
        self._mappings.insert(0, mapping_there)
        return mapping_there if mapping_there.shows_file else None


def column_field(name: str, arrays: Iterable[Any], buffers: Buffers) -> Field:
    """Return a field with the rows of these Arrow arrays, one array after the other.

    Args:
        name: the name of the column, for messages.
        arrays: arrays of one type, at least one.
        buffers: the buffers, which all columns of a file share.

    Raises:
        UnfitColumnError: a row is not one run of bytes, or a value is missing.
    """
    runs = [run_of(array) for array in arrays]
    filled = [run for run in runs if run.rows] or runs[:1]
    if not filled:
        raise UnfitColumnError(f"column {name!r} has no chunk, so its type is unknown")
    first = filled[0]
    for run in filled:
        if (run.dtype, run.shape) != (first.dtype, first.shape):
            raise UnfitColumnError(f"column {name!r}: {_lengths(first.shape, run.shape)}")
    segments = [(*buffers.locate(name, run), run.rows, run.row_bytes) for run in filled if run.rows and run.row_bytes]
    if not segments:
        segments = [(Storage.borrow(None, 0, 0, f"the column {name!r}"), 0, sum(run.rows for run in filled), 0)]
    return Field(first.dtype, first.shape, Column(first.row_bytes, segments))


def run_of(array: Any) -> Run:
    """Return the place of the rows of an Arrow array.

    Raises:
        UnfitColumnError: a row is not one run of bytes, or a value is missing.
    """
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return _shaped(run_of(array.storage), array.type)
    if array.null_count:
        raise UnfitColumnError(
            f"{counted(array.null_count, 'value is', 'values are')} missing (null), and batches cannot have missing "
            "values; fill them with "
            "fill_null, or leave their rows out"
        )
    if pa.types.is_fixed_size_list(array.type):
        return _inner(array.flatten(), len(array), array.type.list_size)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _of_lists(array)
    return _of_numbers(array)


def _shaped(run: Run, kind: Any) -> Run:
    """Return the run in the shape of an Arrow tensor type, which is stored flat; other types stay unchanged."""
    import pyarrow as pa

    if not isinstance(kind, pa.FixedShapeTensorType):
        return _stated(run, kind)
    axes = list(range(len(kind.shape)))
    if (kind.permutation or axes) != axes:
        raise UnfitColumnError(f"its tensors are stored with their axes in another order, {kind.permutation}")
    if math.prod(kind.shape) != math.prod(run.shape):
        raise UnfitColumnError(f"tensors of shape {tuple(kind.shape)} are stored as {run.shape} numbers")
    return replace(run, shape=tuple(kind.shape))


def _stated(run: Run, kind: Any) -> Run:
    """Return a run without rows in the shape that the type states, because there is no list to measure."""
    shape = tuple(getattr(kind, "shape", ()))
    return replace(run, shape=shape) if shape and not run.rows and all(type(side) is int for side in shape) else run


def _of_lists(array: Any) -> Run:
    offsets = array.offsets.to_numpy(zero_copy_only=True)
    lengths = np.diff(offsets)
    if len(lengths) == 0:
        return _inner(array.values[:0], 0, 0)
    length = int(lengths[0])
    if length < 0 or (lengths != length).any():
        raise UnfitColumnError(_lengths((length,), (int(lengths[lengths != length][0]),)) if length >= 0 else "damaged")
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or last > len(array.values):
        raise UnfitColumnError(f"lists from {first} to {last} lie outside of {len(array.values)} values")
    return _inner(array.values[first:last], len(array), length)


def _inner(values: Any, rows: int, length: int) -> Run:
    if len(values) != rows * length:
        raise UnfitColumnError(f"{rows} lists of {length} do not have {len(values)} values")
    run = run_of(values)
    return Run(run.dtype, (length, *run.shape), rows, run.address, run.owner)


def _of_numbers(array: Any) -> Run:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_boolean(kind):
        raise UnfitColumnError("bools are stored as single bits; cast the column to uint8")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UnfitColumnError(f"its type {kind} is neither a number of fixed size nor a list of these{_remedy(kind)}")
    dtype = from_numpy_dtype(np.dtype(kind.to_pandas_dtype()))
    values = array.buffers()[1]
    if values is None or (array.offset + len(array)) * dtype.itemsize > values.size:
        if len(array):
            raise UnfitColumnError(f"its buffer is shorter than {len(array)} values of {dtype.itemsize} bytes")
        return Run(dtype, (), 0, 0, None)
    return Run(dtype, (), len(array), values.address + array.offset * dtype.itemsize, values)


def _remedy(kind: Any) -> str:
    """Return what to do with a column of such a type, for messages."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return "; the numbers of a dictionary are array.indices"
    if pa.types.is_temporal(kind):
        return "; cast the column to int64"
    return "; cast the column to float64" if pa.types.is_decimal(kind) else ""


def _lengths(first: tuple[int, ...], other: tuple[int, ...]) -> str:
    return f"rows differ in shape: {first} and {other}, and one batch cannot have both"
