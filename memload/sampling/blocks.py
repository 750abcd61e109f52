"""Blocks of rows that are stored together: runs of equally many rows, or the rows of each chunk of a file."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import xxhash

from memload._core import Column, TileGrid, Tiles
from memload.sampling.draws import Indices

Locate = Callable[[Indices], tuple[Indices, Indices]]


@dataclass(frozen=True)
class Blocks:
    """A partition of the rows of a dataset.

    Attributes:
        sizes: int64 (blocks,), the rows of each block, at least one.
        order: int64 (rows,), the rows of the first block, of the second, and so on; None: they follow one another.
    """

    sizes: Indices
    order: Indices | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        """The rows of all blocks."""
        return int(self.sizes.sum())

    @property
    def places(self) -> Indices:
        """The block of each row, in the order of the blocks: int64 (rows,)."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int64), self.sizes)

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return self.sizes.nbytes + (0 if self.order is None else self.order.nbytes)

    @property
    def digest(self) -> str:
        """A short text that is equal for equal blocks."""
        hasher = xxhash.xxh3_64(self.sizes.tobytes())
        hasher.update(b"" if self.order is None else self.order.tobytes())
        return str(hasher.hexdigest())

    def rows_of(self, blocks: Indices) -> Indices:
        """Return the rows of some blocks, block by block."""
        sizes = self.sizes[blocks]
        begins = (np.cumsum(self.sizes) - self.sizes)[blocks]
        places: Indices = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        return places if self.order is None else self.order[places]


def blocks_of(dataset: Any, block: int | None) -> Blocks:
    """Return the blocks of a dataset: of `block` rows each, or those in which its chunked fields are stored.

    Without chunked fields, rows of a store have the blocks in which the field of the largest rows is fetched. Datasets
    that were joined by name each have their own blocks; those without any have runs as long as others' blocks.

    Raises:
        TypeError: the value is neither a dataset nor a number of rows.
        ValueError: there are no rows, or no chunks and no `block`.
    """
    rows = _length(dataset)
    if rows < 1:
        raise ValueError("the dataset has no rows to shuffle")
    if block is not None:
        whole, rest = divmod(rows, block)
        return Blocks(np.array([block] * whole + ([rest] if rest else []), dtype=np.int64))
    joined = isinstance(getattr(dataset, "members", None), Mapping) and hasattr(dataset, "locate")
    labels = _labels_of_groups(dataset, rows) if joined else _labels(dataset)
    if labels is None:
        raise ValueError(
            "no field of this dataset is stored in chunks or lies in a store, so there are none to take for blocks: "
            "give block=, such as the number of rows that a disk reads in one run (some MB)"
        )
    return _numbered(labels)


def decoded_bytes(column: Any, blocks: Blocks) -> int:
    """Return the most bytes that the decoded chunks of one block have in a column; 0 if they are not encoded."""
    return int(_decoded_by_block(column, blocks.places, blocks.order, len(blocks)).max(initial=0))


def decoded_bytes_of_groups(columns: Sequence[Sequence[Any]], locate: Locate, blocks: Blocks) -> int:
    """Return the most bytes that the decoded chunks of one block have in all columns of datasets joined by name.

    Args:
        columns: those of each dataset.
        locate: maps rows of the joined datasets to the number of their dataset, and to their rows there.
        blocks: of the joined datasets.
    """
    rows = np.arange(blocks.rows, dtype=np.int64) if blocks.order is None else blocks.order
    tags, inner = locate(rows)
    total, places = np.zeros(len(blocks), dtype=np.int64), blocks.places
    for number, own in enumerate(columns):
        encoded = [column for column in own if _is_encoded(column)]
        if encoded and len(here := np.flatnonzero(tags == number)):
            for column in encoded:
                total += _decoded_by_block(column, places[here], inner[here], len(blocks))
    return int(total.max(initial=0))


def _decoded_by_block(column: Any, places: Indices, rows: Indices | None, count: int) -> Indices:
    """Return the bytes that decoded chunks of a column have in each of `count` blocks: int64 (count,).

    Args:
        column: the column.
        places: int64 (n,), the block of each of some rows, in ascending order.
        rows: int64 (n,), these rows; None: all in turn.
        count: how many blocks there are.
    """
    if not _is_encoded(column):
        return np.zeros(count, dtype=np.int64)
    widest = max(_band_bytes(part) for part in column.parts if isinstance(part, TileGrid))
    bands = _bands(column)
    number = int(bands.max()) + 1
    pairs = places * number + (bands if rows is None else bands[rows])
    if (pairs[1:] < pairs[:-1]).any():
        pairs.sort()
    first = np.append(True, pairs[1:] != pairs[:-1])
    return widest * np.bincount(places[first], minlength=count)


def _labels(dataset: Any) -> Indices | None:
    """Return labels that rows of one block have in common: int64 (rows,). None: there are neither chunks nor blocks."""
    columns = [getattr(field, "column", None) for field in getattr(dataset, "fields", {}).values()]
    found = [_bands(column) for column in columns if _is_chunked(column)]
    if not found and (remote := [column for column in columns if _is_remote(column)]):
        found = [_fetched_bands(max(remote, key=lambda column: column.row_bytes))]
    return functools.reduce(_joined, found) if found else None


def _labels_of_groups(dataset: Any, rows: int) -> Indices | None:
    """Return the labels of the rows of datasets that were joined by name, or of a selection of these."""
    members = list(dataset.members.values())
    each = [_labels(member) if len(member) else None for member in members]
    stored = [labels for labels in each if labels is not None]
    if not stored:
        return None
    run = int(np.median(np.concatenate([np.unique(labels, return_counts=True)[1] for labels in stored])))
    tags, inner = dataset.locate(np.arange(rows, dtype=np.int64))
    found, first = np.empty(rows, dtype=np.int64), 0
    for number, (member, labels) in enumerate(zip(members, each, strict=True)):
        own = np.arange(len(member), dtype=np.int64) // run if labels is None else labels
        here = tags == number
        found[here] = first + own[inner[here]]
        first += int(own.max(initial=-1)) + 1
    return found


def _length(dataset: Any) -> int:
    if isinstance(dataset, int) and not isinstance(dataset, bool):
        return dataset
    try:
        return len(dataset)
    except TypeError:
        raise TypeError(f"expected a dataset or its number of rows, got a {type(dataset).__name__}") from None


def _is_chunked(column: Any) -> bool:
    return isinstance(column, Tiles) and any(isinstance(part, TileGrid) for part in column.parts)


def _is_remote(column: Any) -> TypeGuard[Column]:
    return isinstance(column, Column) and any(segment[0].origin is not None for segment in column.segments)


def _fetched_bands(column: Column) -> Indices:
    """Return the number of the fetched block in which each row begins: int64 (rows,). Other rows are by themselves."""
    found, first = [], 0
    for storage, offset, rows, stride in column.segments:
        size = max(stride, 1) if storage.origin is None else storage.origin.table.block_bytes
        bands = (offset + np.arange(rows, dtype=np.int64) * stride) // size
        found.append(first + bands - bands[:1])
        first += int(bands[-1] - bands[0]) + 1 if rows else 0
    stored: Indices = np.concatenate(found)
    selection = column.selection
    return stored if selection is None else stored[selection]


def _is_encoded(column: Any) -> bool:
    return isinstance(column, Tiles) and any(_band_bytes(part) for part in column.parts if isinstance(part, TileGrid))


def _band_bytes(grid: TileGrid) -> int:
    """Return the bytes of the tiles that hold the same rows, decoded; 0 if they are not encoded."""
    across = math.prod(-(-side // tile) for side, tile in zip(grid.row_shape, grid.tile_shape[1:], strict=True))
    return 0 if grid.chain is None else grid.tile_bytes * across


def _bands(column: Any) -> Indices:
    """Return the number of the band of chunks of each row: int64 (rows,). Plain rows are bands by themselves."""
    found, first = [], 0
    for part in column.parts:
        step = part.tile_shape[0] if isinstance(part, TileGrid) else 1
        bands = first + np.arange(part.rows, dtype=np.int64) // step
        first += -(-part.rows // step)
        found.append(bands)
    stored: Indices = np.concatenate(found)
    selection = column.selection
    return stored if selection is None else stored[selection]


def _numbered(labels: Indices) -> Blocks:
    """Return the blocks of rows that have a label in common, in the order of the labels."""
    _, places, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(places, kind="stable").astype(np.int64)
    in_order = bool((order == np.arange(len(order))).all())
    return Blocks(sizes.astype(np.int64), None if in_order else order)


def _joined(first: Indices, second: Indices) -> Indices:
    """Return labels that are equal where rows hang together by labels of the one or the other kind.

    No band of either kind has rows of two labels, and no smaller parts are such.
    """
    _, first = np.unique(first, return_inverse=True)
    _, second = np.unique(second, return_inverse=True)
    labels = first.astype(np.int64)
    while True:
        by_second = np.full(second.max() + 1, len(labels), dtype=np.int64)
        np.minimum.at(by_second, second, labels)
        by_first = np.full(first.max() + 1, len(labels), dtype=np.int64)
        np.minimum.at(by_first, first, by_second[second])
        least = by_first[first]
        if np.array_equal(least, labels):
            return labels
        labels = least
