"""What it costs to read one row: nothing beside its bytes where it lies in place, whole tiles where it lies in some."""

from __future__ import annotations

import math
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memload._core import Ragged, TileGrid, Tiles, Windows
from memload.columns.fields import Field
from memload.errors import LayoutWarning, ShardReadError
from memload.formats.members import Key
from memload.sizes import format_size

MISFIT = 8
"""So many times its own bytes a row may cost before the layout counts as unfit for reading by rows."""

_HARMLESS = 2**16  # bytes: what costs no more than about one random read of a disk is not worth a word
_PAGE = 4096  # what a file is read by at least
_MOST_TIMED = 2**26  # bytes that are decoded to find out how long it takes
_TIMED_TILES = 64


@dataclass(frozen=True)
class RowCost:
    """What one row of a field costs that is read by itself.

    Attributes:
        nbytes: of the row.
        touched: bytes that are decoded for it: all of each tile that holds a part of it; of tiles without filters the
            pages that hold these parts; the row's own where it lies in place.
        tiles: how many hold a part of it; 0 where it lies in place.
    """

    nbytes: int
    touched: int
    tiles: int = 0

    @property
    def times(self) -> float:
        """How many times its own bytes a row takes to be read."""
        return self.touched / max(1, self.nbytes)

    @property
    def unfit(self) -> bool:
        """Whether reading by rows is a bad idea."""
        return self.times >= MISFIT and self.touched > _HARMLESS

    def __str__(self) -> str:
        if not self.tiles:
            return f"a row takes its own {format_size(self.nbytes)}"
        chunks = "1 chunk" if self.tiles == 1 else f"{self.tiles:,} chunks"
        unfit = f", {self.times:,.0f} times its size: unfit for reading by rows" if self.unfit else ""
        return f"a row of {format_size(self.nbytes)} takes {chunks}, {format_size(self.touched)}{unfit}"


def cost_of(field: Field) -> RowCost:
    """Return what a row of a field costs, where it costs most."""
    if isinstance(field.column, Ragged) and field.column.decodes:
        return _of_items(field.column)
    costs = [_of_grid(grid) for grid in _grids(field)]
    return max(costs, key=lambda cost: cost.touched, default=RowCost(field.row_bytes, field.row_bytes))


def _grids(field: Field) -> list[TileGrid]:
    column = field.column.frames if isinstance(field.column, Windows) else field.column
    parts = column.parts if isinstance(column, Tiles) else []
    return [part for part in parts if isinstance(part, TileGrid) and part.rows and part.row_bytes]


def _of_grid(grid: TileGrid) -> RowCost:
    tiles = _across(grid)
    part = grid.item_bytes * math.prod(map(min, grid.tile_shape[1:], grid.row_shape))
    whole = part * min(grid.tile_shape[0], grid.rows)
    touched = whole if grid.chain is not None else min(whole, -(-part // _PAGE) * _PAGE)
    return RowCost(grid.row_bytes, tiles * touched, tiles)


def _of_items(column: Ragged) -> RowCost:
    """Of a row of the mean length, where rows differ: the blocks that hold its items, where these are largest."""
    coded = [segment[2] for segment in column.segments]
    largest = max((grids[0] for grids in coded if isinstance(grids, list)), key=lambda grid: grid.tile_bytes)
    blocks = 1 + column.items / max(1, column.rows) / largest.tile_shape[0]  # that a row begins in, and further ones
    tiles = column.planes * round(blocks)
    return RowCost(column.row_bytes, tiles * largest.tile_bytes, tiles)


def _across(grid: TileGrid) -> int:
    return math.prod(-(-whole // side) for side, whole in zip(grid.tile_shape[1:], grid.row_shape, strict=True))


def seconds_of(field: Field) -> float | None:
    """Return about how long one thread takes for a row, where it costs most, found by decoding a few tiles.

    None if that would take long, or they cannot be decoded.
    """
    grid = max(_grids(field), key=lambda one: _of_grid(one).touched, default=None)
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
    for _ in range(2):  # the first may wait for the disk, and once
        begin = time.perf_counter()
        try:
            tiles.gather(np.zeros(1, np.int64), row.ctypes.data, row.nbytes)
        except ShardReadError:  # which is to be told when the row is wanted
            return None
        took.append(time.perf_counter() - begin)
    return min(took) * _across(grid) / count


def warn_of_unfit(
    fields: Mapping[str, Field], paths: Sequence[Path], key: Key, keyed: Sequence[str], stacklevel: int
) -> None:
    """Warn of fields whose rows cost many times their bytes, and say how to convert them.

    Args:
        fields: by name.
        paths: of their files.
        key: what picked them there.
        keyed: the options and patterns of `memload write` that give rows their keys, if they have any.
        stacklevel: as of `warnings.warn`.
    """
    unfit = {name: cost for name, cost in ((name, cost_of(field)) for name, field in fields.items()) if cost.unfit}
    if unfit:
        told = [_told(name, cost, seconds_of(fields[name])) for name, cost in unfit.items()]
        where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        advice = f"Convert it once, block by block in bounded memory:\n    {_command(paths, key, keyed)}"
        warnings.warn(f"{where}: {'; '.join(told)}. {advice}", LayoutWarning, stacklevel=stacklevel + 1)


def _told(name: str, cost: RowCost, seconds: float | None) -> str:
    lies = "in a chunk of many rows" if cost.tiles == 1 else f"across {cost.tiles:,} chunks of many rows each"
    takes = "" if seconds is None else f" and about {_duration(seconds)} of a core"
    return (
        f"a row of field {name!r}, {format_size(cost.nbytes)}, lies {lies}, so that reading it takes "
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
        return f'memload.write("{target}", dataset)  # of the dataset that this opens'
    keys = [key] if isinstance(key, str) else key or []
    return shlex.join(["memload", "write", *(part for one in keys for part in ("--key", one)), *sources, target])


_MOST_NAMED = 8  # paths in a command
