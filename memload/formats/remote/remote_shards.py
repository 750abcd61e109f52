"""Open a set of shards that lies in a store: its index is read, and its shards are fetched when they are needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import xxhash

from memload._core import Storage
from memload.columns.fields import AnyColumn, Field, row_nbytes
from memload.errors import ShardFormatError, ShardReadError
from memload.formats.paths import PathLike
from memload.formats.remote.addresses import Address
from memload.formats.remote.block_cache import BlockCache, Keeping
from memload.formats.remote.cache_folder import ETAGS, LEAST_BLOCK, ROOM, SET, TABLE, RemoteFile
from memload.formats.remote.objects import Objects
from memload.formats.shards.index import (
    INDEX_NAME,
    PARTS_FOLDER,
    PARTS_HERE,
    PARTS_OF_JOB,
    ROWS_FOLDER,
    ShardIndex,
    ShardRecord,
    offset_tensors,
    parse_index,
    tensors_of,
)
from memload.formats.shards.lookups import looked_up
from memload.formats.shards.ragged_shards import MappedShard
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.reading import check_tensors, fields_on
from memload.formats.shards.safetensors_header import ShardLayout, TensorEntry, header_length, parse_header
from memload.formats.shards.stated_offsets import raw_offsets
from memload.sizes import parse_size

BLOCK, SMALL_BLOCK = 1 << 20, LEAST_BLOCK
"""Bytes of a block; of a set with rows of more than LARGE_ROW bytes, so that little but the row itself is fetched."""
LARGE_ROW = 256 << 10
_LEAST_BLOCKS = 1024  # that a cache has room for, as far as blocks may be smaller: a batch of scattered rows takes many
_HEADER_GUESS = 1 << 14  # bytes of a shard that are asked for, where the index does not say where its tensors lie
LEAST_ROOM = 1 << 20
DEFAULT_RAM = 1 << 30


def keeping_of(cache: PathLike | None, cache_bytes: int | str | None) -> Keeping:
    """Return where the blocks of a set are kept, by the arguments of `memload.open`.

    Raises:
        ValueError: `cache_bytes` is no size, or too small; or `cache` is an empty path.
    """
    if cache is not None and not os.fspath(cache):
        raise ValueError("cache= is empty: give the path of a folder, or leave it out to keep the blocks in RAM")
    folder = None if cache is None else str(Path(cache).absolute())
    if cache_bytes is not None:
        nbytes = parse_size(cache_bytes)
    elif folder is None:
        nbytes = DEFAULT_RAM
    else:
        nbytes = _half_of_disk(Path(folder))
    if nbytes < LEAST_ROOM:
        raise ValueError(f"cache_bytes is at least {LEAST_ROOM >> 20} MiB ({LEAST_ROOM:,} bytes), got {cache_bytes!r}")
    return Keeping(folder, nbytes)


def _half_of_disk(folder: Path) -> int:
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return max(LEAST_ROOM, shutil.disk_usage(there).free // 2)


def open_remote(address: Address, keeping: Keeping) -> dict[str, Field] | None:
    """Return the fields of the set of shards at an address; None if there is no index.

    Raises:
        FileNotFoundError, PermissionError: the store has no such bucket, or refuses it.
        ShardReadError: the store failed again and again.
        ShardFormatError: the index is malformed, or a shard does not fit it.
        OSError, FileExistsError: the folder of the cache cannot be used.
        ValueError: the address is malformed.
    """
    outer = _set_in(address, "", keeping)
    if outer is None:
        return None
    inner = None if outer.index.inner is False else _set_in(address, f"{ROWS_FOLDER}/", keeping)
    if inner is None:
        return outer.fields()
    return looked_up(address.url, outer.fields(), f"{address.url}/{ROWS_FOLDER}", inner.fields())


def _set_in(address: Address, folder: str, keeping: Keeping) -> RemoteSet | None:
    """Return the set in a folder at an address; None if there is no index."""
    (content,) = address.objects().read_whole([f"{folder}{INDEX_NAME}"])
    return None if content is None else SetAddress(address, folder, keeping, digest_of(content)).set_of(content)


def why_no_set(objects: Objects) -> str:
    """Say what is at an address that has no index."""
    with contextlib.suppress(OSError, NotImplementedError):  # web servers list nothing
        names = objects.sizes(f"{PARTS_FOLDER}/")
        if f"{PARTS_FOLDER}/job" in names:
            return PARTS_OF_JOB
        if names:
            return PARTS_HERE
    what = f"no {INDEX_NAME} there, so this is no set of shards of memload's, and no metadata of Zarr"
    return f"{what}; give the folder that has one"


@dataclass(frozen=True)
class RemoteSet:
    """A set in a store.

    Attributes:
        index: its index.
        cache: its blocks in this process.
    """

    index: ShardIndex
    cache: BlockCache

    @property
    def objects(self) -> Objects:
        """What reads the objects of the set."""
        assert isinstance(self.cache.objects, Objects)
        return self.cache.objects

    def fields(self) -> dict[str, Field]:
        """Return the fields, whose rows are fetched when they are read."""
        layouts, names = self._layouts(), offset_tensors(self.index.fields)
        entries = [
            (number, layout.tensors[name], self._stated(number, name, layout.tensors[name]))
            for number, layout in enumerate(layouts)
            for name in names
        ]
        read = iter(self._read([(number, at.begin, at.end) for number, at, raw in entries if raw is None]))
        parts: list[dict[int, bytes]] = [{} for _ in layouts]
        for number, at, raw in entries:
            parts[number][at.begin] = next(read) if raw is None else raw
        shards = [
            MappedShard(self.cache.storage(number), layout, shard, _reader(parts[number]))
            for number, (shard, layout) in enumerate(zip(self.index.shards, layouts, strict=True))
        ]
        return fields_on(self.index, shards)

    def _stated(self, number: int, name: str, entry: TensorEntry) -> bytes | None:
        """Return the bytes of a tensor of offsets of a shard that the index states; None if it does not."""
        shard = self.index.shards[number]
        try:
            return raw_offsets(shard.offsets[name], entry.end - entry.begin) if name in shard.offsets else None
        except ShardFormatError as error:
            where = f"{self.objects.url_of(INDEX_NAME)}: {shard.file}, tensor {name!r}"
            raise ShardFormatError(f"{where}: {error}") from None

    def _read(self, wanted: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return parts (number of the shard, begin, end) of shards, which have to be those whose blocks are read."""
        parts = self.objects.parts([(self.index.shards[number].file, begin, end) for number, begin, end in wanted])
        came = zip(wanted, parts, strict=True)
        self.cache.check([(number, begin, part) for (number, begin, _), part in came if part is not None])
        return [b"" if part is None else bytes(part.data) for part in parts]

    def _layouts(self) -> list[ShardLayout]:
        layouts = [_stated_layout(shard, self.index) for shard in self.index.shards]
        unknown = [k for k, layout in enumerate(layouts) if layout is None]
        for k, layout in zip(unknown, self._read_layouts(unknown), strict=True):
            layouts[k] = layout
        checked = [layout for layout in layouts if layout is not None]
        for shard, layout in zip(self.index.shards, checked, strict=True):
            check_tensors(self.objects.url_of(shard.file), layout, shard, self.index.fields)
        return checked

    def _read_layouts(self, numbers: Sequence[int]) -> list[ShardLayout]:
        objects, shards = self.objects, [self.index.shards[number] for number in numbers]
        guesses = [min(_HEADER_GUESS, shard.nbytes) for shard in shards]
        starts = self._read([(number, 0, guess) for number, guess in zip(numbers, guesses, strict=True)])
        ends = []
        for shard, start in zip(shards, starts, strict=True):
            try:
                ends.append(8 + header_length(start, shard.nbytes))
            except ShardFormatError as error:
                raise ShardFormatError(f"{objects.url_of(shard.file)}: {error}") from None
        rest = self._read(
            [(number, min(len(start), end), end) for number, start, end in zip(numbers, starts, ends, strict=True)]
        )
        found = []
        for shard, start, more in zip(shards, starts, rest, strict=True):
            try:
                found.append(parse_header(start + more, shard.nbytes))
            except ShardFormatError as error:
                raise ShardFormatError(f"{objects.url_of(shard.file)}: {error}") from None
        return found


@dataclass(frozen=True)
class SetAddress:
    """By what another process finds the blocks of a set.

    Attributes:
        address: where the set lies.
        folder: "", or that of a set inside it, with a slash at its end.
        keeping: where blocks are kept.
        digest: of its index when it was opened, see `digest_of`.
    """

    address: Address
    folder: str
    keeping: Keeping
    digest: str

    def storage(self, number: int) -> Storage:
        """Return the mirror file of a shard, mapped in this process.

        Raises:
            ShardReadError: the set has another index than when it was opened.
            Others: as `open_remote`.
        """
        content = self._content
        cache = shared_cache(self, content, lambda: _cache_of(self, self._objects, self._parsed(content), content))
        return cache.storage(number)

    def set_of(self, content: bytes) -> RemoteSet:
        """Return the set, whose index has these bytes. Raises ShardFormatError."""
        index = self._parsed(content)
        return RemoteSet(index, shared_cache(self, content, lambda: _cache_of(self, self._objects, index, content)))

    @property
    def _objects(self) -> Objects:
        return self.address.objects(self.folder)

    @cached_property
    def _content(self) -> bytes:
        """The bytes of the index, which are read once for all shards."""
        objects = self._objects
        content = objects.read(INDEX_NAME)
        if (found := digest_of(content)) != self.digest:
            url = objects.url_of(INDEX_NAME)
            raise ShardReadError(
                f"{url}: the set was replaced since the dataset was opened that came here from another process or from "
                f"a pickle: expected the index with the hash {self.digest}, got {found}; open the set again, and send "
                "that dataset",
                file=url,
            )
        return content

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_content"}

    def _parsed(self, content: bytes) -> ShardIndex:
        try:
            return parse_index(content)
        except ShardFormatError as error:
            raise ShardFormatError(f"{self._objects.url_of(INDEX_NAME)}: {error}") from error.__cause__


def digest_of(content: bytes) -> str:
    """Return what tells an index from another one: its XXH3-128 in hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(content))


_caches: weakref.WeakValueDictionary[Any, BlockCache] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_cache(where: Any, content: bytes, make: Callable[[], BlockCache]) -> BlockCache:
    """Return the blocks of what lies at an address, which a process has once for each address, keeping and content.

    Those in a folder that was removed since are left to whoever has them.
    """
    key = (where, content, os.getpid())
    with _lock:
        known = _caches.get(key) if isinstance(where.address.given, str) else None
        if known is not None and known.table.is_there:
            return known
        made = make()
        if isinstance(where.address.given, str):
            _caches[key] = made
        return made


def _cache_of(where: SetAddress, objects: Objects, index: ShardIndex, content: bytes) -> BlockCache:
    files, block = [RemoteFile(shard.file, shard.nbytes) for shard in index.shards], _block_bytes(index, where.keeping)
    if {file.name for file in files} & {ROOM, SET, TABLE, ETAGS}:
        raise ShardFormatError(f"{objects.url_of(INDEX_NAME)}: a shard has the name of a file of caches")
    return BlockCache(objects, content, files, block, where.keeping, where, partial(_row_at, index))


def _row_at(index: ShardIndex, number: int, offset: int) -> tuple[str, int] | None:
    """Return the first field and row that have a byte of a shard, or bytes behind it.

    None where the index does not say it: of compressed fields and items of ragged ones, and in an older index.
    """
    layout = _stated_layout(index.shards[number], index)
    tensors = {} if layout is None else layout.tensors
    for name, entry in sorted(tensors.items(), key=lambda one: one[1].begin):
        if entry.end <= max(offset, entry.begin):
            continue
        field = index.fields.get(name)
        if field is None or isinstance(field, RaggedSpec) or field.codec is not None:
            return None
        return name, max(0, offset - entry.begin) // field.row_bytes
    return None


def _reader(parts: dict[int, bytes]) -> Callable[[int, int], bytes]:
    return lambda begin, end: parts[begin][: end - begin]


def _stated_layout(shard: ShardRecord, index: ShardIndex) -> ShardLayout | None:
    """Return the layout that the index states; None if it states none."""
    if shard.tensors is None:
        return None
    forms = tensors_of(index.fields, shard.rows, shard.items)
    entries = {}
    for name, (begin, end) in shard.tensors.items():
        dtype, shape = forms.get(name, (torch.uint8, (end - begin,)))
        entries[name] = TensorEntry(dtype, shape, begin, end)
        if row_nbytes(dtype, shape) != end - begin:
            raise ShardFormatError(
                f"{shard.file}: tensor {name!r} has {row_nbytes(dtype, shape)} bytes, not {end - begin}"
            )
    return ShardLayout(entries, shard.nbytes)


def _block_bytes(index: ShardIndex, keeping: Keeping) -> int:
    largest = max(
        (row_nbytes(f.dtype, f.shape) for f in index.fields.values() if not isinstance(f, RaggedSpec)), default=0
    )
    many = 1 << max(
        0, (keeping.nbytes // _LEAST_BLOCKS).bit_length() - 1
    )  # the largest power of two that leaves so many
    return SMALL_BLOCK if largest > LARGE_ROW else min(max(many, SMALL_BLOCK), BLOCK)


def origins_of(columns: Sequence[AnyColumn]) -> list[BlockCache]:
    """Return what fetches the bytes of columns, each once; none for rows of files and of memory."""
    found = {storage.origin: None for column in columns for storage in column.storages if storage.origin is not None}
    return list(found)
