"""Pickle columns for other processes: files are sent as paths, borrowed memory as bytes.

A spawned worker maps the files again, so a pickled dataset on files is small. Memory is sent as numpy arrays, because
the shared memory of tensors made here could be freed before a spawned worker opens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, Events, Ragged, Storage
from memload.columns.fields import AnyColumn, Field
from memload.columns.parts import Parts, parts_of
from memload.columns.pickled_storages import PackedStorage, Unpacked, has_place, place_of, unpack_storage

Segment = tuple[Storage, int, int, int]
"""Of a plain column: storage, offset of the first row, rows, bytes from row to row."""


@dataclass(frozen=True)
class Numbered:
    """A storage among those that are sent, by its number."""

    number: int


@dataclass(frozen=True)
class PackedColumns:
    """Columns, whose parts refer to the storages that they share by `Numbered`."""

    storages: tuple[PackedStorage, ...]
    columns: tuple[Parts, ...]


def pack_columns(columns: Sequence[AnyColumn]) -> PackedColumns:
    """Return the columns in a form that can be pickled; only the rows in use of borrowed memory are copied."""
    packer = _Packer()
    packed = tuple(packer.parts(column) for column in columns)
    return PackedColumns(tuple(packer.packed), packed)


def unpack_columns(packed: PackedColumns) -> list[AnyColumn]:
    """Return the columns, each file mapped once.

    Raises:
        FormatError: the length of a file has changed, or another file has taken its place.
        OSError: a file cannot be mapped.
        MemloadError: the process that shared its memory has ended.
    """
    shared = Unpacked()
    unpacker = _Unpacker([unpack_storage(storage, shared) for storage in packed.storages])
    return [unpacker.together(column) for column in packed.columns]


def copied_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields for a deep copy: those of memory have a copy of it, others go on reading the files they opened.

    Raises:
        RuntimeError: the memory of a tensor was moved since its field was made.
        FormatError, OSError: rows of a file and of memory are in one field, and another file has taken its path.
    """
    held = {name: field for name, field in fields.items() if not _has_places(field)}
    for field in held.values():
        field.check_in_place()
    columns = unpack_columns(pack_columns([field.column for field in held.values()]))
    made = {
        name: type(field)(column=column, **field.recipe())
        for (name, field), column in zip(held.items(), columns, strict=True)
    }
    return {name: made.get(name, field) for name, field in fields.items()}


def _has_places(field: Field) -> bool:
    storages = field.column.storages
    return bool(storages) and all(map(has_place, storages))


class _Unpacker:
    """Puts columns together on the storages that were sent; what columns shared, they share again."""

    def __init__(self, storages: list[Storage]) -> None:
        self._storages = storages
        self._made: dict[int, Any] = {}  # by the id of its parts

    def together(self, value: Any) -> Any:
        """Return what was made of parts; of a number, the storage."""
        if isinstance(value, Numbered):
            return self._storages[value.number]
        if isinstance(value, tuple):
            return tuple(map(self.together, value))
        if not isinstance(value, Parts):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = replace(value, arguments=self.together(value.arguments)).together()
        return self._made[id(value)]


class _Packer:
    """Assigns numbers to storages in the order in which columns use them."""

    def __init__(self) -> None:
        self.packed: list[PackedStorage] = []
        self._numbers: dict[Storage, Numbered] = {}
        self._places: dict[object, Numbered] = {}  # of storages that others can find: several may be of one file
        self._copied: dict[Storage, NDArray[np.uint8]] = {}  # memory of rows that were gathered to be sent
        self._events: dict[Events, Parts] = {}
        self._shared: dict[object, int] = {}  # numbers of caches and tables, which are equal in all processes

    def parts(self, value: Any) -> Any:
        """Return the parts of a column or of a thing in it; of a storage, its number."""
        if isinstance(value, Storage):
            return self._number(value)
        if isinstance(value, Events):
            if value not in self._events:
                self._events[value] = parts_of(value, self.parts)
            return self._events[value]
        if isinstance(value, Column) and not all(map(has_place, value.storages)):
            value = self._rows_in_use(value)
        elif isinstance(value, Ragged) and not all(map(has_place, value.storages)):
            value = self._items_in_use(value)
        return parts_of(value, self.parts)

    def _number(self, storage: Storage) -> Numbered:
        if storage not in self._numbers:
            self._numbers[storage] = self._at(storage) if has_place(storage) else self._add(self._memory(storage))
        return self._numbers[storage]

    def _at(self, storage: Storage) -> Numbered:
        """Return the number of a file, or of memory that other processes can find."""
        place = place_of(storage, lambda shared: self._shared.setdefault(shared, len(self._shared)))
        if place not in self._places:
            self._places[place] = self._add(place)
        return self._places[place]

    def _memory(self, storage: Storage) -> NDArray[np.uint8]:
        """Return the bytes of a storage, all of which are sent."""
        if storage in self._copied:
            return self._copied[storage]
        return _gather(Column(storage.nbytes, [(storage, 0, 1, 0)]), [0])

    def _add(self, packed: PackedStorage) -> Numbered:
        self.packed.append(packed)
        return Numbered(len(self.packed) - 1)

    def _copy(self, rows: NDArray[np.uint8]) -> Storage:
        """Return a storage on a copy of rows, which is sent instead of all the memory in which they lie."""
        storage = Storage.borrow(rows, rows.ctypes.data, rows.nbytes, "rows to be sent")
        self._copied[storage] = rows
        return storage

    def _rows_in_use(self, column: Column) -> Column:
        """Return a column of the same rows, with copies of those in borrowed memory."""
        row_bytes, segments, selection = column.row_bytes, column.segments, column.selection
        if selection is not None and not any(has_place(storage) for storage, *_ in segments):
            used, selection = np.unique(selection, return_inverse=True)
            rows = _gather(Column(row_bytes, segments), used)
            return Column(row_bytes, [(self._copy(rows), 0, len(rows), row_bytes)]).select(selection)
        made = Column(row_bytes, [self._segment_in_use(segment, row_bytes) for segment in segments])
        return made if selection is None else made.select(selection)

    def _segment_in_use(self, segment: Segment, row_bytes: int) -> Segment:
        storage, offset, rows, stride = segment
        if has_place(storage):
            return segment
        if stride == 0:  # one row that is repeated
            return self._copy(_gather(Column(row_bytes, [segment]), range(min(rows, 1)))), 0, rows, 0
        if stride < row_bytes:  # rows that overlap
            span = stride * (rows - 1) + row_bytes
            return self._copy(_gather(Column(span, [(storage, offset, 1, span)]), [0])), 0, rows, stride
        return self._copy(_gather(Column(row_bytes, [segment]), np.arange(rows))), 0, rows, row_bytes

    def _items_in_use(self, column: Ragged) -> Ragged:
        """Return a column of the same rows, with copies of the items in borrowed memory."""
        item_bytes, planes, selection = column.item_bytes, column.planes, column.selection
        if any(has_place(storage) for storage in column.storages):
            made = Ragged(item_bytes, planes, [self._run_in_use(segment, column) for segment in column.segments])
            return made if selection is None else made.select(selection)
        used, whole = np.arange(column.rows), column
        if selection is not None:
            used, selection = np.unique(selection, return_inverse=True)
            whole = Ragged(item_bytes, planes, column.segments)
        offsets = np.concatenate([[0], np.cumsum(whole.lengths(used))]).astype(np.int64)
        items = int(offsets[-1])
        values = np.empty(items * planes * item_bytes, dtype=np.uint8)
        if values.nbytes:
            whole.gather(used, values.ctypes.data, values.nbytes)
        placed = (self._copy(offsets.view(np.uint8)), 0, self._copy(values), 0, len(used), items, items * item_bytes)
        made = Ragged(item_bytes, planes, [placed])
        return made if selection is None else made.select(selection)

    def _run_in_use(self, segment: Any, column: Ragged) -> Any:
        offsets, offsets_at, values, values_at, rows, items, stride = segment
        offsets, offsets_at = self._stretch_in_use(offsets, offsets_at, (rows + 1) * 8)
        if isinstance(values, Storage):
            span = items * column.item_bytes + (column.planes - 1) * stride if items else 0
            values, values_at = self._stretch_in_use(values, values_at, span)
        return offsets, offsets_at, values, values_at, rows, items, stride

    def _stretch_in_use(self, storage: Storage, at: int, nbytes: int) -> tuple[Storage, int]:
        """Return a storage with these bytes, and where in it they begin; of borrowed memory only they are sent."""
        if has_place(storage):
            return storage, at
        return self._copy(_gather(Column(nbytes, [(storage, at, 1, nbytes)]), [0])), 0


def _gather(column: Column, rows: Any) -> NDArray[np.uint8]:
    out = np.empty((len(rows), column.row_bytes), dtype=np.uint8)
    if out.nbytes:
        column.gather(rows, out.ctypes.data, out.nbytes)
    return out
