"""Pickle storages for other processes: by path, by the locator of shared memory, or as bytes.

Rows that were loaded into RAM unchanged from a file are sent as the file, which the receiver maps, so that not each
process has a copy. The receiver attaches to shared memory. A cache is sent as its budget and starts empty.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memload._core import OpenFiles, RowCache, Storage
from memload.errors import FormatError
from memload.kept_errors import level_outside
from memload.memory.arenas import attach
from memload.memory.budget import read_text


@dataclass(frozen=True)
class PackedCache:
    """A row cache of files; files with the same number share it."""

    number: int
    budget: int
    shrinks: bool


@dataclass(frozen=True)
class PackedTable:
    """A table of open descriptors; files with the same number share it."""

    number: int
    limit: int


@dataclass(frozen=True)
class PackedFile:
    """A file: its path, its length when pickled, and whether it is opened for each read rather than mapped.

    Attributes:
        stamp: that of the storage; None: not known.
        boot: the start of the machine on which it was pickled, since stamps of two machines say nothing.
        loaded: whether its rows were in RAM, where they stay as they are when the file is written to.
    """

    path: str
    nbytes: int
    closed: bool = False
    past_cache: bool = False
    tier: str = "mmap"
    reason: str = ""
    cache: PackedCache | None = None
    files: PackedTable | None = None
    stamp: tuple[int, int, int, int] | None = None
    boot: str = ""
    loaded: bool = False


@dataclass(frozen=True)
class PackedShared:
    """A part of memory that a process of this machine shares: locator and size of the whole, and the part's offset."""

    locator: str
    arena_nbytes: int
    at: int
    nbytes: int
    name: str
    reason: str


class RemoteSource(Protocol):
    """Where a set in a store lies, in a form that can be pickled."""

    def storage(self, number: int) -> Storage:
        """Return the mirror file of one of its files, mapped in this process."""
        ...


@dataclass(frozen=True)
class PackedMirror:
    """The mirror file of a file in a store: where the set lies, and the number of the file in it."""

    source: RemoteSource
    number: int
    nbytes: int


PackedStorage = PackedFile | PackedShared | PackedMirror | NDArray[np.uint8]


@dataclass(frozen=True)
class Unpacked:
    """The caches and tables that storages of one dataset share, by their pickled numbers."""

    caches: dict[int, RowCache] = field(default_factory=dict)
    tables: dict[int, OpenFiles] = field(default_factory=dict)

    def cache(self, packed: PackedCache | None) -> RowCache | None:
        """Return the cache; the first call makes it."""
        if packed is not None and packed.number not in self.caches:
            self.caches[packed.number] = RowCache(packed.budget, packed.shrinks)
        return None if packed is None else self.caches[packed.number]

    def table(self, packed: PackedTable | None) -> OpenFiles | None:
        """Return the table of open files; the first call makes it."""
        if packed is not None and packed.number not in self.tables:
            self.tables[packed.number] = OpenFiles(packed.limit)
        return None if packed is None else self.tables[packed.number]


def has_place(storage: Storage) -> bool:
    """Return whether another process of this machine can find the storage, so that it need not be sent as bytes."""
    return storage.mapped or bool(storage.locator) or (storage.is_image and bool(storage.name))


def place_of(
    storage: Storage, number: Callable[[RowCache | OpenFiles], int]
) -> PackedFile | PackedShared | PackedMirror:
    """Return the path or locator by which another process finds the storage; `number` numbers what storages share."""
    if storage.origin is not None and storage.mirror_number is not None:
        return PackedMirror(storage.origin.address, storage.mirror_number, storage.nbytes)
    if storage.locator:
        *locator, arena_nbytes, at = storage.locator.split()
        return PackedShared(" ".join(locator), int(arena_nbytes), int(at), storage.nbytes, storage.name, storage.reason)
    if storage.is_image:
        return PackedFile(storage.name, storage.nbytes, stamp=storage.stamp, boot=_boot(), loaded=True)
    cache, files = storage.cache, storage.files
    return PackedFile(
        storage.name,
        storage.nbytes,
        storage.closed,
        storage.past_cache,
        storage.tier,
        storage.reason,
        None if cache is None else PackedCache(number(cache), cache.budget, cache.shrinks),
        None if files is None else PackedTable(number(files), files.limit),
        storage.stamp,
        _boot(),
    )


def unpack_storage(packed: PackedStorage, shared: Unpacked) -> Storage:
    """Return the storage.

    Args:
        packed: the pickled form.
        shared: the objects that storages of the dataset share; new ones are added.

    Raises:
        FormatError: the length of a file has changed, or another file has taken its place.
        OSError: a file cannot be mapped.
        MemloadError: the process that shared its memory has ended.
    """
    if isinstance(packed, np.ndarray):
        return Storage.borrow(packed, packed.ctypes.data, packed.nbytes, "an array received from another process")
    if isinstance(packed, PackedShared):
        return _attached(packed)
    if isinstance(packed, PackedMirror):
        return packed.source.storage(packed.number)
    if packed.closed:
        return Storage.name_file(packed.path, packed.nbytes)
    cache, files = shared.cache(packed.cache), shared.table(packed.files)
    storage = Storage.map_file(packed.path, packed.past_cache, cache, packed.tier, packed.reason, files)
    if storage.nbytes != packed.nbytes:
        raise FormatError(
            f"{packed.path}: had {packed.nbytes} bytes when the dataset was made, now it has {storage.nbytes}; open "
            "the data set again, and send or save that"
        )
    _check_same(packed, storage)
    return storage


def _check_same(packed: PackedFile, storage: Storage) -> None:
    """Raise FormatError if the file is another one, not the same one written to, nor a copy that kept its time.

    Of rows that were in RAM, a file that was written to since may have others: then it warns.
    """
    if packed.stamp is None or storage.stamp is None or not packed.boot or packed.boot != _boot():
        return
    (device, inode, changed, born), (device_now, inode_now, changed_now, born_now) = packed.stamp, storage.stamp
    if device != device_now or changed == changed_now:
        return
    times = f"it was last changed {_at(changed)}, now {_at(changed_now)}"
    if (inode, born) != (inode_now, born_now):
        raise FormatError(
            f"{packed.path}: was replaced by another file of its length since the dataset was made: {times}; open the "
            "data set again, and send or save that"
        )
    if packed.loaded:
        warnings.warn(
            f"{packed.path}: may have been written to since its rows were loaded into RAM: {times}. This process reads "
            "them from the file; if they differ, open the data set again, and send or save that",
            RuntimeWarning,
            stacklevel=level_outside(),
        )


def _at(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9).isoformat(" ")


@functools.cache
def _boot() -> str:
    """Return what identifies this start of this machine."""
    return (read_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip()


def _attached(packed: PackedShared) -> Storage:
    arena = attach(packed.locator, packed.arena_nbytes)
    locator = f"{arena.locator} {packed.arena_nbytes} {packed.at}"
    return Storage.image(
        arena.owner, arena.address + packed.at, packed.nbytes, packed.name, "ram", packed.reason, locator
    )
