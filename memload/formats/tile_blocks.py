"""Read many rows that cross tiles at once: each tile is decoded once, by several threads, in bounded memory."""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, TileGrid, Tiles
from memload.columns.blocks import Block, Box
from memload.memory.budget import default_threads
from memload.memory.threads import ThreadPool

_MOST_BLOCK_BYTES = 2**24  # larger blocks cost memory and win nothing
_LARGE_BAND = 2**23  # bytes; rows of smaller ones are read together anyway


@dataclass(frozen=True)
class TileBlocks:
    """The blocks of an array in tiles: boxes of whole tiles of one band.

    Args:
        grid: the array; its tiles are stored whole, in C order.
        dtype: the dtype of its elements, in this machine's byte order; only its size counts.
    """

    grid: TileGrid
    dtype: np.dtype[Any]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.grid.rows

    def bands(self) -> list[range]:
        """Return the runs of rows that share tiles, in order."""
        step = self.grid.tile_shape[0]
        return [range(start, min(start + step, self.rows)) for start in range(0, self.rows, step)]

    def read(self, band: range, wanted: NDArray[np.bool_] | None, nbytes: int) -> Iterator[Block]:
        """Yield the elements of the rows of a band, box by box; tiles without a wanted element are not decoded.

        Args:
            band: one of `bands`.
            wanted: bool, with the shape of a row; values are undefined where it is false. None: all elements.
            nbytes: the approximate memory to use; at least the memory of one tile is used.

        Raises:
            ShardReadError: stored bytes cannot be read or decoded.
        """
        threads = default_threads()
        table = self._table(band)
        share = min(nbytes // (2 * threads + 1), _MOST_BLOCK_BYTES)  # a block is there twice while it is turned
        cells = max(1, share // max(1, self.grid.tile_bytes))
        boxes = self._boxes(table, wanted, cells)
        with ThreadPool(threads) as pool:
            under_way: deque[Future[Block]] = deque()
            try:
                for box, tiles in boxes:
                    under_way.append(pool.submit(self._block, band, box, tiles))
                    if len(under_way) >= threads:
                        yield under_way.popleft().result()
                while under_way:
                    yield under_way.popleft().result()
            finally:
                for future in under_way:
                    future.cancel()

    def _table(self, band: range) -> NDArray[np.int64]:
        """Return the band's part of the table, by place of the grid across a row."""
        across = [-(-side // step) for side, step in zip(self.grid.row_shape, self.grid.tile_shape[1:], strict=True)]
        first = band.start // self.grid.tile_shape[0] * math.prod(across)
        whole: NDArray[np.int64] = self.grid.table
        return whole[first : first + math.prod(across)].reshape(*across, whole.shape[1])

    def _boxes(
        self, table: NDArray[np.int64], wanted: NDArray[np.bool_] | None, cells: int
    ) -> Iterator[tuple[Box, NDArray[np.int64]]]:
        """Yield boxes of at most `cells` tiles, each with its tiles' entries."""
        grid, steps = table.shape[:-1], _steps(table.shape[:-1], cells)
        sides = self.grid.tile_shape[1:]
        for begins in itertools.product(*(range(0, count, step) for count, step in zip(grid, steps, strict=True))):
            inside = tuple(slice(k, min(k + step, n)) for k, step, n in zip(begins, steps, grid, strict=True))
            box = tuple(
                slice(cut.start * side, min(cut.stop * side, whole))
                for cut, side, whole in zip(inside, sides, self.grid.row_shape, strict=True)
            )
            tiles = table[inside]
            if wanted is not None:
                needed = _any_in_tiles(wanted[box], sides)
                if not needed.any():
                    continue
                tiles = np.where(needed[..., None], tiles, -np.eye(1, tiles.shape[-1], dtype=np.int64)[0])
            yield box, tiles

    def _block(self, band: range, box: Box, tiles: NDArray[np.int64]) -> Block:
        """Decode tiles one after the other, each as one row, and arrange them as rows of the box."""
        grid, cells = self.grid, tiles.shape[:-1]
        shape, count = grid.tile_shape, math.prod(tiles.shape[:-1])
        table = tiles.reshape(count, tiles.shape[-1])
        whole = TileGrid(count, grid.item_bytes, shape, [1, *shape], grid.storages, table, grid.chain, grid.fill)
        decoded = np.empty((*cells, *shape), self.dtype)
        if decoded.nbytes:
            Tiles([whole]).gather(np.arange(count), decoded.ctypes.data, decoded.nbytes)
        axes = len(cells)
        pairs = [axis for k in range(axes) for axis in (k, axes + 1 + k)]  # of the grid, and inside a tile
        rows = decoded.transpose(axes, *pairs).reshape(shape[0], *map(operator.mul, cells, shape[1:]))
        sides = (slice(0, cut.stop - cut.start) for cut in box)
        return Block(slice(None), box, rows[(slice(0, len(band)), *sides)])


def blocks_of(column: Column | Tiles, item_bytes: int) -> TileBlocks | None:
    """Return the blocks of a column of one array in tiles; None if reading its rows in order is as fast."""
    if not isinstance(column, Tiles) or len(column.parts) != 1 or not isinstance(column.parts[0], TileGrid):
        return None
    grid = column.parts[0]
    band = min(grid.tile_shape[0], grid.rows) * grid.row_bytes
    if grid.tile_shape[0] == 1 or band <= _LARGE_BAND or grid.cut or grid.order:
        return None
    return TileBlocks(grid, np.dtype(f"u{item_bytes}" if item_bytes in (1, 2, 4, 8) else f"V{item_bytes}"))


def _steps(grid: Sequence[int], cells: int) -> list[int]:
    """Return the sides of boxes of at most `cells` cells, longest along the last axes."""
    steps = []
    for count in reversed(grid):
        steps.append(max(1, min(count, cells)))
        cells //= steps[-1]
    return steps[::-1]


def _any_in_tiles(wanted: NDArray[np.bool_], sides: Sequence[int]) -> NDArray[np.bool_]:
    """Return, for each tile of a box, whether one of its elements is true."""
    for axis, side in enumerate(sides):
        wanted = np.logical_or.reduceat(wanted, np.arange(0, wanted.shape[axis], side), axis)
    return wanted
