"""Arrays in tiles on their way to another process; see columns.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memload._core import Chain, Storage, TileGrid


@dataclass(frozen=True)
class PackedGrid:
    """An array in tiles, with its storages by position, and its chain as filters."""

    rows: int
    item_bytes: int
    row_shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    storages: tuple[int, ...]
    table: NDArray[np.int64]
    filters: tuple[tuple[str, int, int], ...] | None
    fill: bytes
    cut: bool
    order: tuple[int, ...]


def pack_grid(grid: TileGrid, number: Callable[[Storage], int]) -> PackedGrid:
    """Return the array in a form that can be pickled; `number` gives each storage its position."""
    return PackedGrid(
        grid.rows,
        grid.item_bytes,
        tuple(grid.row_shape),
        tuple(grid.tile_shape),
        tuple(map(number, grid.storages)),
        grid.table,
        None if grid.chain is None else tuple(grid.chain.filters),
        grid.fill,
        grid.cut,
        tuple(grid.order),
    )


def unpack_grid(packed: PackedGrid, storages: Sequence[Storage]) -> TileGrid:
    """Return the array on these storages."""
    return TileGrid(
        packed.rows,
        packed.item_bytes,
        packed.row_shape,
        packed.tile_shape,
        [storages[number] for number in packed.storages],
        packed.table,
        None if packed.filters is None else Chain(packed.filters),
        packed.fill,
        packed.cut,
        packed.order,
    )
