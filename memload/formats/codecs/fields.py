"""Compressed fields in shards: their encoded blocks as one tensor of bytes, and where each begins as another.

    | by size of their elements: plain fields, offsets, blocks: int64 (blocks + 1,) | NAME: uint8 (bytes,) | ... |

Block k holds rows [k * codec.rows, (k + 1) * codec.rows) of the shard, the last one what is left. Of fields whose rows
differ in length it holds items, and blocks begin anew with each run of items that a row has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memload._core import Storage, TileGrid
from memload.errors import ShardFormatError
from memload.formats.shards.index import AnySpec
from memload.formats.shards.ragged_spec import RaggedSpec, blocks_name, offsets_name
from memload.formats.shards.safetensors_header import TensorEntry

Reads = Callable[[int, int], bytes]


def starts_name(name: str, field: AnySpec) -> str:
    """Return the name of the tensor with the offsets of a compressed field's blocks."""
    return blocks_name(name) if isinstance(field, RaggedSpec) else offsets_name(name)


def read_starts(
    path: Path, name: str, field: AnySpec, tensors: Mapping[str, TensorEntry], read: Reads | None = None
) -> NDArray[np.int64]:
    """Return the offsets of the blocks of a compressed field in its tensor, and the end of the last block.

    Args:
        path: the path of the shard.
        name: the name of the field.
        field: the field in the index.
        tensors: the tensors of the shard.
        read: returns bytes [begin, end) of the shard; None: they are read from its file.

    Raises:
        ShardFormatError: the offsets do not ascend from 0 to the end of the tensor.
    """
    entry, data = tensors[starts_name(name, field)], tensors[name]
    raw = _read(path, entry.begin, entry.end) if read is None else read(entry.begin, entry.end)
    starts = np.frombuffer(raw, dtype="<i8").astype(np.int64)
    if len(starts) != entry.shape[0] or starts[0] != 0 or starts[-1] != data.end - data.begin:
        raise ShardFormatError(
            f"{path}: field {name!r}: its blocks must lie from byte 0 to {data.end - data.begin}, but the offsets "
            f"go from {starts[:1]} to {starts[-1:]}: the file is damaged; restore it, or write the set again"
        )
    back = np.flatnonzero(np.diff(starts) < 0)
    if len(back):
        raise ShardFormatError(
            f"{path}: field {name!r}: block {back[0]} ends before it begins: the file is damaged; restore it, or write "
            "the set again"
        )
    return starts


def _read(path: Path, begin: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def grids_of(
    storage: Storage,
    path: Path,
    name: str,
    field: AnySpec,
    count: int,
    tensors: Mapping[str, TensorEntry],
    read: Reads | None = None,
) -> list[TileGrid]:
    """Return the rows of a compressed field in one shard, or the items of each run of a ragged field.

    Args:
        storage: the shard.
        path: the path of the shard.
        name: the name of the field.
        field: the field in the index.
        count: the number of rows, or of items of a run.
        tensors: the tensors of the shard.
        read: returns bytes [begin, end) of the shard; None: they are read from its file.

    Raises:
        ShardFormatError: the offsets of its blocks are invalid.
    """
    starts = read_starts(path, name, field, tensors, read)
    planes, shape = (field.planes, field.item_shape) if isinstance(field, RaggedSpec) else (1, field.shape)
    per_plane = (len(starts) - 1) // planes
    table = np.zeros((len(starts) - 1, 4), dtype=np.int64)  # storage, offset, bytes, filters left out
    table[:, 1] = tensors[name].begin + starts[:-1]
    table[:, 2] = np.diff(starts)
    try:
        return [
            _grid(storage, field, math.prod(shape), count, table[plane * per_plane : (plane + 1) * per_plane])
            for plane in range(planes)
        ]
    except ValueError as error:
        raise ShardFormatError(f"{path}: field {name!r}: {error}") from error


def _grid(storage: Storage, field: AnySpec, elements: int, count: int, table: NDArray[np.int64]) -> TileGrid:
    codec, size = field.codec, field.dtype.itemsize
    assert codec is not None
    tile = [codec.rows or 1, elements]
    return TileGrid(count, size, [elements], tile, [storage], table, codec.chain(size), cut=True)
