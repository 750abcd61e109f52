"""Open and verify ragged fields in a directory of shards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memload import _core
from memload.columns.fields import digest_of
from memload.columns.ragged_fields import RaggedField
from memload.errors import ShardFormatError
from memload.formats.codecs.fields import Reads, grids_of
from memload.formats.shards.index import ShardRecord
from memload.formats.shards.ragged_spec import OFFSETS_BLOCK, RaggedSpec, offsets_name
from memload.formats.shards.safetensors_header import ShardLayout, TensorEntry


class MappedShard(NamedTuple):
    """A shard whose rows can be read.

    Attributes:
        storage: its mapped file.
        layout: its tensors.
        record: its entry in the index.
        read: returns bytes [begin, end) of offsets of the shard; None: they are read from its file.
    """

    storage: _core.Storage
    layout: ShardLayout
    record: ShardRecord
    read: Reads | None = None


def open_ragged(name: str, field: RaggedSpec, shards: Sequence[MappedShard]) -> RaggedField:
    """Return the field; its offsets are read and checked.

    Raises:
        ShardFormatError: offsets decrease, or are outside of the items.
        ShardReadError: a shard cannot be read.
    """
    offsets = offsets_name(name)
    segments: list[Any] = []
    for storage, layout, shard, read in shards:
        items = shard.items[name]
        place = _place_of(storage, layout.tensors[offsets], read)
        if field.codec is None:
            segments.append((*place, storage, layout.tensors[name].begin, shard.rows, items, items * field.item_bytes))
        else:
            grids = grids_of(storage, Path(storage.name), name, field, items, layout.tensors, read)
            segments.append((*place, grids, 0, shard.rows, items, 0))
    try:
        column = _core.Ragged(field.item_bytes, field.planes, segments)
    except ValueError as error:
        raise ShardFormatError(f"field {name!r}: {error}; restore the file, or write the set again") from None
    digest = digest_of(digits for one in shards for key in (name, offsets) for digits in one.record.checksums[key])
    return RaggedField(field.dtype, field.shape, column, digest=digest, text=field.text)


def _place_of(storage: _core.Storage, entry: TensorEntry, read: Reads | None) -> tuple[_core.Storage, int]:
    """Return where the offsets of rows lie: in the shard, or in RAM where the shard's bytes come and go."""
    if read is None:
        return storage, entry.begin
    data = np.frombuffer(read(entry.begin, entry.end), dtype=np.uint8)
    return _core.Storage.borrow(data, data.ctypes.data, data.nbytes, storage.name), 0


def checked_blocks(name: str, field: RaggedSpec, shard: ShardRecord) -> dict[str, list[int]]:
    """Yield each tensor of a field that has checksums, with the bytes of its blocks before compression."""
    items = shard.items[name]
    return {
        name: _sizes(items, field.block_rows, field.item_bytes) * field.planes,
        offsets_name(name): _sizes(shard.rows + 1, OFFSETS_BLOCK, 8),
    }


def rows_of_blocks(
    file: io.FileIO, tensor: str, field: RaggedSpec, shard: ShardRecord, layout: ShardLayout, bad: Sequence[int]
) -> range:
    """Return the first and last row of a shard that a run of blocks of a tensor touches."""
    if tensor not in shard.items:
        return range(bad[0] * OFFSETS_BLOCK, min((bad[-1] + 1) * OFFSETS_BLOCK, shard.rows))
    per_plane = -(-shard.items[tensor] // field.block_rows)
    numbers = [number % per_plane for number in bad]
    file.seek(layout.tensors[offsets_name(tensor)].begin)
    offsets = np.frombuffer(file.read((shard.rows + 1) * 8), dtype=np.int64)
    first, last = min(numbers) * field.block_rows, (max(numbers) + 1) * field.block_rows
    start = int(np.searchsorted(offsets, first, side="right")) - 1
    return range(max(0, start), min(shard.rows, int(np.searchsorted(offsets, last))))


def _sizes(count: int, block: int, size: int) -> list[int]:
    return [min(block, count - start) * size for start in range(0, count, block)]
