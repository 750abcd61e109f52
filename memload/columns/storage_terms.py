"""Describe how the rows of a column are stored, and the cost of reading one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memload._core import Column, EventCounts, EventItems, Ragged, Slices, Storage, TileGrid, Tiles, Windows
from memload.sizes import counted


@dataclass(frozen=True)
class StorageTerms:
    """How rows are stored, and the cost of reading a single row.

    Attributes:
        how: "in place", or the decoding of the chunks that hold rows, as "decoded: shuffle+deflate, 8 rows a chunk".
        read_bytes: stored bytes that one row needs on average: whole chunks that hold a part of it.
        decoded_bytes: bytes that are decoded for one row; 0 where rows are not encoded.

    Example:
        >>> import memload, torch
        >>> memload.from_arrays(stim=torch.zeros(10, 3, 8, 8)).fields["stim"].stored
        StorageTerms(how='in place', read_bytes=768, decoded_bytes=0)
    """

    how: str
    read_bytes: int
    decoded_bytes: int = 0

    def __str__(self) -> str:
        return self.how


def stored_as(column: Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems) -> StorageTerms:
    """Return how the rows of a column are stored; if there are several parts, the costs are the largest part's."""
    if isinstance(column, Windows | Slices):
        frame = stored_as(column.frames)
        frames = len(column.steps) if isinstance(column, Windows) else column.grid[0]
        return StorageTerms(frame.how, frame.read_bytes * frames, frame.decoded_bytes * frames)
    if isinstance(column, Ragged) and column.decodes:
        return _ragged(column)
    if not isinstance(column, Tiles):
        return StorageTerms("in place", column.row_bytes)
    parts = {part.rows: _part(part) for part in column.parts}
    most = parts[max(parts)]
    return StorageTerms(" or ".join(sorted({part.how for part in parts.values()})), most.read_bytes, most.decoded_bytes)


def where_stored(column: Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems) -> str:
    """Return the name of the storage of a column, for messages: the file's name, or one of several files' names."""
    first, *others = sorted({storage.name for storage in column.storages}) or [""]
    return f"{first}, or one of {len(others)} more" if others else first


def _ragged(column: Ragged) -> StorageTerms:
    """Return how rows that differ in length are stored, where some are in encoded blocks of items."""
    coded = [segment[2] for segment in column.segments if not isinstance(segment[2], Storage)]
    grids = [grid for planes in coded for grid in planes]
    said = {_filters(grid): grid for grid in grids}
    most = max(grids, key=lambda grid: grid.rows)
    blocks = 1 + column.items / max(1, column.rows) / most.tile_shape[0]  # a row's first block, and further ones
    items = f"{counted(most.tile_shape[0], 'item')} a block"
    plain = ["in place"] * (len(coded) < len(column.segments))
    how = [*plain, *(f"decoded: {filters}, {items}" for filters in sorted(said))]
    return StorageTerms(" or ".join(how), column.read_bytes, round(blocks * most.tile_bytes) * column.planes)


def _filters(grid: TileGrid) -> str:
    return "" if grid.chain is None else "+".join(name for name, _, _ in grid.chain.filters)


def _part(part: TileGrid | Column) -> StorageTerms:
    if isinstance(part, Column):
        return StorageTerms("in place", part.row_bytes)
    rows, *sides = part.tile_shape
    across = math.prod(-(-whole // side) for whole, side in zip(part.row_shape, sides, strict=True))
    chunks = f"{counted(rows, 'row')} a chunk" + (f", {across} chunks a row" if across > 1 else "")
    if part.chain is None:
        return StorageTerms(f"in place, {chunks}", part.row_bytes)
    filters = _filters(part) or "copied as a whole"
    read = round(part.stored_bytes / max(1, -(-part.rows // rows)))
    return StorageTerms(f"decoded: {filters}, {chunks}", read, part.tile_bytes * across)
