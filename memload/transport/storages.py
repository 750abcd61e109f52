"""Storages on their way to another process: by path, by the place of shared memory, or as bytes.

Rows that were loaded into RAM as they lie in a file travel as the file, which the receiver maps: a copy for each
process is what nobody wants. Shared memory is found again. A cache travels as its budget, and begins empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memload._core import OpenFiles, RowCache, Storage
from memload.errors import FormatError
from memload.tiers.arenas import attach


@dataclass(frozen=True)
class PackedCache:
    """The cache of files: those with the same number share it."""

    number: int
    budget: int
    shrinks: bool


@dataclass(frozen=True)
class PackedTable:
    """What keeps descriptors open: files with the same number share it."""

    number: int
    limit: int


@dataclass(frozen=True)
class PackedFile:
    """A file: its path, the length it had, and whether it is opened for each read, rather than mapped."""

    path: str
    nbytes: int
    closed: bool = False
    past_cache: bool = False
    tier: str = "mmap"
    reason: str = ""
    cache: PackedCache | None = None
    files: PackedTable | None = None


@dataclass(frozen=True)
class PackedShared:
    """A part of memory that a process of this machine shares: locator and bytes of all of it, and where the part is."""

    locator: str
    arena_nbytes: int
    at: int
    nbytes: int
    name: str
    reason: str


PackedStorage = PackedFile | PackedShared | NDArray[np.uint8]


@dataclass(frozen=True)
class Unpacked:
    """What storages of one dataset share, by the numbers that it travelled with."""

    caches: dict[int, RowCache] = field(default_factory=dict)
    tables: dict[int, OpenFiles] = field(default_factory=dict)

    def cache(self, packed: PackedCache | None) -> RowCache | None:
        """Return the cache, made when it is first asked for."""
        if packed is not None and packed.number not in self.caches:
            self.caches[packed.number] = RowCache(packed.budget, packed.shrinks)
        return None if packed is None else self.caches[packed.number]

    def table(self, packed: PackedTable | None) -> OpenFiles | None:
        """Return the table of open files, made when it is first asked for."""
        if packed is not None and packed.number not in self.tables:
            self.tables[packed.number] = OpenFiles(packed.limit)
        return None if packed is None else self.tables[packed.number]


def has_place(storage: Storage) -> bool:
    """Whether another process of this machine can find the storage: then it does not travel as bytes."""
    return storage.mapped or bool(storage.locator) or (storage.is_image and bool(storage.name))


def place_of(storage: Storage) -> PackedFile | PackedShared:
    """Return where another process finds the storage."""
    if storage.locator:
        *locator, arena_nbytes, at = storage.locator.split()
        return PackedShared(" ".join(locator), int(arena_nbytes), int(at), storage.nbytes, storage.name, storage.reason)
    if storage.is_image:
        return PackedFile(storage.name, storage.nbytes)
    cache, files = storage.cache, storage.files
    return PackedFile(
        storage.name,
        storage.nbytes,
        storage.closed,
        storage.past_cache,
        storage.tier,
        storage.reason,
        None if cache is None else PackedCache(id(cache), cache.budget, cache.shrinks),
        None if files is None else PackedTable(id(files), files.limit),
    )


def unpack_storage(packed: PackedStorage, shared: Unpacked) -> Storage:
    """Return the storage.

    Args:
        packed: what travelled.
        shared: what others of the dataset share, made so far; gets more.

    Raises:
        FormatError: a file has another length than it had.
        OSError: a file cannot be mapped.
        MemloadError: the process that shared memory has ended.
    """
    if isinstance(packed, np.ndarray):
        return Storage.borrow(packed, packed.ctypes.data, packed.nbytes, "an array received from another process")
    if isinstance(packed, PackedShared):
        return _attached(packed)
    if packed.closed:
        return Storage.name_file(packed.path, packed.nbytes)
    cache, files = shared.cache(packed.cache), shared.table(packed.files)
    storage = Storage.map_file(packed.path, packed.past_cache, cache, packed.tier, packed.reason, files)
    if storage.nbytes != packed.nbytes:
        raise FormatError(
            f"{packed.path}: had {packed.nbytes} bytes when the dataset was made, now it has {storage.nbytes}"
        )
    return storage


def _attached(packed: PackedShared) -> Storage:
    arena = attach(packed.locator, packed.arena_nbytes)
    locator = f"{arena.locator} {packed.arena_nbytes} {packed.at}"
    return Storage.image(
        arena.owner, arena.address + packed.at, packed.nbytes, packed.name, "ram", packed.reason, locator
    )
