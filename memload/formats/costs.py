"""The cost of reading one row: its own bytes if it is stored in place, or the whole tiles that contain it."""

from __future__ import annotations

import math
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path

import numpy as np

from memload._core import Ragged, Slices, TileGrid, Tiles, Windows
from memload.columns.fields import Field
from memload.errors import LayoutWarning, ShardReadError
from memload.formats.members import Key
from memload.sizes import counted, format_size

MISFIT = 8
"""The read cost of a row, in multiples of its bytes, from which on a layout is unfit for reading by rows."""

_HARMLESS = 2**16  # bytes that cost about as much as one random read of a disk, so that no warning is due
_MOST_TIMED = 2**26  # the most bytes that are decoded to measure the time
_TIMED_TILES = 64


@dataclass(frozen=True)
class RowCost:
    """The cost of reading one row of a field by itself.

    Attributes:
        nbytes: the bytes of the row.
        touched: the bytes that are decoded for it: all bytes of each tile with a part of it; of tiles without filters
            the pages with its parts; its own bytes if it is stored in place.
        tiles: the number of tiles with a part of it; 0 if it is stored in place.
    """

    nbytes: int
    touched: int
    tiles: int = 0

    @property
    def times(self) -> float:
        """The bytes to read, as a multiple of the row's bytes."""
        return self.touched / max(1, self.nbytes)

    @property
    def unfit(self) -> bool:
        """Whether the layout is unfit for reading by rows."""
        return self.times >= MISFIT and self.touched > _HARMLESS

    def __str__(self) -> str:
        if not self.tiles:
            return f"a row takes its own {format_size(self.nbytes)}"
        chunks = counted(self.tiles, "chunk")
        unfit = f", {self.times:,.0f} times its size: unfit for reading by rows" if self.unfit else ""
        return f"a row of {format_size(self.nbytes)} takes {chunks}, {format_size(self.touched)}{unfit}"


def cost_of(field: Field) -> RowCost:
    """Return the cost of a row of a field; of several parts that of the most expensive one."""
    if isinstance(field.column, Ragged) and field.column.decodes:
        return _of_items(field.column)
    costs = [_of_grid(grid) for grid in _grids(field)]
    return max(costs, key=lambda cost: cost.touched, default=RowCost(field.row_bytes, field.row_bytes))


def _grids(field: Field) -> list[TileGrid]:
    column = field.column.frames if isinstance(field.column, Windows | Slices) else field.column
    parts = column.parts if isinstance(column, Tiles) else []
    return [part for part in parts if isinstance(part, TileGrid) and part.rows and part.row_bytes]


def _of_grid(grid: TileGrid) -> RowCost:
    tiles = _across(grid)
    part = grid.item_bytes * math.prod(map(min, grid.tile_shape[1:], grid.row_shape))
    whole = part * min(grid.tile_shape[0], grid.rows)
    touched = whole if grid.chain is not None else min(whole, -(-part // PAGESIZE) * PAGESIZE)
    return RowCost(grid.row_bytes, tiles * touched, tiles)


def _of_items(column: Ragged) -> RowCost:
    """Return the cost of a row of average length: the blocks with its items, where blocks are largest."""
    coded = [segment[2] for segment in column.segments]
    largest = max((grids[0] for grids in coded if isinstance(grids, list)), key=lambda grid: grid.tile_bytes)
    blocks = 1 + column.items / max(1, column.rows) / largest.tile_shape[0]  # the first block and the following ones
    tiles = column.planes * round(blocks)
    return RowCost(column.row_bytes, tiles * largest.tile_bytes, tiles)


def _across(grid: TileGrid) -> int:
    return math.prod(-(-whole // side) for side, whole in zip(grid.tile_shape[1:], grid.row_shape, strict=True))


def seconds_of(field: Field) -> float | None:
    """Return the approximate seconds of one thread for a row at its most expensive, by decoding a few tiles.

    Returns None if that would take long, or if the tiles cannot be decoded.
    """
    grid = max(_grids(field), key=lambda grid: _of_grid(grid).touched, default=None)
    if grid is None or grid.cut:
        return None
    written = grid.table[grid.table[:, 0] >= 0]  # a tile that was never written takes no time
    count = min(len(written), _across(grid), _TIMED_TILES, max(1, _MOST_TIMED // max(1, grid.tile_bytes)))
    if not count or count * grid.tile_bytes > _MOST_TIMED:
        return None
    sides = [count * grid.tile_shape[1], *grid.tile_shape[2:]] if len(grid.tile_shape) > 1 else []
    rows = min(grid.rows, grid.tile_shape[0])
    part = TileGrid(
        rows,
        grid.item_bytes,
        sides,
        grid.tile_shape,
        grid.storages,
        written[:count],
        grid.chain,
        grid.fill,
        order=grid.order,
    )
    row = np.empty(part.row_bytes, np.uint8)
    tiles, took = Tiles([part]), []
    for _ in range(2):  # the first may wait for the disk
        begin = time.perf_counter()
        try:
            tiles.gather(np.zeros(1, np.int64), row.ctypes.data, row.nbytes)
        except ShardReadError:  # the error is raised when the row is read
            return None
        took.append(time.perf_counter() - begin)
    return min(took) * _across(grid) / count


def warn_of_unfit(
    fields: Mapping[str, Field], paths: Sequence[Path], key: Key, keyed: Sequence[str], stacklevel: int
) -> None:
    """Warn of fields whose rows cost many times their bytes to read, and say how to convert them.

    Args:
        fields: the fields by name.
        paths: the paths of their files.
        key: the key that selected them in the files.
        keyed: the options and patterns of `memload write` that give rows their keys, if they have any.
        stacklevel: as of `warnings.warn`.
    """
    unfit = {name: cost for name, cost in ((name, cost_of(field)) for name, field in fields.items()) if cost.unfit}
    if unfit:
        costs = [_described(name, cost, seconds_of(fields[name])) for name, cost in unfit.items()]
        where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        advice = f"Convert it once, block by block in bounded memory:\n    {_command(paths, key, keyed)}"
        warnings.warn(f"{where}: {'; '.join(costs)}. {advice}", LayoutWarning, stacklevel=stacklevel + 1)


def _described(name: str, cost: RowCost, seconds: float | None) -> str:
    place = "in a chunk of many rows" if cost.tiles == 1 else f"across {cost.tiles:,} chunks of many rows each"
    takes = "" if seconds is None else f" and about {_duration(seconds)} of a core"
    return (
        f"a row of field {name!r}, {format_size(cost.nbytes)}, is stored {place}, so reading it takes "
        f"{format_size(cost.touched)}, {cost.times:,.0f} times its size{takes}"
    )


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def _command(paths: Sequence[Path], key: Key, keyed: Sequence[str]) -> str:
    target = f"{paths[0].stem}-shards"
    sources = keyed or [*map(str, paths)]
    if len(sources) > _MOST_NAMED or isinstance(key, Mapping):
        return f'memload.write("{target}", dataset)  # with the dataset that this call opens'
    keys = [key] if isinstance(key, str) else key or []
    return shlex.join(["memload", "write", *(part for name in keys for part in ("--key", name)), *sources, target])


_MOST_NAMED = 8  # the most paths in a command
