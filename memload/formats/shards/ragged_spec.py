"""The entry of a ragged field in an index, and the tensors of a shard that make it up.

NAME           the items of all rows of the shard: (items, *item), or (n, items, *item) where they are joined along
               their second axis; compressed, its encoded blocks: uint8 (bytes,)
NAME.offsets   int64 (rows + 1,), from 0 to items: row r is the items from offsets[r] to offsets[r + 1]
NAME.blocks    only compressed, int64 (blocks + 1,): block b is the bytes from blocks[b] to blocks[b + 1]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from memload.columns.fields import row_nbytes
from memload.dtypes import code_of
from memload.errors import ShardFormatError
from memload.formats.codecs.codec import Codec, parse_codec_entry
from memload.formats.shards.safetensors_header import check_counts, is_count, parse_dtype

CHECK_BLOCK = 2**22  # bytes under one checksum, or one item where an item is larger
OFFSETS_BLOCK = CHECK_BLOCK // 8  # offsets under one checksum


@dataclass(frozen=True)
class RaggedSpec:
    """A field whose rows differ in length.

    Attributes:
        dtype: the dtype of the elements.
        shape: the shape of a row, with None where rows differ.
        block_rows: the number of items under one checksum, which covers whole blocks of the codec.
        text: whether rows are texts in UTF-8.
        codec: the codec with all defaults resolved, whose rows are items; None: items are stored plainly.
    """

    dtype: torch.dtype
    shape: tuple[Any, ...]
    block_rows: int
    text: bool = False
    codec: Codec | None = None

    @classmethod
    def of_rows(
        cls, dtype: torch.dtype, shape: tuple[Any, ...], text: bool = False, codec: Codec | None = None
    ) -> RaggedSpec:
        """Return the field with as many items under a checksum as fit into 4 MiB, but at least one item or block.

        Items without bytes are not compressed.
        """
        item_shape = shape[shape.index(None) + 1 :]
        item = row_nbytes(dtype, item_shape)
        codec = codec.of(dtype, item_shape) if codec and item else None
        unit = codec.rows or 1 if codec else 1
        return cls(dtype, shape, max(1, CHECK_BLOCK // max(1, item) // unit) * unit, text, codec)

    def coded(self, codec: Codec | None) -> RaggedSpec:
        """Return the same field with this codec, or without one."""
        return self.of_rows(self.dtype, self.shape, self.text, codec)

    @property
    def axis(self) -> int:
        """The axis along which rows differ and are joined."""
        return self.shape.index(None)

    @property
    def planes(self) -> int:
        """The number of runs of items that a row has."""
        return math.prod(self.shape[: self.axis])

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        return self.shape[self.axis + 1 :]

    @property
    def item_bytes(self) -> int:
        """The bytes of one item."""
        return row_nbytes(self.dtype, self.item_shape)

    @property
    def row_bytes(self) -> int:
        """The least bytes of a row: those of its offset."""
        return 8

    @property
    def signature(self) -> tuple[Any, ...]:
        """The properties that all rows of the field share, for comparison."""
        return self.dtype, self.shape, self.text

    def tensors(self, name: str, rows: int, items: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of each tensor of this field in a shard with so many rows and items.

        The tensor of encoded blocks is left out, because its size is unknown.
        """
        offsets = {offsets_name(name): (torch.int64, (rows + 1,))}
        if self.codec is not None:
            blocks = self.planes * -(-items // (self.codec.rows or 1))
            return {**offsets, blocks_name(name): (torch.int64, (blocks + 1,))}
        return {name: (self.dtype, (*self.shape[: self.axis], items, *self.item_shape)), **offsets}

    def blocks(self, name: str, rows: int, items: int) -> dict[str, int]:
        """Return the number of checksums of each tensor; each plane begins a new one."""
        return {
            name: self.planes * -(-items // self.block_rows),
            offsets_name(name): -(-(rows + 1) // OFFSETS_BLOCK),
        }

    def entry(self) -> dict[str, Any]:
        """Return the entry of the field in index.json."""
        stated = {"dtype": code_of(self.dtype), "shape": list(self.shape), "block_rows": self.block_rows}
        stated |= {"text": True} if self.text else {}
        return stated if self.codec is None else {**stated, "codec": asdict(self.codec)}


def offsets_name(name: str) -> str:
    """Return the name of the tensor with the offsets of a field."""
    return f"{name}.offsets"


def blocks_name(name: str) -> str:
    """Return the name of the tensor with the offsets of the encoded blocks of a ragged field."""
    return f"{name}.blocks"


def is_ragged_shape(shape: object) -> bool:
    """Return whether the shape in an index is that of a ragged field."""
    return isinstance(shape, list) and None in shape


def parse_ragged(entry: Mapping[str, Any], block_rows: int, where: str) -> RaggedSpec:
    """Return the field of an entry in an index. Raises ShardFormatError, naming `where`."""
    dtype, shape, text = parse_dtype(entry.get("dtype"), where), entry["shape"], entry.get("text", False)
    sides = [side for side in shape if side is not None]
    if len(sides) != len(shape) - 1 or shape.index(None) > 1 or not all(map(is_count, sides)):
        raise ShardFormatError(f"{where}: shape must be [null, ...] or [n, null, ...] with counts, got {shape!r:.80}")
    check_counts(dtype, tuple(sides), 1, where)
    if 0 in sides:
        raise ShardFormatError(f"{where}: rows of the shape {shape!r:.80} have no items")
    if not isinstance(text, bool) or (text and (dtype != torch.uint8 or shape != [None])):
        raise ShardFormatError(
            f"{where}: text must be true or false, and needs uint8 [null]; got {text!r:.80}, {shape!r:.80}"
        )
    spec = RaggedSpec(dtype, tuple(shape), block_rows, text)
    if "codec" in entry:
        return replace(spec, codec=parse_codec_entry(where, entry["codec"], spec.item_bytes, block_rows))
    return spec


def parse_items(stated: object, names: list[str], where: str) -> dict[str, int]:
    """Return the number of items of each of these fields in a shard. Raises ShardFormatError, naming `where`."""
    items = stated if isinstance(stated, dict) else {}
    if set(items) != set(names) or not all(map(is_count, items.values())):
        raise ShardFormatError(f"{where}: items must be an object with a count for each of {names}, got {stated!r:.80}")
    return items
