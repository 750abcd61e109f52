"""Open a directory of shards as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from memload._core import Column, Storage, Tiles
from memload.columns.fields import Field, describe, digest_of
from memload.errors import ShardFormatError
from memload.formats.codecs.fields import grids_of
from memload.formats.shards.index import (
    AnySpec,
    ShardIndex,
    ShardRecord,
    read_index,
    tensors_of,
)
from memload.formats.shards.ragged_shards import MappedShard, open_ragged
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.safetensors_header import ShardLayout, read_layout


def open_shards(directory: Path) -> dict[str, Field]:
    """Return the fields of a directory of shards, mapped; the length and header of each shard are checked.

    Raises:
        ShardFormatError: the index, a shard's name, length or header is wrong.
    """
    return opened_shards(directory, read_index(directory))


def opened_shards(directory: Path, index: ShardIndex) -> dict[str, Field]:
    """Return the fields of the shards in an index; otherwise as `open_shards`."""
    mapped: list[MappedShard] = []
    for shard in index.shards:
        layout = check_shard(directory, shard, index.fields)
        mapped.append(MappedShard(Storage.map_file(str(directory.absolute() / shard.file)), layout, shard))
    return fields_on(index, mapped)


def fields_on(index: ShardIndex, shards: Sequence[MappedShard]) -> dict[str, Field]:
    """Return the fields of an index over its shards.

    Raises:
        ShardFormatError: the offsets of a field are invalid.
    """
    return {name: _open_field(name, field, shards) for name, field in index.fields.items()}


def _open_field(name: str, field: AnySpec, shards: Sequence[MappedShard]) -> Field:
    if isinstance(field, RaggedSpec):
        return open_ragged(name, field, shards)
    digest = digest_of(digits for one in shards for digits in one.record.checksums[name])
    column: Column | Tiles
    if field.codec is None:
        begins = [one.layout.tensors[name].begin for one in shards]
        places = [
            (one.storage, begin, one.record.rows, field.row_bytes) for one, begin in zip(shards, begins, strict=True)
        ]
        column = Column(field.row_bytes, places)
    else:
        column = Tiles(
            [
                grid
                for storage, layout, shard, read in shards
                for grid in grids_of(storage, Path(storage.name), name, field, shard.rows, layout.tensors, read)
            ]
        )
    return Field(field.dtype, field.shape, column, digest=digest)


def check_shard(directory: Path, shard: ShardRecord, fields: Mapping[str, AnySpec]) -> ShardLayout:
    """Return the layout of a shard after comparing it with the index; its data is not read.

    Raises:
        ShardFormatError: the shard is missing or outside the directory, or its length or header differ from the index.
    """
    path = directory / shard.file
    if not path.is_file():
        what = "no file" if path.exists() else "missing"
        raise ShardFormatError(f"{path}: this shard is {what}; restore it, or write the set again")
    if path.resolve().parent != directory.resolve():
        raise ShardFormatError(f"{path}: a link to {path.resolve()}, outside the directory; shards must lie inside it")
    found = path.stat().st_size
    if found != shard.nbytes:
        raise ShardFormatError(
            f"{path}: the index says {shard.nbytes} bytes, but the file has {found}; it was cut short, lengthened "
            "or replaced: restore it, or write the set again"
        )
    layout = read_layout(path)
    check_tensors(path, layout, shard, fields)
    return layout


def check_tensors(path: object, layout: ShardLayout, shard: ShardRecord, fields: Mapping[str, AnySpec]) -> None:
    """Raise ShardFormatError unless the tensors of a shard are those of the index; `path` is for the message."""
    coded = {name for name, field in fields.items() if field.codec is not None}
    expected = tensors_of(fields, shard.rows, shard.items)
    if set(layout.tensors) != {*expected, *coded}:
        raise ShardFormatError(
            f"{path}: the index has the tensors {sorted({*expected, *coded})}, the header {sorted(layout.tensors)}"
        )
    for name, entry in layout.tensors.items():
        dtype, shape = expected.get(name, (torch.uint8, entry.shape[:1]))  # blocks have as many bytes as they have
        if entry.dtype != dtype or entry.shape != shape or (name in coded and not shape):
            raise ShardFormatError(
                f"{path}: field {name!r} should be {describe(dtype, shape)} by the index, "
                f"but is {describe(entry.dtype, entry.shape)} by the header"
            )
