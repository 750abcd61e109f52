"""Rows on their way to a file: whatever the caller has, as bytes with a dtype and the shape of one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.dtypes import code_of, from_numpy_dtype
from memload.fields import check_name, check_size, row_nbytes
from memload.rows.unequal import no_array, no_row


@dataclass(frozen=True)
class Rows:
    """Some rows of one field: `data` is uint8 (rows, row_bytes), contiguous, and may be the caller's own memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.data.nbytes

    @property
    def signature(self) -> tuple[Any, ...]:
        """What rows of one field have in common."""
        return self.dtype, self.shape

    def cut(self, start: int, stop: int) -> Rows:
        """Return some of the rows, without copying them."""
        return Rows(self.dtype, self.shape, self.data[start:stop])


def as_rows(name: str, batch: Any) -> Rows:
    """Return a batch as rows of bytes, copying only what is not contiguous, in this machine's byte order, on the CPU.

    Args:
        name: of the field, for messages.
        batch: (rows, *shape): a tensor on any device, a numpy array, or what torch.as_tensor takes.

    Raises:
        TypeError: the dtype cannot be stored.
        ValueError: the name cannot be stored, the batch has no axis, or its size cannot be counted.
    """
    check_name(name)
    try:
        batch = _numbers(batch)
    except (TypeError, ValueError, RuntimeError) as error:
        raise no_array(name, batch, error) from error
    try:
        dtype, flat = _tensor_bytes(batch) if isinstance(batch, torch.Tensor) else _array_bytes(np.asarray(batch))
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


def as_row(name: str, row: Any) -> Rows:
    """Return one row, of any shape, as a batch of one; otherwise as `as_rows`."""
    try:
        values = _numbers(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise no_row(name, row, error) from error
    return as_rows(name, values[None])


def _numbers(given: Any) -> Any:
    if isinstance(given, (torch.Tensor, np.ndarray, np.generic)):
        return given
    return torch.as_tensor(given, device="cpu")


def _tensor_bytes(tensor: torch.Tensor) -> tuple[torch.dtype, NDArray[np.uint8]]:
    code_of(tensor.dtype)
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    dense = dense.cpu().resolve_conj().resolve_neg().contiguous()
    return tensor.dtype, dense.reshape(-1).view(torch.uint8).numpy()


def _array_bytes(array: np.ndarray[Any, Any]) -> tuple[torch.dtype, NDArray[np.uint8]]:
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    dtype = from_numpy_dtype(array.dtype)
    return dtype, np.ascontiguousarray(array).reshape(-1).view(np.uint8)
