"""Zarr arrays and groups in a local directory or zip file: chunks are read, and decoded, where they lie.

The zarr package reads the metadata, once. Then chunks are found by listing the directory: no row is read at open.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from memload._core import Chain, Column, Storage, TileGrid, Tiles
from memload.columns.fields import Field, check_size
from memload.dtypes import from_numpy_dtype
from memload.errors import FormatError, first_line
from memload.formats.members import Key, check_lengths, choose
from memload.formats.npz import data_offset
from memload.formats.packages import package
from memload.formats.tile_blocks import blocks_of
from memload.formats.zarr_layout import ABSENT, ZarrLayout, ZarrShardIndex, read_layout

MOST_MAPPED = 1024
"""The most mapped files of an array; the files of larger arrays are opened, read and closed chunk by chunk."""

MOST_TILES = 2**23
"""The most chunks of an array; each takes 32 bytes of memory."""


@dataclass(frozen=True)
class ChunkLocation:
    """The place of a chunk or shard: a part of a file; `name` is what messages call it, its path if that is ""."""

    path: str
    offset: int
    nbytes: int
    name: str = ""


def open_zarr(path: Path, key: Key, name: str | None) -> dict[str, Field]:
    """Return a Zarr array, or the arrays of a group, as fields.

    Args:
        path: a directory, or a zip file with uncompressed members.
        key: for a group, as in `choose`.
        name: the name of an array's field, by default "data"; or another name for the array that `key` selects.

    Raises:
        FormatError: it is damaged; or its codec, its dtype or its number of chunks is not supported.
        KeyError, TypeError, ValueError: as `choose` and `check_lengths`.
        ImportError: as `zarr_package`.
    """
    path = path.absolute()
    chosen = chosen_arrays(path, _arrays(path), key, name)
    listed = _listed(path)
    return {name: array_field(path, name, array, listed) for name, array in chosen.items()}


def chosen_arrays(path: Any, arrays: dict[str, Any], key: Key, name: str | None) -> dict[str, Any]:
    """Return the arrays that become fields, by their names; arguments and errors are those of `open_zarr`."""
    if set(arrays) == {""}:
        arrays = {name or "data": arrays[""]}
    chosen = choose(path, arrays, key, name)
    check_lengths(path, {name: array.shape[0] if array.shape else None for name, array in chosen.items()}, key)
    return chosen


def zarr_names(path: Path) -> list[str]:
    """Return the paths of the arrays of a group; "" for an array.

    Raises:
        FormatError, ImportError: as `open_zarr`.
    """
    return list(_arrays(path.absolute()))


def zarr_package(what: str) -> Any:
    """Return the package zarr, version 3.

    Args:
        what: the purpose, for the message.

    Raises:
        ImportError: it is not installed, or older; or this Python is older than 3.11, for which there is no zarr 3.
    """
    if sys.version_info < (3, 11):
        raise ImportError(f"{what}: needs zarr 3, which needs Python 3.11 or newer; this is Python 3.10")
    zarr = package("zarr", "zarr", what)
    if int(zarr.__version__.partition(".")[0]) < 3:
        raise ImportError(f'{what}: needs zarr 3, found {zarr.__version__}; upgrade it by pip install "memload[zarr]"')
    return zarr


def _arrays(path: Path) -> dict[str, Any]:
    zarr = zarr_package(str(path))
    try:
        store = zarr.storage.LocalStore(path, read_only=True) if path.is_dir() else zarr.storage.ZipStore(path)
        with store:
            return arrays_in(zarr, store)
    except Exception as error:  # what zarr raises depends on what is wrong with the metadata
        raise FormatError(f"{path}: zarr cannot read it: {first_line(error)}") from error


def arrays_in(zarr: Any, store: Any) -> dict[str, Any]:
    """Return the arrays of a store of zarr's by their paths, "" for one at its root; raises what zarr raises."""
    found = zarr.open(store, mode="r")
    members = {"": found} if isinstance(found, zarr.Array) else dict(found.members(max_depth=None))
    return {name: member for name, member in members.items() if isinstance(member, zarr.Array)}


class Chunks(Protocol):
    """Where the chunks and shards of arrays lie."""

    def below(self, folder: str, depth: int) -> dict[str, ChunkLocation]:
        """Return the places of all keys at most `depth` folders below a folder, by keys relative to it."""

    def storages(self, ends: Mapping[str, int]) -> list[Storage]:
        """Return a storage for each path, which is read up to `end` at least. More than MOST_MAPPED are not mapped."""

    def read_all(self, wanted: Sequence[tuple[ChunkLocation, int, int]]) -> list[bytes]:
        """Return parts of chunks: of each (place, begin within it, bytes)."""


def array_field(path: Any, name: str, array: Any, listed: Chunks) -> Field:
    """Return an array as a field.

    Args:
        path: where it lies, for messages.
        name: its name, for messages.
        array: the `zarr.Array`.
        listed: its chunks.

    Raises:
        FormatError: it is damaged, or not supported.
    """
    try:
        layout = read_layout(array)
        dtype = from_numpy_dtype(layout.dtype)
        check_size(dtype, layout.shape[1:], layout.shape[0])
        if math.prod(layout.tiles) > MOST_TILES:
            raise FormatError(f"it has {math.prod(layout.tiles):,} chunks; memload reads up to {MOST_TILES:,}")
        column = _column(layout, _found(layout, listed.below(array.path, len(layout.shape))), path, listed)
    except FormatError as error:
        raise FormatError(f"{path}: array {name!r}: {error}") from None
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise FormatError(f"{path}: array {name!r}: {first_line(error)}") from error
    return Field(dtype, layout.shape[1:], column, blocks=blocks_of(column, layout.dtype.itemsize))


def _found(layout: ZarrLayout, keys: Mapping[str, ChunkLocation]) -> dict[tuple[int, ...], ChunkLocation]:
    """Return the places of the written chunks or shards, by their coordinates."""
    found = {layout.coordinates(key): place for key, place in keys.items()}
    return {at: place for at, place in found.items() if at is not None}


def _column(
    layout: ZarrLayout, found: Mapping[tuple[int, ...], ChunkLocation], path: Any, listed: Chunks
) -> Column | Tiles:
    rows, row_bytes = layout.shape[0], math.prod(layout.shape[1:]) * layout.dtype.itemsize
    if rows == 0 or row_bytes == 0:
        return Column(row_bytes, [(Storage.borrow(None, 0, 0, str(path)), 0, rows, 0)] if row_bytes == 0 else [])
    numbers = {one: number for number, one in enumerate(dict.fromkeys(place.path for place in found.values()))}
    table = np.full((*layout.tiles, 4), (-1, 0, 0, 0), np.int64)
    indices = iter(listed.read_all([_index_of(layout.shard, one) for one in found.values()] if layout.shard else []))
    for at, place in found.items():
        if layout.shard is None:
            table[at] = (numbers[place.path], place.offset, place.nbytes, 0)
        else:
            _enter_shard(layout, table, at, place, numbers[place.path], next(indices))
    mapped = len(numbers) <= MOST_MAPPED
    ends = {place.path: place.offset + place.nbytes for place in found.values()}
    storages = listed.storages({one: ends[one] for one in numbers})
    whole_rows = not layout.filters and not layout.order and layout.tile_shape[1:] == layout.shape[1:]
    if whole_rows and mapped and (table[..., 0] >= 0).all():
        return Column(row_bytes, [*_segments(layout, table.reshape(-1, 4), storages, row_bytes)])
    grid = TileGrid(
        rows,
        layout.dtype.itemsize,
        list(layout.shape[1:]),
        list(layout.tile_shape),
        storages,
        table.reshape(-1, 4),
        Chain(list(layout.filters)) if layout.filters or not mapped else None,
        layout.fill,
        order=list(layout.order),
    )
    return Tiles([grid])


def _segments(
    layout: ZarrLayout, table: NDArray[np.int64], storages: list[Storage], row_bytes: int
) -> Iterator[tuple[Storage, int, int, int]]:
    step = layout.tile_shape[0]
    for band, (number, offset, nbytes, _) in enumerate(table.tolist()):
        if nbytes != step * row_bytes:
            raise FormatError(f"its chunk {band} has {nbytes} bytes, expected {step * row_bytes}")
        yield storages[number], offset, min(step, layout.shape[0] - band * step), row_bytes


def _index_of(index: ZarrShardIndex, place: ChunkLocation) -> tuple[ChunkLocation, int, int]:
    """Return where the table of a shard's chunks lies."""
    return place, max(0, place.nbytes - index.nbytes) if index.at_end else 0, min(index.nbytes, place.nbytes)


def _enter_shard(
    layout: ZarrLayout, table: NDArray[np.int64], at: tuple[int, ...], place: ChunkLocation, number: int, stored: bytes
) -> None:
    """Enter the chunks of a shard into the table of chunks; `stored` are the bytes of its own."""
    index = layout.shard
    assert index is not None
    try:
        found = index.parse(stored)
    except FormatError as error:
        raise FormatError(f"{place.name or place.path}: {error}") from None
    per = tuple(whole // side for whole, side in zip(layout.file_shape, layout.tile_shape, strict=True))
    inside = tuple(slice(k * n, min((k + 1) * n, count)) for k, n, count in zip(at, per, layout.tiles, strict=True))
    written = found[:, 0] != ABSENT
    if (found[written] > place.nbytes).any() or (found[written].sum(axis=1) > place.nbytes).any():
        raise FormatError(f"{place.name or place.path}: the index of its chunks points behind the end of the shard")
    entries = np.zeros((index.chunks, 4), np.int64)
    entries[:, 0] = np.where(written, number, -1)
    entries[written, 1:3] = found[written].astype(np.int64)
    entries[written, 1] += place.offset
    cut = tuple(slice(0, one.stop - one.start) for one in inside)
    table[inside] = entries.reshape(*per, 4)[cut]


@dataclass(frozen=True)
class _Listing:
    """The chunks of a directory, or a zip file."""

    path: Path
    members: Mapping[str, ChunkLocation] | None = field(repr=False)  # of a zip file

    def below(self, folder: str, depth: int) -> dict[str, ChunkLocation]:
        """Return the places of all keys at most `depth` folders below a folder, by keys relative to it."""
        if self.members is None:
            base = str(self.path / folder)
            return {place.path[len(base) + 1 :]: place for place in _walk(base, depth)}
        prefix = f"{folder}/" if folder else ""
        return {name.removeprefix(prefix): place for name, place in self.members.items() if name.startswith(prefix)}

    def storages(self, ends: Mapping[str, int]) -> list[Storage]:
        """Return a storage for each file, mapped if there are few."""
        mapped = len(ends) <= MOST_MAPPED
        return [Storage.map_file(path) if mapped else Storage.name_file(path, end) for path, end in ends.items()]

    def read_all(self, wanted: Sequence[tuple[ChunkLocation, int, int]]) -> list[bytes]:
        """Return parts of chunks: of each (place, begin within it, bytes)."""
        read = []
        for place, begin, nbytes in wanted:
            with Path(place.path).open("rb") as file:
                file.seek(place.offset + begin)
                read.append(file.read(nbytes))
        return read


def _listed(path: Path) -> _Listing:
    if path.is_dir():
        return _Listing(path, None)
    members = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise FormatError(f"{path}: {info.filename} is compressed by the zip file; write it with ZIP_STORED")
            members[info.filename] = ChunkLocation(str(path), data_offset(path, file, info), info.file_size)
    return _Listing(path, members)


def _walk(folder: str, depth: int) -> Iterator[ChunkLocation]:
    """Yield the files at most `depth` folders below a folder; the limit ends circles of links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if depth:
                    yield from _walk(entry.path, depth - 1)
            else:
                yield ChunkLocation(entry.path, 0, entry.stat().st_size)
