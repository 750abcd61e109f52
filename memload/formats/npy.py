"""Read a .npy file as one field: the header is parsed, and the rows are mapped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from memload._core import Column, Storage
from memload.columns.fields import Field, check_size
from memload.dtypes import from_numpy_dtype
from memload.errors import FormatError
from memload.sizes import counted


@dataclass(frozen=True)
class NpyArray:
    """An array in .npy format inside a file; `rows` is None for a single number."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def rows(self) -> int | None:
        """The length of the first axis."""
        return self.shape[0] if self.shape else None

    def field(self, storage: Storage) -> Field:
        """Return the field over the mapped file; the array must have a first axis."""
        rows, *row_shape = self.shape
        row_bytes = math.prod(row_shape) * self.dtype.itemsize
        return Field(self.dtype, tuple(row_shape), Column(row_bytes, [(storage, self.offset, rows, row_bytes)]))


def open_npy(path: Path, name: str) -> dict[str, Field]:
    """Return the array in `path` as one field `name`; its first axis counts the rows.

    Raises:
        FormatError: the header is malformed, the array is in Fortran order or has no axis, torch has no such dtype, or
            the length of the file does not fit.
    """
    with path.open("rb") as file:
        array = read_npy(str(path), file, path.stat().st_size)
    if array.rows is None:
        raise FormatError(f"{path}: a single number; expected an array whose first axis counts the rows")
    return {name: array.field(Storage.map_file(str(path.absolute())))}


def read_npy(what: str, file: BinaryIO, end: int) -> NpyArray:
    """Return the array whose header starts at the position of `file`, and whose bytes end at `end`.

    Raises:
        FormatError: the header is malformed, the array is in Fortran order, torch has no such dtype, or its bytes do
            not fit; the message begins with `what`.
    """
    begin = file.tell()
    shape, fortran, dtype = _read_header(what, file)
    offset = file.tell()
    try:
        torch_dtype = from_numpy_dtype(dtype)
    except TypeError as error:
        raise FormatError(f"{what}: {error}{_WRITTEN if not dtype.isnative and dtype.kind in 'iuf' else ''}") from None
    if fortran and len(shape) > 1:
        raise FormatError(
            f"{what}: saved in Fortran order, so a row is not one run of bytes; "
            f"save it again with numpy.save(path, numpy.ascontiguousarray(array)){_WRITTEN}"
        )
    rows, *row_shape = shape or (1,)
    try:
        check_size(torch_dtype, row_shape, rows)
    except ValueError as error:
        raise FormatError(f"{what}: {error}") from None
    _check_length(what, offset - begin, rows, math.prod(row_shape) * dtype.itemsize, end - begin)
    return NpyArray(torch_dtype, shape, offset)


_WRITTEN = "; or convert it, a part at a time: memload.write(DIRECTORY, {NAME: numpy.load(PATH, mmap_mode='r')})"


def _read_header(what: str, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    header: Any = np.lib.format  # untyped before numpy 2.2
    try:
        version = header.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = header.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = header.read_array_header_2_0(file)
        else:
            raise FormatError(f"{what}: .npy format version {version}; versions 1.0 and 2.0 can hold plain arrays")
    except FormatError:
        raise
    except Exception as error:  # numpy evaluates the header as Python text: what that raises depends on the garbage
        raise FormatError(
            f"{what}: not a .npy file with a valid header ({error}): get it again, or save it anew"
        ) from error
    if not all(type(side) is int and 0 <= side < 2**63 for side in shape):
        raise FormatError(f"{what}: the header states the shape {shape}")
    return shape, fortran, dtype


def _check_length(what: str, header: int, rows: int, row_bytes: int, found: int) -> None:
    expected = header + rows * row_bytes
    if found != expected:
        kind = "cut short" if found < expected else "longer than its header says (several arrays in one file?)"
        raise FormatError(
            f"{what}: {kind}: {counted(rows, 'row')} of {row_bytes} bytes after a header of {header} make {expected} "
            "bytes, "
            f"but the file has {found}: get it again, or save it anew"
        )
