"""A .npy file as one field: the header is read, the rows are mapped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from memload._core import Column, Storage
from memload.dtypes import from_numpy_dtype
from memload.errors import FormatError
from memload.fields import Field, check_size

MAGIC = b"\x93NUMPY"


def open_npy(path: Path, name: str) -> dict[str, Field]:
    """Return the array in `path` as the one field `name`; its first axis counts the rows.

    Raises:
        FormatError: the header is malformed, the array is in Fortran order or without an axis, its dtype has no equal
            in torch, or the file's length does not fit.
    """
    with path.open("rb") as file:
        shape, fortran, dtype = _read_header(path, file)
        offset = file.tell()
    try:
        torch_dtype = from_numpy_dtype(dtype)
    except TypeError as error:
        raise FormatError(f"{path}: {error}") from None
    if not shape:
        raise FormatError(f"{path}: a single number; expected an array whose first axis counts the rows")
    if fortran and len(shape) > 1:
        raise FormatError(
            f"{path}: saved in Fortran order, so a row is not one run of bytes; "
            "save it again with numpy.save(path, numpy.ascontiguousarray(array))"
        )
    rows, *row_shape = shape
    try:
        check_size(torch_dtype, row_shape, rows)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    row_bytes = math.prod(row_shape) * dtype.itemsize
    _check_length(path, offset, rows, row_bytes)
    storage = Storage.map_file(str(path.absolute()))
    return {name: Field(torch_dtype, tuple(row_shape), Column(row_bytes, [(storage, offset, rows, row_bytes)]))}


def _read_header(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    header: Any = np.lib.format  # untyped before numpy 2.2
    try:
        version = header.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = header.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = header.read_array_header_2_0(file)
        else:
            raise FormatError(f"{path}: .npy format version {version}; versions 1.0 and 2.0 can hold plain arrays")
    except FormatError:
        raise
    except Exception as error:  # numpy evaluates the header as Python text: what that raises depends on the garbage
        raise FormatError(f"{path}: not a .npy file with a sound header ({error})") from error
    if not all(type(side) is int and 0 <= side < 2**63 for side in shape):
        raise FormatError(f"{path}: the header states the shape {shape}")
    return shape, fortran, dtype


def _check_length(path: Path, offset: int, rows: int, row_bytes: int) -> None:
    expected = offset + rows * row_bytes
    found = path.stat().st_size
    if found != expected:
        kind = "cut short" if found < expected else "longer than its header says (several arrays in one file?)"
        raise FormatError(
            f"{path}: {kind}: {rows} rows of {row_bytes} bytes after a header of {offset} make {expected} bytes, "
            f"but the file has {found}"
        )
