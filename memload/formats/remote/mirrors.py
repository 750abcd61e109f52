"""The mirror files of a set: sparse files of its shards' own layout, in a folder, or in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from mmap import PAGESIZE
from pathlib import Path

import numpy as np

from memload._core import BlockTable, Storage
from memload.errors import ShardReadError
from memload.formats.remote.cache_folder import CachedSet, RemoteFile
from memload.formats.remote.descriptors import Descriptor, Descriptors, identity_of


class Mirrors:
    """The mirror files of a set in a folder.

    Attributes:
        reserve: whether the file system is asked for the space of blocks before they are written.
    """

    reserve = True

    def __init__(self, entry: CachedSet, table: BlockTable) -> None:
        self._entry = entry
        if not entry.has_mirrors:  # else the folder of the cache would have mended it
            raise ShardReadError(
                f"{entry.path}: a mirror file of a shard of {entry.url} is missing there, or has another length than "
                "the shard, while a process reads the set; open it again once that process has closed it"
            )
        self._known = {file.name: identity_of((entry.path / file.name).stat()) for file in entry.files}
        self._open = Descriptors(entry.path, self._known)
        if not table.is_there:
            raise self._removed(entry.path)

    def place(self, number: int) -> tuple[Descriptor, int]:
        """Return the descriptor of a file, and where it begins there."""
        return self._open.of(self._entry.files[number].name), 0

    def map(self, number: int, name: str, table: BlockTable, origin: object) -> Storage:
        """Map a file, which errors call `name`."""
        path = self._entry.path / self._entry.files[number].name
        # An overlay copies a file that is opened to be written. The copy is to be mapped: what is fetched goes there.
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        storage = Storage.mirror(str(path), name, table, number, origin)
        if identity_of(path.stat()) != self._known[path.name]:
            raise self._removed(path)
        return storage

    def _removed(self, path: Path) -> ShardReadError:
        return ShardReadError(f"{path}: it was removed or replaced while {self._entry.url} was opened; open it again")

    def close(self) -> None:
        """Close the descriptors."""
        self._open.close()


class MirrorsInMemory:
    """The mirror files of a set as parts of one file in memory.

    Attributes:
        reserve: likewise; memory that is reserved would be filled with zeros.
    """

    reserve = False

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self._files = files
        ends = np.cumsum([-(-file.nbytes // PAGESIZE) * PAGESIZE for file in files], dtype=np.int64)
        self._begins = [0, *ends.tolist()]
        self._file = Descriptor.of_memory("memload-blocks", self._begins[-1])

    def place(self, number: int) -> tuple[Descriptor, int]:
        """Return the descriptor of the file, and where a shard begins there."""
        return self._file, self._begins[number]

    def map(self, number: int, name: str, table: BlockTable, origin: object) -> Storage:
        """Map the part of one shard, which errors call `name`."""
        path, nbytes = f"/proc/self/fd/{self._file.number}", self._files[number].nbytes
        return Storage.mirror(path, name, table, number, origin, self._begins[number], nbytes)

    def close(self) -> None:
        """Do nothing: the descriptor ends with this object."""


def read_at(file: Descriptor, offset: int, nbytes: int) -> bytes:
    """Return bytes of a file; fewer where it ends. Raises OSError."""
    pieces: list[bytes] = []
    while nbytes and (piece := os.pread(file.number, nbytes, offset)):
        pieces.append(piece)
        nbytes -= len(piece)
        offset += len(piece)
    return b"".join(pieces)
