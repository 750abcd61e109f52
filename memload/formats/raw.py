"""Read a file of bare rows, one after the other; the caller states their dtype and shape."""

from __future__ import annotations

from pathlib import Path

import torch

from memload._core import Column, Storage
from memload.columns.fields import Field, check_size, describe, row_nbytes
from memload.errors import FormatError
from memload.sizes import counted


def open_raw(path: Path, name: str, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> dict[str, Field]:
    """Return the rows after the first `offset` bytes of `path` as one field `name`.

    Raises:
        FormatError: the bytes after `offset` are not a whole number of rows.
        ValueError: a row has no bytes, or 2^63 or more.
    """
    check_size(dtype, shape)
    row_bytes = row_nbytes(dtype, shape)
    if row_bytes == 0:
        raise ValueError(f"a row of {describe(dtype, shape)} has no bytes, so the rows of {path} cannot be counted")
    size = path.stat().st_size
    if offset > size:
        raise FormatError(f"{path}: the file has {size} bytes, so nothing begins at offset {offset}")
    rows, rest = divmod(size - offset, row_bytes)
    if rest:
        header = f", of which {size - offset} from offset {offset} on" if offset else ""
        raise FormatError(
            f"{path}: the file has {size} bytes{header}, which are {counted(rows, 'row')} of {describe(dtype, shape)}, "
            f"{counted(row_bytes, 'byte')} each, and a remainder of {counted(rest, 'byte')}; check dtype=, "
            "shape= (of one row) and offset="
        )
    storage = Storage.map_file(str(path.absolute()))
    return {name: Field(dtype, shape, Column(row_bytes, [(storage, offset, rows, row_bytes)]))}
