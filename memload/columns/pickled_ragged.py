"""Pickle columns of rows that differ in length for other processes; see columns/pickled_columns.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, Ragged, Storage, TileGrid
from memload.columns.pickled_storages import PackedGrid, has_place, unpack_grid


class Packs(Protocol):
    """An object that assigns numbers to storages in the order in which columns use them."""

    def file(self, storage: Storage) -> int:
        """Return the number of a file, or of memory that other processes can find."""

    def memory(self, data: NDArray[np.uint8]) -> int:
        """Return the number of a storage that is sent as bytes."""

    def grid(self, grid: TileGrid) -> PackedGrid:
        """Return a tiled array that refers to its storages by number."""


PackedSegment = tuple[int, int, int | tuple[PackedGrid, ...], int, int, int, int]


@dataclass(frozen=True)
class PackedRagged:
    """A column whose segments refer to storages by position; `selection` is None or the stored rows in order.

    Encoded items are tiled arrays, one for each plane.
    """

    item_bytes: int
    planes: int
    segments: tuple[PackedSegment, ...]
    selection: NDArray[np.int64] | None


def pack_ragged(column: Ragged, packer: Packs) -> PackedRagged:
    """Return the column in a form that can be pickled; only the rows in use of borrowed memory are copied."""
    selection = column.selection
    if any(has_place(storage) for storage in column.storages):
        segments = tuple(_segment(segment, column, packer) for segment in column.segments)
        return PackedRagged(column.item_bytes, column.planes, segments, selection)
    used = np.arange(column.rows)
    whole = column
    if selection is not None:
        used, selection = np.unique(selection, return_inverse=True)
        whole = Ragged(column.item_bytes, column.planes, column.segments)
    offsets = np.concatenate([[0], np.cumsum(whole.lengths(used))]).astype(np.int64)
    items = int(offsets[-1])
    values = np.empty(items * column.planes * column.item_bytes, dtype=np.uint8)
    if values.nbytes:
        whole.gather(used, values.ctypes.data, values.nbytes)
    packed = (packer.memory(offsets.view(np.uint8)), 0, packer.memory(values), 0, len(used), items)
    return PackedRagged(column.item_bytes, column.planes, ((*packed, items * column.item_bytes),), selection)


def unpack_ragged(packed: PackedRagged, storages: Sequence[Storage]) -> Ragged:
    """Return the column on these storages."""
    segments = [
        (storages[offsets], offsets_at, _unpack_values(values, storages), values_at, rows, items, stride)
        for offsets, offsets_at, values, values_at, rows, items, stride in packed.segments
    ]
    column = Ragged(packed.item_bytes, packed.planes, segments)
    return column if packed.selection is None else column.select(packed.selection)


def _unpack_values(values: int | tuple[PackedGrid, ...], storages: Sequence[Storage]) -> Storage | list[TileGrid]:
    if isinstance(values, int):
        return storages[values]
    return [unpack_grid(grid, storages) for grid in values]


def _segment(
    segment: tuple[Storage, int, Storage | list[TileGrid], int, int, int, int], column: Ragged, packer: Packs
) -> PackedSegment:
    offsets, offsets_at, values, values_at, rows, items, stride = segment
    if not isinstance(values, Storage):
        grids = tuple(packer.grid(grid) for grid in values)
        return (*_storage(offsets, offsets_at, (rows + 1) * 8, packer), grids, values_at, rows, items, stride)
    span = items * column.item_bytes + (column.planes - 1) * stride if items else 0
    return (
        *_storage(offsets, offsets_at, (rows + 1) * 8, packer),
        *_storage(values, values_at, span, packer),
        rows,
        items,
        stride,
    )


def _storage(storage: Storage, at: int, nbytes: int, packer: Packs) -> tuple[int, int]:
    """Return the number of a storage and the offset of the bytes in it; only the wanted part of memory is sent."""
    if has_place(storage):
        return packer.file(storage), at
    data = np.empty(nbytes, dtype=np.uint8)
    if nbytes:
        Column(nbytes, [(storage, at, 1, nbytes)]).gather([0], data.ctypes.data, nbytes)
    return packer.memory(data), 0
