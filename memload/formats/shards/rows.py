"""Convert rows of any form to bytes with a dtype and the shape of one row, for a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.fields import check_name, check_size, row_nbytes
from memload.dtypes import as_numbers, code_of, from_numpy_dtype, refuse_masked


@dataclass(frozen=True)
class Rows:
    """Some rows of one field: `data` is uint8 (rows, row_bytes), contiguous, and may be the caller's memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """The bytes of all rows."""
        return self.data.nbytes

    @property
    def signature(self) -> tuple[Any, ...]:
        """The properties that all rows of the field share, for comparison."""
        return self.dtype, self.shape

    def cut(self, start: int, stop: int) -> Rows:
        """Return some of the rows as views."""
        return Rows(self.dtype, self.shape, self.data[start:stop])


def as_rows(name: str, batch: Any, like: torch.dtype | None = None, widens: bool = False) -> Rows:
    """Return a batch as rows of bytes on the CPU, in this machine's byte order; contiguous data is not copied.

    Args:
        name: the name of the field, for messages.
        batch: (rows, *shape): a tensor on any device, a numpy array, or a value that torch.as_tensor accepts.
        like, widens: the dtype of the rows before, and who takes it; see `as_numbers`.

    Raises:
        TypeError: the dtype cannot be stored.
        ValueError: the name cannot be stored, the batch has no axis, or its size is too large.
    """
    check_name(name)
    try:
        batch = as_numbers(batch, like, widens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise no_array(name, batch, error) from error
    try:
        dtype, flat = _tensor_bytes(batch) if isinstance(batch, torch.Tensor) else _array_bytes(batch)
    except TypeError as error:
        raise TypeError(f"field {name!r}: {error}") from None
    if not batch.shape:
        raise ValueError(f"field {name!r}: a single number; expected a batch whose first axis counts the rows")
    rows, *shape = batch.shape
    try:
        check_size(dtype, shape, rows)
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from None
    return Rows(dtype, tuple(shape), flat.reshape(rows, row_nbytes(dtype, shape)))


def as_row(name: str, row: Any, like: torch.dtype | None = None, widens: bool = False) -> Rows:
    """Return one row of any shape as a batch of one row; otherwise as `as_rows`."""
    try:
        values = as_numbers(row, like, widens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise no_row(name, row, error) from error
    return as_rows(name, values[None])


def _tensor_bytes(tensor: torch.Tensor) -> tuple[torch.dtype, NDArray[np.uint8]]:
    code_of(tensor.dtype)
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    dense = dense.cpu().resolve_conj().resolve_neg().contiguous()
    return tensor.dtype, dense.reshape(-1).view(torch.uint8).numpy()


def _array_bytes(given: Any) -> tuple[torch.dtype, NDArray[np.uint8]]:
    refuse_masked(given)
    array = np.asarray(given)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    dtype = from_numpy_dtype(array.dtype)
    return dtype, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def no_array(name: str, rows: Any, reason: Exception) -> Exception:
    """Return the error for the rows of a field that form no array.

    Args:
        name: the name of the field.
        rows: the value that the user gave.
        reason: the error of torch or numpy.
    """
    odd = _first_other(rows)
    if odd is None:
        return TypeError(f"field {name!r}: a {type(rows).__name__} that makes no array of numbers ({reason})")
    return ValueError(
        f"field {name!r}: row {odd} has {_described(rows[odd])}, row 0 {_described(rows[0])}. Rows of different length "
        f"are a ragged field: give {name}=memload.ragged(rows), or to a ShardWriter ragged=[{name!r}]"
    )


def no_row(name: str, row: Any, reason: Exception) -> Exception:
    """Return the error for one row of a field that forms no array; otherwise like `no_array`."""
    odd = _first_other(row)
    if odd is None:
        return no_array(name, row, reason)
    return ValueError(
        f"field {name!r}: a row is one array, but part {odd} of this one has {_described(row[odd])}, part 0 "
        f"{_described(row[0])}. If the parts are rows, add each by itself, to a ShardWriter with ragged=[{name!r}]"
    )


def _first_other(rows: Any) -> int | None:
    """Return the index of the first list or array whose shape differs from that of number 0; None if there is none."""
    if not isinstance(rows, list | tuple) or not rows:
        return None
    shapes = [_shape(row) for row in rows]
    if None in shapes:
        return None
    return next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)


def _shape(row: Any) -> tuple[int, ...] | None:
    if hasattr(row, "shape"):
        return tuple(row.shape)
    return (len(row),) if isinstance(row, list | tuple) else None


def _described(row: Any) -> str:
    shape = _shape(row) or ()
    return f"length {shape[0]}" if len(shape) == 1 else f"shape {shape}"
