"""The RAM tier: rows loaded once, as they are stored or already cast, by several threads.

What lies in place in files is loaded as it lies there, so that columns keep their arithmetic; only the pages that rows
need are ever written. What is cast, decoded, or a thin selection of rows is loaded row by row, one behind the other.

    file:  | header | field a | field b |        memory: | (untouched) | field a | field b |
    rows:  chunks, windows, casts, selections    memory: | row 0 | row 1 | ... |
"""

from __future__ import annotations

import ctypes
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload import _core
from memload._core import Column, Slices, Storage, Tiles, Windows
from memload.casts.rule import Cast
from memload.columns.fields import AnyColumn, Field, row_nbytes
from memload.columns.parts import file_storages, on_frames, on_storages
from memload.columns.pickled_columns import pack_columns
from memload.dtypes import TORCH_DTYPES, code_of
from memload.memory.arenas import Arena, is_shared, private_arena, shared_arena
from memload.memory.budget import local_processes, local_threads
from memload.memory.guards import Filling, check_copies, check_memory
from memload.memory.threads import ThreadPool
from memload.progress import byte_bar

_HUGE_PAGE = 2 << 20
_PIECE = 16 << 20  # bytes that one thread loads at a time
_THINNEST = 0.8  # of the huge pages that a file's rows would touch: below, rows are loaded one by one
_LEAST_THREADS = 4  # they mostly wait for the disk

Part = tuple[int, int]
"""Offset and bytes in a file."""


@dataclass(frozen=True)
class FileImage:
    """A file whose parts are loaded as they lie."""

    storage: Storage
    parts: tuple[Part, ...]

    @property
    def span(self) -> int:
        """Bytes among the addresses; those that nothing is loaded to take no memory."""
        return _whole_pages(self.storage.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, in huge pages."""
        return touched(self.parts)


@dataclass(frozen=True)
class RowImage:
    """Rows of a column that are loaded one behind the other, cast on the way."""

    column: AnyColumn
    dtype: torch.dtype
    shape: tuple[int, ...]
    cast: Cast | None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory."""
        return row_nbytes(self.dtype if self.cast is None else self.cast.dtype, self.shape)

    @property
    def span(self) -> int:
        """Bytes of all rows, in whole huge pages."""
        return _whole_pages(self.column.rows * self.row_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.span


@dataclass(frozen=True)
class LoadPlan:
    """What is loaded for some fields, each file and each column of rows once."""

    files: tuple[FileImage, ...]
    rows: Mapping[str, RowImage]

    @classmethod
    def of(cls, fields: Mapping[str, Field], casts: Mapping[str, Cast], *, compressed: bool) -> LoadPlan:
        """Plan it; fields that are in memory already and not cast are left out."""
        rows = {
            name: RowImage(
                _distinct(field.column), _stored_dtype(name, field, casts), _stored_shape(field), casts.get(name)
            )
            for name, field in fields.items()
            if name in casts or _loads_rows(field.column, compressed=compressed)
        }
        parts: dict[Storage, list[Part]] = {}
        for name, field in fields.items():
            if name not in rows:
                for storage, offset, nbytes in _core.extents(field.column):
                    parts.setdefault(storage, []).append((offset, nbytes))
        return cls(tuple(FileImage(storage, tuple(found)) for storage, found in parts.items()), rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return sum(image.nbytes for image in self.files) + sum(image.nbytes for image in self.rows.values())

    @property
    def span(self) -> int:
        """Bytes among the addresses."""
        return sum(image.span for image in self.files) + sum(image.span for image in self.rows.values())

    def key(self) -> str:
        """Return what is equal for equal contents in all processes of a machine."""
        columns = [image.column for image in self.rows.values()]
        said = [(image.dtype, image.shape, image.cast) for image in self.rows.values()]
        files = sorted({s.name for s in file_storages(columns)} | {i.storage.name for i in self.files})
        stats = [(name, (s := Path(name).stat()).st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for name in files]
        parts = [(image.storage.name, image.parts) for image in self.files]
        return xxhash.xxh3_128_hexdigest(pickle.dumps((stats, parts, said, pack_columns(columns))))


def loaded(
    fields: Mapping[str, Field],
    casts: Mapping[str, Cast],
    *,
    compressed: bool,
    share: bool,
    reason: str,
    progress: bool | None,
) -> dict[str, Field]:
    """Return the fields with their rows in RAM.

    Args:
        fields: by name.
        casts: what becomes of some of them on the way.
        compressed: whether chunks stay as they are stored, to be decoded for each batch.
        share: whether all processes of this user on this machine have one copy.
        reason: why, for `Storage.reason`.
        progress: whether to show a bar.

    Raises:
        MemorySpaceError: it does not fit.
        ShardReadError: a file cannot be read.
    """
    plan = LoadPlan.of(fields, casts, compressed=compressed)
    if plan.span == 0:
        return dict(fields)

    instead = 'use tier="hybrid" with cache_bytes=, tier="direct" or tier="mmap", or load fewer fields or rows'
    processes = local_processes()
    if processes > 1 and not share:
        instead = f"give share=True, which makes one copy for all processes, or {instead}"
        check_copies(plan.nbytes, processes, 'tier="ram"', instead)

    def fill(arena: Arena) -> None:  # among addresses that it has already
        _fill(plan, arena, progress, Filling(plan.nbytes, 'tier="ram"', instead))

    if share:
        arena = shared_arena(plan.key(), plan.span, fill)
    else:
        check_memory(plan.nbytes, 'tier="ram"', instead, addresses=plan.span)
        arena = private_arena(plan.span)
        fill(arena)
    return _on(fields, plan, arena, reason)


def loaded_elsewhere(fields: Mapping[str, Field], casts: Mapping[str, Cast], *, compressed: bool) -> int:
    """Return the bytes of the copy that another process of this machine shares, for which this one waits; else 0."""
    plan = LoadPlan.of(fields, casts, compressed=compressed)
    return plan.nbytes if plan.span and is_shared(plan.key(), plan.span) else 0


def touched(parts: Iterable[Part]) -> int:
    """Return the bytes of the huge pages that hold these parts of a file."""
    begins_ends = sorted((at // _HUGE_PAGE, -(-(at + n) // _HUGE_PAGE)) for at, n in parts)
    pages = after = 0
    for begin, end in begins_ends:
        pages += max(0, end - max(begin, after))
        after = max(after, end)
    return pages * _HUGE_PAGE


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE


def _loads_rows(column: AnyColumn, *, compressed: bool) -> bool:
    """Whether a column that is not cast is loaded row by row all the same."""
    if not any(storage.mapped for storage in column.storages):
        return False
    if isinstance(column, Windows | Slices):
        return _loads_rows(column.frames, compressed=compressed)
    if isinstance(column, Tiles):
        decoded = any(not isinstance(part, Column) and part.chain is not None for part in column.parts)
        closed = any(storage.closed for storage in column.storages)
        if closed or (decoded and not compressed):
            return True
    if not isinstance(column, Column | Tiles) or column.selection is None:
        return False
    parts: dict[Storage, list[Part]] = {}
    for storage, offset, nbytes in _core.extents(column):
        parts.setdefault(storage, []).append((offset, nbytes))
    needed = len(np.unique(column.selection)) * column.row_bytes
    return needed < _THINNEST * sum(map(touched, parts.values()))


def _stored_dtype(name: str, field: Field, casts: Mapping[str, Cast]) -> torch.dtype:
    """The dtype of elements as they are loaded: of slices whose samples are computed, that of their frames."""
    if not isinstance(field.column, Slices) or not field.column.blends:
        return field.dtype
    if name in casts:
        raise ValueError(
            f"ram_dtype= names the field {name!r}, whose samples are computed of stored rows: leave it out, "
            "and give the loader a cast"
        )
    return TORCH_DTYPES[field.column.element]


def _stored_shape(field: Field) -> tuple[int, ...]:
    """The shape of one row as it is loaded: of windows, of one frame."""
    return field.shape[1:] if isinstance(field.column, Windows | Slices) else field.shape


def bytes_once(field: Field) -> int:
    """Return the bytes of a field's rows with each stored byte once: in windows that overlap, and rows selected twice.

    Rows that differ in length count as often as they were selected.
    """
    if not isinstance(field.column, Column | Tiles | Windows | Slices):
        return field.nbytes
    once = _distinct(field.column)
    nbytes = once.rows * once.row_bytes
    if isinstance(once, Column):  # rows of a segment may overlap
        nbytes = min(nbytes, sum(_cover(rows, stride, once.row_bytes) for _, _, rows, stride in once.segments))
    return min(field.nbytes, nbytes)


def _cover(rows: int, stride: int, row_bytes: int) -> int:
    return (rows - 1) * min(stride, row_bytes) + row_bytes if rows else 0


def _distinct(column: AnyColumn) -> AnyColumn:
    """The rows to be loaded of a column: of windows the frames, of a selection each row once, in stored order."""
    if isinstance(column, Windows | Slices):
        return _distinct(column.frames)
    if column.selection is None:
        return column
    used = np.unique(column.selection)
    if isinstance(column, Tiles):
        return Tiles(column.parts).select(used)
    assert isinstance(column, Column)
    return Column(column.row_bytes, column.segments).select(used)


def _fill(plan: LoadPlan, arena: Arena, progress: bool | None, filling: Filling) -> None:
    tasks = list(_tasks(plan, arena.address))
    threads = max(_LEAST_THREADS, local_threads())
    pool = ThreadPool(threads, "memload-ram")
    try:
        with byte_bar("loading into RAM", sum(nbytes for *_, nbytes in tasks), progress) as bar:
            begun = {pool.submit(_loaded, filling, *task): task[2] for task in tasks}
            for done in as_completed(begun):
                done.result()
                bar.update(begun[done])
    finally:
        pool.shutdown(cancel_futures=True)


def _loaded(filling: Filling, call: Any, arguments: tuple[Any, ...], nbytes: int) -> None:
    try:
        filling.begin(nbytes)
        call(*arguments)
    finally:
        filling.end(nbytes)


def _tasks(plan: LoadPlan, address: int) -> Iterator[tuple[Any, tuple[Any, ...], int]]:
    """(function, arguments, bytes) of each piece, none above some megabytes."""
    for image in plan.files:
        for offset, nbytes in image.parts:
            for at in range(offset, offset + nbytes, _PIECE):
                n = min(_PIECE, offset + nbytes - at)
                yield image.storage.load, (at, address + at, n), n
        address += image.span
    for rows in plan.rows.values():
        step = _rows_at_once(rows)
        for first in range(0, rows.column.rows, step):
            numbers = np.arange(first, min(first + step, rows.column.rows))
            n = len(numbers) * rows.row_bytes
            yield _load_rows, (rows, numbers, address + first * rows.row_bytes, n), n
        address += rows.span


def _rows_at_once(image: RowImage) -> int:
    """Rows of one piece: whole chunks, each of which is decoded once, and addresses that vector stores like."""
    step = max(1, _PIECE // max(1, image.row_bytes))
    tiles = image.column.parts if isinstance(image.column, Tiles) else []
    whole = math.lcm(64, *(part.tile_shape[0] for part in tiles if not isinstance(part, Column)))
    return max(1, step // whole) * whole if whole * image.row_bytes < 8 * _PIECE else step


def _load_rows(image: RowImage, rows: NDArray[np.int64], address: int, nbytes: int) -> None:
    cast = image.cast
    if cast is None or (cast.dtype == image.dtype and not cast.computes):
        _core.load_rows(image.column, None, rows, address, nbytes)
    elif cast.computes:
        raw = torch.empty((len(rows), *image.shape), dtype=image.dtype, device="cpu")
        _core.load_rows(image.column, None, rows, raw.data_ptr(), raw.nbytes)
        made = cast.apply(raw).contiguous()
        ctypes.memmove(address, made.data_ptr(), nbytes)
    else:
        normed = cast.norm_removed and image.dtype == torch.uint8
        _core.load_rows(image.column, (code_of(image.dtype), code_of(cast.dtype), normed), rows, address, nbytes)


def _on(fields: Mapping[str, Field], plan: LoadPlan, arena: Arena, reason: str) -> dict[str, Field]:
    """The fields on what was loaded."""
    at = 0

    def storage(name: str, nbytes: int, span: int, stamp: tuple[int, int, int, int] | None = None) -> Storage:
        nonlocal at
        locator = f"{arena.locator} {arena.nbytes} {at}" if arena.locator else ""
        made = Storage.image(arena.owner, arena.address + at, nbytes, name, "ram", reason, locator, stamp)
        at += span
        return made

    images = {i.storage: storage(i.storage.name, i.storage.nbytes, i.span, i.storage.stamp) for i in plan.files}
    rows = {name: storage("", i.column.rows * i.row_bytes, i.span) for name, i in plan.rows.items()}
    found = {}
    for name, field in fields.items():
        if name in rows:
            found[name] = _on_rows(field, plan.rows[name], rows[name])
        else:
            column = on_storages(field.column, lambda one: images.get(one, one))
            found[name] = replace(field, column=column, blocks=None)
    return found


def _on_rows(field: Field, image: RowImage, storage: Storage) -> Field:
    dtype = field.dtype if image.cast is None else image.cast.dtype
    column = _selected(field.column, Column(image.row_bytes, [(storage, 0, image.column.rows, image.row_bytes)]))
    meant = field.meant if image.cast is None or image.cast == Cast(dtype) else None
    return replace(field, dtype=dtype, column=column, blocks=None, owners=(), meant=meant)


def _selected(column: AnyColumn, stored: Column) -> Any:
    """The rows of a column in its own order, of those that were loaded each once."""
    if isinstance(column, Windows | Slices):
        return on_frames(column, _selected(column.frames, stored))
    if column.selection is None:
        return stored
    return stored.select(np.unique(column.selection, return_inverse=True)[1])
