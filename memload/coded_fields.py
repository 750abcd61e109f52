"""Compressed fields in shards: the encoded blocks of rows as one tensor of bytes, and where each begins as another.

    | by size of their elements: plain fields, and NAME.offsets: int64 (blocks + 1,) | NAME: uint8 (bytes,) | ... |

Block k holds rows [k * codec.rows, (k + 1) * codec.rows) of the shard, the last one what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from memload._core import Storage, TileGrid
from memload.errors import ShardFormatError
from memload.safetensors_header import TensorEntry
from memload.shard_index import FieldSpec

Form = tuple[torch.dtype, tuple[int, ...]]


def offsets_name(name: str) -> str:
    """Return the name of the tensor with the offsets of a compressed field."""
    return f"{name}.offsets"


def check_names(fields: Mapping[str, FieldSpec]) -> None:
    """Raise ValueError if a field has the name that another one's offsets have."""
    for name, field in fields.items():
        if field.codec is not None and offsets_name(name) in fields:
            raise ValueError(
                f"field {offsets_name(name)!r}: the offsets of the compressed field {name!r} need this name"
            )


def fixed_tensors(fields: Mapping[str, FieldSpec], rows: int) -> dict[str, Form]:
    """Return the tensors whose size the number of rows fixes, in the order in which they lie in a shard."""
    forms: dict[str, Form] = {}
    for name, field in fields.items():
        if field.codec is None:
            forms[name] = (field.dtype, (rows, *field.shape))
        else:
            forms[offsets_name(name)] = (torch.int64, (-(-rows // (field.codec.rows or 1)) + 1,))
    return dict(sorted(forms.items(), key=lambda item: -item[1][0].itemsize))


def read_offsets(path: Path, name: str, tensors: Mapping[str, TensorEntry]) -> NDArray[np.int64]:
    """Return where the blocks of a compressed field begin, and where the last one ends, in its tensor.

    Raises:
        ShardFormatError: they do not ascend from 0 to its end.
    """
    entry, data = tensors[offsets_name(name)], tensors[name]
    with path.open("rb") as file:
        file.seek(entry.begin)
        offsets = np.frombuffer(file.read(entry.end - entry.begin), dtype="<i8").astype(np.int64)
    if len(offsets) != entry.shape[0] or offsets[0] != 0 or offsets[-1] != data.end - data.begin:
        raise ShardFormatError(
            f"{path}: field {name!r}: its blocks must lie from byte 0 to {data.end - data.begin}, but the offsets "
            f"go from {offsets[:1]} to {offsets[-1:]}: the file is damaged; restore it, or write the set again"
        )
    back = np.flatnonzero(np.diff(offsets) < 0)
    if len(back):
        raise ShardFormatError(
            f"{path}: field {name!r}: block {back[0]} ends before it begins: the file is damaged; restore it, or write "
            "the set again"
        )
    return offsets


def grid_of(
    storage: Storage, path: Path, name: str, field: FieldSpec, rows: int, tensors: Mapping[str, TensorEntry]
) -> TileGrid:
    """Return the rows of a compressed field in one shard.

    Raises:
        ShardFormatError: its blocks do not lie where they should.
    """
    assert field.codec is not None
    offsets = read_offsets(path, name, tensors)
    table = np.zeros((len(offsets) - 1, 4), dtype=np.int64)  # storage, offset, bytes, filters left out
    table[:, 1] = tensors[name].begin + offsets[:-1]
    table[:, 2] = np.diff(offsets)
    elements = math.prod(field.shape)
    try:
        return TileGrid(
            rows,
            field.dtype.itemsize,
            [elements],
            [field.codec.rows or 1, elements],
            [storage],
            table,
            field.codec.chain(field.dtype.itemsize),
            cut=True,
        )
    except ValueError as error:
        raise ShardFormatError(f"{path}: field {name!r}: {error}") from error
