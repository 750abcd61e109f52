"""Put the same rows on other storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from memload._core import Column, EventCounts, EventItems, Ragged, Slices, Storage, TileGrid, Tiles, Windows
from memload.columns.fields import AnyColumn
from memload.columns.sliced import on_frames

Exchange = Callable[[Storage], Storage]


def file_storages(columns: Iterable[AnyColumn]) -> Iterator[Storage]:
    """Yield the mapped files behind columns, each once, without files that are opened for each read."""
    seen: dict[Storage, None] = {}
    for column in columns:
        seen.update(dict.fromkeys(storage for storage in column.storages if storage.mapped and not storage.closed))
    yield from seen


def on_storages(column: AnyColumn, exchange: Exchange) -> Any:
    """Return the column with each of its storages exchanged for another that has the same bytes at the same places."""
    if isinstance(column, Column):
        return _column(column, exchange)
    if isinstance(column, Windows):
        windows = Windows(on_storages(column.frames, exchange), list(column.steps), list(column.runs))
        return windows if column.selection is None else windows.select(column.selection)
    if isinstance(column, Slices):
        return on_frames(column, on_storages(column.frames, exchange))
    if isinstance(column, EventCounts | EventItems):
        return column  # its events are in no storage
    if isinstance(column, Tiles):
        parts = [_column(p, exchange) if isinstance(p, Column) else _grid(p, exchange) for p in column.parts]
        tiles = Tiles(parts)
        return tiles if column.selection is None else tiles.select(column.selection)
    segments = [
        (exchange(offsets), offsets_at, _values(values, exchange), values_at, rows, items, stride)
        for offsets, offsets_at, values, values_at, rows, items, stride in column.segments
    ]
    ragged = Ragged(column.item_bytes, column.planes, segments)
    return ragged if column.selection is None else ragged.select(column.selection)


def _values(values: Storage | list[TileGrid], exchange: Exchange) -> Storage | list[TileGrid]:
    return exchange(values) if isinstance(values, Storage) else [_grid(grid, exchange) for grid in values]


def _column(column: Column, exchange: Exchange) -> Column:
    segments = [(exchange(storage), offset, rows, stride) for storage, offset, rows, stride in column.segments]
    made = Column(column.row_bytes, segments)
    return made if column.selection is None else made.select(column.selection)


def _grid(grid: TileGrid, exchange: Exchange) -> TileGrid:
    return TileGrid(
        grid.rows,
        grid.item_bytes,
        grid.row_shape,
        grid.tile_shape,
        [exchange(storage) for storage in grid.storages],
        grid.table,
        grid.chain,
        grid.fill,
        grid.cut,
        grid.order,
    )
