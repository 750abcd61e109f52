"""Pickle columns for other processes: files are sent as paths, borrowed memory as bytes.

A spawned worker maps the files again, so a pickled dataset on files is small. Memory is sent as numpy arrays, because
the shared memory of tensors made here could be freed before a spawned worker opens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, EventCounts, EventItems, Ragged, Slices, Storage, TileGrid, Tiles, Windows
from memload.columns.fields import AnyColumn
from memload.columns.pickled_ragged import PackedRagged, pack_ragged, unpack_ragged
from memload.columns.pickled_storages import (
    PackedGrid,
    PackedStorage,
    Unpacked,
    has_place,
    pack_grid,
    place_of,
    unpack_grid,
    unpack_storage,
)
from memload.columns.sliced import (
    EventsPacker,
    EventsUnpacker,
    PackedCounts,
    PackedItems,
    PackedSlices,
    pack_events,
    pack_slices,
    unpack_events,
    unpack_slices,
)

Segment = tuple[Storage, int, int, int]  # storage, offset of the first row, rows, bytes from row to row


@dataclass(frozen=True)
class PackedColumn:
    """A column whose segments refer to storages by position; `selection` is None or the stored rows in order."""

    row_bytes: int
    segments: tuple[tuple[int, int, int, int], ...]
    selection: NDArray[np.int64] | None


@dataclass(frozen=True)
class PackedWindows:
    """Windows of frames; `selection` is None or the stored rows in order."""

    frames: Packed
    steps: tuple[int, ...]
    runs: tuple[tuple[int, int, int], ...]
    selection: NDArray[np.int64] | None


@dataclass(frozen=True)
class PackedTiles:
    """Rows inside tiles; `selection` is None or the stored rows in order."""

    parts: tuple[PackedGrid | PackedColumn, ...]
    selection: NDArray[np.int64] | None


Packed = PackedColumn | PackedTiles | PackedWindows | PackedRagged | PackedSlices | PackedCounts | PackedItems


@dataclass(frozen=True)
class PackedColumns:
    """Columns and the storages that they share."""

    storages: tuple[PackedStorage, ...]
    columns: tuple[Packed, ...]


def pack_columns(columns: Sequence[AnyColumn]) -> PackedColumns:
    """Return the columns in a form that can be pickled; only the rows in use of borrowed memory are copied."""
    packer = _Packer()
    packed = tuple(packer.any(column) for column in columns)
    return PackedColumns(tuple(packer.packed), packed)


def unpack_columns(packed: PackedColumns) -> list[AnyColumn]:
    """Return the columns, each file mapped once.

    Raises:
        FormatError: the length of a file has changed.
        OSError: a file cannot be mapped.
        MemloadError: the process that shared its memory has ended.
    """
    shared = Unpacked()
    storages, events = [unpack_storage(storage, shared) for storage in packed.storages], EventsUnpacker()
    return [_unpack(column, storages, events) for column in packed.columns]


class _Packer:
    """Assigns numbers to storages in the order in which columns use them."""

    def __init__(self) -> None:
        self.packed: list[PackedStorage] = []
        self._numbers: dict[object, int] = {}  # of storages that others can find
        self._memories: dict[Storage, int] = {}  # of memory that is copied whole
        self._shared: list[object] = []  # keeps shared objects alive: they are identified by id()
        self._events = EventsPacker()

    def any(self, column: AnyColumn) -> Packed:
        if isinstance(column, Column):
            return self.column(column)
        if isinstance(column, Ragged):
            return pack_ragged(column, self)
        if isinstance(column, Tiles):
            parts = (self.column(part) if isinstance(part, Column) else self.grid(part) for part in column.parts)
            return PackedTiles(tuple(parts), column.selection)
        if isinstance(column, Slices):
            return pack_slices(column, self.any(column.frames))
        if isinstance(column, EventCounts | EventItems):
            return pack_events(column, self._events)
        return PackedWindows(self.any(column.frames), tuple(column.steps), tuple(column.runs), column.selection)

    def column(self, column: Column) -> PackedColumn:
        selection = column.selection
        segments: list[Segment] = column.segments
        if selection is not None and not any(has_place(storage) for storage, *_ in segments):
            used, selection = np.unique(selection, return_inverse=True)
            memory = _gather(Column(column.row_bytes, segments), used)
            return PackedColumn(column.row_bytes, (self._memory(memory, column.row_bytes),), selection)
        return PackedColumn(
            column.row_bytes, tuple(self._segment(segment, column.row_bytes) for segment in segments), selection
        )

    def _segment(self, segment: Segment, row_bytes: int) -> tuple[int, int, int, int]:
        storage, offset, rows, stride = segment
        if has_place(storage):
            return self.file(storage), offset, rows, stride
        if stride == 0:  # one row that is repeated
            number, *_ = self._memory(
                _gather(Column(row_bytes, [segment]), np.zeros(min(rows, 1), np.int64)), row_bytes
            )
            return number, 0, rows, 0
        if stride < row_bytes:  # rows that overlap
            span = stride * (rows - 1) + row_bytes
            number, *_ = self._memory(_gather(Column(span, [(storage, offset, 1, span)]), np.zeros(1, np.int64)), span)
            return number, 0, rows, stride
        return self._memory(_gather(Column(row_bytes, [segment]), np.arange(rows)), row_bytes)

    def file(self, storage: Storage) -> int:
        """Return the number of a file, or of memory that other processes can find."""
        self._shared += [storage.cache, storage.files]
        place = place_of(storage)
        if place not in self._numbers:
            self._numbers[place] = len(self.packed)
            self.packed.append(place)
        return self._numbers[place]

    def memory(self, data: NDArray[np.uint8]) -> int:
        """Return the number of a storage that is sent as bytes."""
        self.packed.append(data)
        return len(self.packed) - 1

    def grid(self, grid: TileGrid) -> PackedGrid:
        """Return a tiled array with whole storages, which it refers to by number."""
        return pack_grid(grid, self._whole)

    def _whole(self, storage: Storage) -> int:
        if has_place(storage):
            return self.file(storage)
        if storage not in self._memories:
            one = Column(storage.nbytes, [(storage, 0, 1, 0)])
            self._memories[storage], *_ = self._memory(_gather(one, np.zeros(1, np.int64)), storage.nbytes)
        return self._memories[storage]

    def _memory(self, rows: NDArray[np.uint8], row_bytes: int) -> tuple[int, int, int, int]:
        return self.memory(rows), 0, len(rows), row_bytes


def _gather(column: Column, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    out = np.empty((len(rows), column.row_bytes), dtype=np.uint8)
    if out.nbytes:
        column.gather(rows, out.ctypes.data, out.nbytes)
    return out


def _unpack(packed: Packed, storages: Sequence[Storage], events: EventsUnpacker) -> Any:
    if isinstance(packed, PackedColumn):
        return _unpack_column(packed, storages)
    if isinstance(packed, PackedRagged):
        return unpack_ragged(packed, storages)
    if isinstance(packed, PackedSlices):
        return unpack_slices(packed, _unpack(packed.frames, storages, events))
    if isinstance(packed, PackedCounts | PackedItems):
        return unpack_events(packed, events)
    if isinstance(packed, PackedTiles):
        tiles = Tiles([_unpack_part(part, storages) for part in packed.parts])
        return tiles if packed.selection is None else tiles.select(packed.selection)
    windows = Windows(_unpack(packed.frames, storages, events), list(packed.steps), list(packed.runs))
    return windows if packed.selection is None else windows.select(packed.selection)


def _unpack_part(packed: PackedGrid | PackedColumn, storages: Sequence[Storage]) -> TileGrid | Column:
    if isinstance(packed, PackedColumn):
        return _unpack_column(packed, storages)
    return unpack_grid(packed, storages)


def _unpack_column(packed: PackedColumn, storages: Sequence[Storage]) -> Column:
    column = Column(
        packed.row_bytes, [(storages[number], offset, rows, stride) for number, offset, rows, stride in packed.segments]
    )
    return column if packed.selection is None else column.select(packed.selection)
