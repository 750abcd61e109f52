"""Use ragged rows in memory as fields: values and offsets without a copy, lists of rows, and lists of texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from memload import _core
from memload.columns.fields import Field, check_name, row_nbytes
from memload.columns.ragged_fields import RaggedField
from memload.columns.ragged_forms import Ragged, RaggedArray
from memload.dtypes import as_numbers, is_pythons, refuse_masked
from memload.formats.arrays import borrow_array


def ragged(values: Any, offsets: Any = None, *, axis: int = 0) -> RaggedArray:
    """Return rows of different length for `memload.from_arrays`, from values and offsets or from a list of rows.

    Args:
        values: with `offsets`, the items of all rows, (items, *item), an array or a CPU tensor that is read in place;
            without, a list of such rows (length, *item) of one dtype, which are copied.
        offsets: int64 (rows + 1,), never decreasing, from 0 or more to at most the number of items: row i is
            ``values[offsets[i]:offsets[i + 1]]``. Other integers are copied.
        axis: along which rows differ in length and are joined: 0, or 1 for rows such as the (2, edges) of a graph.

    Raises:
        ValueError: rows differ in more than their length, or `axis` is another. Offsets are checked by
            `memload.from_arrays`.
        TypeError: the rows are not arrays, or differ in dtype.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(tokens=memload.ragged([torch.arange(3), torch.arange(1)]), label=torch.zeros(2))
        >>> ds[0]["tokens"], ds.fields["tokens"].shape
        (tensor([0, 1, 2]), (None,))
    """
    if axis not in (0, 1):
        raise ValueError(f"rows are joined along axis 0 or 1, got {axis!r}")
    if offsets is not None:
        return RaggedArray(values, offsets, axis)
    return rows_joined(values, axis)


def rows_joined(values: Any, axis: int, like: torch.dtype | None = None) -> RaggedArray:
    """Return a list of rows as ragged rows, as `ragged` does; Python's numbers take the dtype `like`, if given."""
    if not isinstance(values, Iterable):
        raise TypeError(f"expected a list of rows, or values and offsets, got {type(values).__name__}")
    given = list(values)
    if like is None:  # what has a dtype decides it; rows of Python's numbers have none, and empty lists not even these
        own = (_tensor(place, row, None) for place, row in enumerate(given) if not is_pythons(row))
        pythons = (_tensor(place, row, None) for place, row in enumerate(given))
        like = next((row.dtype for row in itertools.chain(own, pythons) if row.numel()), None)
    rows = [_tensor(position, row, like) for position, row in enumerate(given)]
    if not rows:
        raise ValueError("a list of no rows has no dtype and no shape; give values and offsets")
    shape = _without(rows[0], axis, 0)
    for position, row in enumerate(rows):
        if _without(row, axis, position) != shape or row.dtype != rows[0].dtype:
            raise (TypeError if row.dtype != rows[0].dtype else ValueError)(
                f"row {position} is {row.dtype} {tuple(row.shape)}, the first one {rows[0].dtype} "
                f"{tuple(rows[0].shape)}: rows may differ along axis {axis} alone"
            )
    lengths = torch.tensor([row.shape[axis] for row in rows], dtype=torch.int64, device="cpu")
    return RaggedArray(torch.cat(rows, dim=axis), torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), axis)


def field_of(name: str, data: Any) -> Field:
    """Return the field of an array, of ragged rows, or of a list of texts.

    Raises:
        TypeError, ValueError: the value is invalid; the message names the field.
    """
    check_name(name)
    if isinstance(data, RaggedArray):
        return _borrow(name, data)
    if isinstance(data, Ragged):
        return _borrow(name, RaggedArray(data.values, data.offsets, data.axis))
    if is_texts(data):
        return text_field(name, data)
    if isinstance(data, list | tuple):
        raise TypeError(f"field {name!r}: expected a numpy array or a CPU tensor, got {_listed(data)}")
    return borrow_array(name, data)


def is_texts(data: Any) -> bool:
    """Return whether this is a list of at least one text, and of nothing else."""
    return isinstance(data, list | tuple) and len(data) > 0 and all(isinstance(text, str) for text in data)


def text_field(name: str, texts: Iterable[str]) -> RaggedField:
    """Return a field of texts.

    Raises:
        ValueError: a text cannot be encoded as UTF-8.
    """
    encoded = [encode(name, text) for text in texts]
    values = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    offsets = np.fromiter(itertools.accumulate(map(len, encoded), initial=0), dtype=np.int64)
    return replace(_borrow(name, RaggedArray(values, offsets, 0)), text=True)


def encode(name: str, text: str) -> bytes:
    """Return a text in UTF-8. Raises ValueError, naming the field, if that is impossible."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"field {name!r}: {text!r:.80} cannot be written as UTF-8 ({error.reason})") from None


def _listed(data: Sequence[Any]) -> str:
    """Describe a list that cannot be a field, and what to give instead."""
    kind = type(data).__name__
    if not data:
        return f"an empty {kind}, which has no dtype"
    if any(isinstance(value, str) for value in data):
        place, other = next((place, value) for place, value in enumerate(data) if not isinstance(value, str))
        return f"a {kind} of texts, of which number {place} is a {type(other).__name__}; texts are all str"
    if any(isinstance(value, bytes) for value in data):
        return f"a {kind} of bytes; give memload.ragged([numpy.frombuffer(row, numpy.uint8) for row in rows])"
    return f"{kind}; use torch.tensor(values), or memload.ragged(rows) for rows that differ in length"


def _tensor(position: int, row: Any, like: torch.dtype | None) -> torch.Tensor:
    try:
        if isinstance(row, np.ndarray):
            refuse_masked(row)
        return torch.as_tensor(as_numbers(row, like), device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise type(error)(f"row {position} makes no array of numbers ({error})") from error


def _without(row: torch.Tensor, axis: int, position: int) -> tuple[int, ...]:
    """Return the shape of a row without the axis along which rows differ."""
    if row.ndim <= axis:
        raise ValueError(f"row {position} has the shape {tuple(row.shape)}, and so no axis {axis} that could differ")
    return (*row.shape[:axis], *row.shape[axis + 1 :])


def _borrow(name: str, data: RaggedArray) -> RaggedField:
    values, offsets = borrow_array(name, _array(data.values)), borrow_array(name, _int64(name, data.offsets))
    if offsets.shape or not offsets.rows:
        raise ValueError(
            f"field {name!r}: offsets must be int64 (rows + 1,), with at least one entry; got {data.offsets!r:.80}"
        )
    if data.axis and (not values.shape or not values.rows):
        raise ValueError(
            f"field {name!r}: values need a second axis, along which rows are joined, and one that is not 0"
        )
    planes, items, item_shape = 1, values.rows, values.shape
    if data.axis:
        planes, items, item_shape = values.rows, values.shape[0], values.shape[1:]
    item_bytes = row_nbytes(values.dtype, item_shape)
    storage, at, _, stride = _segment(values) if values.rows else (_nothing(name), 0, 0, 0)
    if not data.axis and items > 1 and 0 < item_bytes != stride:
        raise ValueError(
            f"field {name!r}: values have gaps between their items; pass values.contiguous(), which copies"
        )
    numbers, numbers_at, count, _ = _segment(offsets)
    try:
        column = _core.Ragged(item_bytes, planes, [(numbers, numbers_at, storage, at, count - 1, items, stride)])
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from None
    shape: tuple[Any, ...] = (planes, None, *item_shape) if data.axis else (None, *item_shape)
    return RaggedField(values.dtype, shape, column, owners=(*values.owners, *offsets.owners))


def _segment(field: Field) -> tuple[_core.Storage, int, int, int]:
    assert isinstance(field.column, _core.Column)
    return field.column.segments[0]


def _array(values: Any) -> Any:
    return values if isinstance(values, torch.Tensor | np.ndarray) else np.asarray(values)


def _int64(name: str, offsets: Any) -> Any:
    """Return the offsets as int64 without gaps, as a copy only if necessary."""
    if isinstance(offsets, torch.Tensor):
        if offsets.dtype.is_floating_point or offsets.dtype.is_complex or offsets.dtype == torch.bool:
            raise TypeError(f"field {name!r}: offsets must be integers, got {offsets.dtype}")
        return offsets.to(torch.int64).contiguous()
    found = np.asarray(offsets)
    if found.dtype.kind not in "iu":
        raise TypeError(f"field {name!r}: offsets must be integers, got {found.dtype}")
    return np.ascontiguousarray(found, dtype=np.int64)


def _nothing(name: str) -> _core.Storage:
    nothing = np.empty(0, dtype=np.uint8)
    return _core.Storage.borrow(nothing, nothing.ctypes.data, 0, f"the array of field {name!r}")
