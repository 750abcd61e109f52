"""Read any source of rows in blocks, for a writer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.fields import Field, HasFields, check_equal_lengths
from memload.columns.numbers import row_numbers
from memload.dtypes import check_whole_numbers
from memload.formats.shards.rows import Rows, as_rows, no_array
from memload.sizes import counted
from memload.writing.conversion import Conversion, Form
from memload.writing.same_source import identity_of
from memload.writing.transposing import Transposer, segments_of

_IDENTITY = Conversion()
_PARTS = 4  # the parts of a block, which are converted one after the other


class RowSource(Protocol):
    """Rows of a known number."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """The dtype and shape of a row, by field."""

    @property
    def transposed_bytes(self) -> int:
        """Bytes that are read beforehand, block by block, from fields that are not stored row by row."""

    def identity(self) -> str | None:
        """Return a text that identifies these rows, also in another process; None if there is none."""

    def sample(self, conversions: Mapping[str, Conversion], numbers: NDArray[np.int64]) -> dict[str, Rows]:
        """Return some converted rows."""

    def blocks(
        self, conversions: Mapping[str, Conversion], start: int, step: int, transposer: Transposer
    ) -> Iterator[dict[str, Rows]]:
        """Yield the converted rows from `start` on, up to `step` at once, each block valid until the next."""


class DatasetRows:
    """The rows of a dataset, in its order."""

    def __init__(self, dataset: HasFields, rows: Any) -> None:
        self._dataset = dataset if rows is None else dataset.select(rows)
        self.rows = len(self._dataset)
        self.forms = {name: (field.dtype, field.shape) for name, field in self._dataset.fields.items()}
        self.transposed_bytes = sum(f.nbytes for f in self._dataset.fields.values() if f.blocks is not None)

    def identity(self) -> str | None:
        """Return a text that identifies these rows, also in another process; None if there is none."""
        return identity_of(self._dataset)

    def sample(self, conversions: Mapping[str, Conversion], numbers: NDArray[np.int64]) -> dict[str, Rows]:
        """Return some converted rows."""
        fields = self._dataset.fields.items()
        return {name: conversions.get(name, _IDENTITY).apply(gather_rows(field, numbers)) for name, field in fields}

    def blocks(
        self, conversions: Mapping[str, Conversion], start: int, step: int, transposer: Transposer
    ) -> Iterator[dict[str, Rows]]:
        """Yield the converted rows from `start` on, up to `step` at once, each block valid until the next."""
        fields = dict(self._dataset.fields)
        every = {name: conversions.get(name, _IDENTITY) for name in fields}
        across = {name: field for name, field in fields.items() if field.blocks is not None}
        buffers = {
            name: np.empty((step, field.row_bytes), np.uint8) for name, field in fields.items() if name not in across
        }
        for segment in segments_of(fields):
            if segment.stop <= start:
                continue
            made = transposer.rows(across, every, segment) if across else {}
            for begin in range(max(start, segment.start), segment.stop, step):
                numbers = np.arange(begin, min(begin + step, segment.stop))
                rows = {
                    name: gather_rows(made[name], numbers - segment.start)
                    if name in made
                    else gather_rows(field, numbers, buffers[name])
                    for name, field in fields.items()
                }
                pending = {name: conversion for name, conversion in conversions.items() if name not in made}
                yield from in_parts(rows, pending, step)


class ArrayRows:
    """The rows of arrays and tensors of one length, on any device."""

    def __init__(self, arrays: Mapping[str, Any], rows: Any) -> None:
        if not arrays:
            raise ValueError("no fields: expected arrays or tensors by name")
        for name, value in arrays.items():
            if isinstance(value, str | os.PathLike):
                raise TypeError(f"field {name!r}: {str(value)!r} is a text or a path; memload.open(path) opens files")
        self._arrays = {name: _array(name, value) for name, value in arrays.items()}
        for name, array in self._arrays.items():
            if not array.shape:
                raise ValueError(f"field {name!r}: a single number; expected an array whose first axis counts the rows")
        check_equal_lengths({name: array.shape[0] for name, array in self._arrays.items()}, "the fields")
        length = next(iter(self._arrays.values())).shape[0]
        self._numbers = None if rows is None else row_numbers(rows, length)
        self.rows = length if self._numbers is None else len(self._numbers)
        firsts = {name: as_rows(name, array[:1]) for name, array in self._arrays.items()}
        self.forms = {name: (first.dtype, first.shape) for name, first in firsts.items()}
        self.transposed_bytes = 0

    def identity(self) -> str | None:
        """Return None, because rows in memory cannot be identified later."""
        return None

    def sample(self, conversions: Mapping[str, Conversion], numbers: NDArray[np.int64]) -> dict[str, Rows]:
        """Return some converted rows."""
        return self._rows(conversions, numbers if self._numbers is None else self._numbers[numbers])

    def blocks(
        self,
        conversions: Mapping[str, Conversion],
        start: int,
        step: int,
        transposer: Transposer,  # noqa: ARG002 - arrays have no blocks
    ) -> Iterator[dict[str, Rows]]:
        """Yield the converted rows from `start` on, up to `step` at once, each block valid until the next."""
        for begin in range(start, self.rows, step):
            chosen = slice(begin, begin + step) if self._numbers is None else self._numbers[begin : begin + step]
            yield from in_parts(self._rows({}, chosen), conversions, step)

    def _rows(self, conversions: Mapping[str, Conversion], chosen: slice | NDArray[np.int64]) -> dict[str, Rows]:
        return {
            name: conversions.get(name, _IDENTITY).apply(as_rows(name, _taken(array, chosen)))
            for name, array in self._arrays.items()
        }


def _array(name: str, values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        _check_strided(name, values)
    if hasattr(values, "shape") and not hasattr(values, "iloc"):  # pandas takes rows by label
        return values
    if missing := _missing(values):
        raise ValueError(
            f"field {name!r}: {counted(missing, 'row is', 'rows are')} null; fill them, as by array.fill_null(0) of "
            "pyarrow and series.fillna(0) of pandas, or leave them out"
        )
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise no_array(name, values, error) from error
    if not isinstance(values, list | tuple) or array.dtype != np.float64:
        return array
    try:
        check_whole_numbers(values, array)
    except ValueError as error:
        if array.ndim == 1 and all(isinstance(one, int) and 0 <= one < 1 << 64 for one in values):
            return np.array(values, dtype=np.uint64)
        raise ValueError(f"field {name!r}: {error}") from None
    return array


def _missing(values: Any) -> int:
    """Return the rows without a value of pyarrow's arrays, and of pandas' where that is not NaN."""
    if hasattr(values, "iloc"):
        return 0 if isinstance(values.dtype, np.dtype) else int(values.isna().sum())
    return int(getattr(values, "null_count", 0))


def _check_strided(name: str, values: torch.Tensor) -> None:
    if values.is_meta:
        raise TypeError(f"field {name!r}: a tensor on the device meta has no numbers to write")
    if values.is_nested:
        raise TypeError(f"field {name!r}: a nested tensor; give memload.ragged(values.unbind())")
    if values.layout != torch.strided:
        layout = str(values.layout).removeprefix("torch.")
        raise TypeError(
            f"field {name!r}: a tensor of the layout {layout}; give values.to_dense(), or its parts as fields"
        )


def _taken(array: Any, chosen: slice | NDArray[np.int64]) -> Any:
    """Return rows of an array. Those of files, such as h5py's, may only be taken in rising order, each once."""
    if isinstance(chosen, slice) or isinstance(array, np.ndarray | torch.Tensor) or (np.diff(chosen) > 0).all():
        return array[chosen]
    rising, places = np.unique(chosen, return_inverse=True)
    return array[rising][places]


def in_parts(rows: Mapping[str, Rows], conversions: Mapping[str, Conversion], step: int) -> Iterator[dict[str, Rows]]:
    """Yield a block of at most `step` rows, converted, in parts.

    Each part is freed before the next is made. The arrays of a whole block would be so large that the C library keeps
    their memory.
    """
    piece = -(-step // _PARTS) if conversions else step
    for at in range(0, len(next(iter(rows.values()))), piece):
        yield {name: conversions.get(name, _IDENTITY).apply(part.cut(at, at + piece)) for name, part in rows.items()}


def gather_rows(field: Field, numbers: NDArray[np.int64], buffer: NDArray[np.uint8] | None = None) -> Rows:
    """Return rows of a field by their numbers, in `buffer` (rows, row_bytes) if it is given."""
    field.check_in_place()
    block = np.empty((len(numbers), field.row_bytes), np.uint8) if buffer is None else buffer[: len(numbers)]
    if block.nbytes:
        field.column.gather(numbers, block.ctypes.data, block.nbytes)
    return Rows(field.dtype, field.shape, block)
