"""Use arrays and tensors in memory as fields, without a copy; a memmap is read as its file."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from memload._core import Column, Storage
from memload.columns.fields import Field, MemoryOwner, check_name, check_size
from memload.dtypes import code_of, from_numpy_dtype
from memload.formats.memory_maps import mapped_file


def borrow_array(name: str, array: Any) -> Field:
    """Return a field over a numpy array, a memmap or a CPU tensor, which the field keeps alive.

    Raises:
        TypeError: the value is of another type, or torch has no such dtype.
        ValueError: there is no axis, a row is not one run of bytes, or there are too many rows or bytes.
    """
    check_name(name)
    if isinstance(array, torch.Tensor):
        return _borrow_tensor(name, array)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"field {name!r}: a masked array, whose mask would be lost; pass array.filled(value), and, where it is "
            "wanted, numpy.ma.getmaskarray(array) as a field of its own"
        )
    if isinstance(array, np.ndarray):
        return _borrow_ndarray(name, array)
    raise TypeError(
        f"field {name!r}: expected a numpy array or a CPU tensor, got {type(array).__name__}{_instead(array)}"
    )


def _instead(array: Any) -> str:
    """Return what to do with another library's array, for messages."""
    library = type(array).__module__.partition(".")[0]
    if library in ("h5py", "zarr"):
        return f" of {library}; memload.open(path, key=...) reads it where it is stored"
    if isinstance(array, os.PathLike | str):
        return "; memload.open(path) opens files"
    return "; give numpy.asarray(it)" if hasattr(array, "__array__") else ""


def _borrow_ndarray(name: str, array: np.ndarray[Any, Any]) -> Field:
    try:
        dtype = from_numpy_dtype(array.dtype)
    except TypeError as error:
        raise TypeError(f"field {name!r}: {error}") from None
    _check_axes(name, array.shape)
    stride = array.strides[0] if len(array) > 1 else 0
    if stride < 0 or not array[:1].flags.c_contiguous:
        raise ValueError(_scattered(name, "numpy.ascontiguousarray(array)"))
    root = _root(array)
    allocated = isinstance(root, np.ndarray) and root.flags.owndata
    borrowed = _Borrowed(array, array.ctypes.data, allocated)
    field = _borrow(name, borrowed, dtype, array.shape, stride)
    return _watched(name, field, root) if isinstance(root, torch.Tensor) else field


def _borrow_tensor(name: str, tensor: torch.Tensor) -> Field:
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        jagged = tensor.layout == torch.jagged
        instead = "memload.ragged(tensor.values(), tensor.offsets())" if jagged else "tensor.to_dense().cpu()"
        raise TypeError(
            f"field {name!r}: expected a dense tensor on the CPU, got {tensor.layout} on {tensor.device}; "
            f"pass {instead}"
        )
    try:
        code_of(tensor.dtype)
    except TypeError as error:
        raise TypeError(f"field {name!r}: {error}") from None
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"field {name!r}: a lazily conjugated tensor, whose bytes do not show its values; "
            "pass tensor.resolve_conj().resolve_neg()"
        )
    _check_axes(name, tensor.shape)
    _check_memory(name, tensor)
    if not tensor[:1].is_contiguous():
        raise ValueError(_scattered(name, "tensor.contiguous(), or numpy.ascontiguousarray(array) for an array"))
    stride = tensor.stride(0) * tensor.itemsize if len(tensor) > 1 else 0
    allocated = tensor.untyped_storage().resizable()  # torch can resize only memory that it allocated
    borrowed = _Borrowed(_hold(tensor), tensor.data_ptr(), allocated)
    field = _borrow(name, borrowed, tensor.dtype, tuple(tensor.shape), stride)
    return _watched(name, field, tensor)


def _watched(name: str, field: Field, tensor: torch.Tensor) -> Field:
    """Return the field with a check that its tensor was not moved; a field over a file needs none."""
    mapped = any(storage.mapped for storage in field.column.storages)
    return replace(field, owners=(MemoryOwner(name, tensor, None if mapped else tensor.data_ptr()),))


def _root(array: np.ndarray[Any, Any]) -> object:
    """Return the owner of the array's memory: an array, or the tensor of a `numpy()` call."""
    root: object = array
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base
    return root


def _hold(tensor: torch.Tensor) -> object:
    """Return an owner of the tensor's memory that makes torch refuse to resize it; a resize would move it."""
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.detach().untyped_storage())
    return whole.numpy()


def _check_memory(name: str, tensor: torch.Tensor) -> None:
    before, axes = tensor.storage_offset(), zip(tensor.shape, tensor.stride(), strict=True)
    needed = (before + sum((size - 1) * stride for size, stride in axes) + 1) * tensor.itemsize
    there = tensor.untyped_storage().nbytes() if tensor.data_ptr() > before * tensor.itemsize else 0
    if tensor.numel() and there < needed:
        raise ValueError(
            f"field {name!r}: the tensor's memory has {there:,} bytes, but its shape needs {needed:,}: it was freed or "
            "cut, or is a placeholder of zeros; pass a tensor with its values in memory"
        )


def _check_axes(name: str, shape: tuple[int, ...]) -> None:
    if not shape:
        raise ValueError(f"field {name!r}: a single number; expected an array whose first axis counts the rows")


def _scattered(name: str, remedy: str) -> str:
    return f"field {name!r}: a row is not one contiguous run of bytes; pass {remedy}, which copies"


class _Borrowed(NamedTuple):
    """Memory of the user: its owner, its address, and whether it was allocated and so belongs to no file."""

    owner: object
    address: int
    allocated: bool


def _borrow(name: str, borrowed: _Borrowed, dtype: torch.dtype, shape: tuple[int, ...], stride: int) -> Field:
    rows, *row_shape = shape
    try:
        check_size(dtype, row_shape, rows)
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from None
    row_bytes = math.prod(row_shape) * dtype.itemsize
    stride = stride if row_bytes else 0  # the stride of rows without bytes may point beyond the memory
    span = (rows - 1) * stride + row_bytes if rows else 0
    storage, offset = _storage(name, borrowed, span)
    return Field(dtype, tuple(row_shape), Column(row_bytes, [(storage, offset, rows, stride)]))


def _storage(name: str, borrowed: _Borrowed, nbytes: int) -> tuple[Storage, int]:
    file = mapped_file(borrowed.address, nbytes) if nbytes and not borrowed.allocated else None
    if file is None:
        return Storage.borrow(borrowed.owner, borrowed.address, nbytes, f"the array of field {name!r}"), 0
    path, offset = file
    return Storage.map_file(path), offset
