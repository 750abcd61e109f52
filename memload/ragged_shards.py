"""Fields whose rows differ in length, in a directory of shards: opened as a column, and verified."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np

from memload import _core
from memload.errors import ShardFormatError
from memload.fields import digest_of
from memload.ragged_fields import RaggedField
from memload.ragged_spec import OFFSETS_BLOCK, RaggedSpec, offsets_name
from memload.safetensors_header import ShardLayout
from memload.shard_index import ShardRecord

MappedShard = tuple[_core.Storage, ShardLayout, ShardRecord]


def open_ragged(name: str, field: RaggedSpec, shards: Sequence[MappedShard]) -> RaggedField:
    """Return the field; the offsets are read and checked.

    Raises:
        ShardFormatError: offsets fall, or lie outside the items.
        ShardReadError: a shard cannot be read.
    """
    offsets = offsets_name(name)
    segments = []
    for storage, layout, shard in shards:
        begins, items = (layout.tensors[offsets].begin, layout.tensors[name].begin), shard.items[name]
        segments.append((storage, begins[0], storage, begins[1], shard.rows, items, items * field.item_bytes))
    try:
        column = _core.Ragged(field.item_bytes, field.planes, segments)
    except ValueError as error:
        raise ShardFormatError(f"field {name!r}: {error}; restore the file, or write the set again") from None
    digest = digest_of(digits for *_, shard in shards for key in (name, offsets) for digits in shard.checksums[key])
    return RaggedField(field.dtype, field.shape, column, digest=digest, text=field.text)


def checked_blocks(name: str, field: RaggedSpec, shard: ShardRecord) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield each tensor of a field with the bytes and the checksum of its blocks, in the order of the file."""
    items = shard.items[name]
    sizes = {
        name: _sizes(items, field.block_rows, field.item_bytes) * field.planes,
        offsets_name(name): _sizes(shard.rows + 1, OFFSETS_BLOCK, 8),
    }
    for tensor, nbytes in sizes.items():
        yield tensor, list(zip(nbytes, shard.checksums[tensor], strict=True))


def rows_of_blocks(
    file: io.FileIO, tensor: str, field: RaggedSpec, shard: ShardRecord, layout: ShardLayout, bad: Sequence[int]
) -> range:
    """Return the rows of a shard that blocks of a tensor touch, from the first to the last of them."""
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
