"""The shards of one attempt at a part on their way to a store: in memory, or in a folder of this machine."""

from __future__ import annotations

import mmap
from collections import deque
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memload.formats.remote.upload_buffers import upload_buffers
from memload.formats.remote.upload_folder import UploadFolder
from memload.formats.remote.writable_objects import WritableObjects

UPLOADING = 64 << 20
"""The most bytes of shards that are uploaded at once; a larger one is uploaded alone."""
_LEAVING = 2.0  # seconds that uploads under way are waited for when they are not wanted any more


class Uploads:
    """Shards that are uploaded while the next ones are written. It belongs to the process that made it.

    Args:
        objects: what the shards become.

    Attributes:
        folder: where those are written that get no memory; a shard's file has the name of the shard.
        names: of the shards so far; each may be in the store, whole.
    """

    def __init__(self, objects: WritableObjects) -> None:
        self.folder = UploadFolder()
        self.names: list[str] = []
        self._objects = objects
        self._under_way: deque[_Upload] = deque()
        self._memory: NDArray[np.uint8] | None = None  # of the shard that is written

    @staticmethod
    def most_on_disk(shard_bytes: int) -> int:
        """Return the bytes of a shard that is written, of its compressed fields, and of shards that are uploaded."""
        return 2 * shard_bytes + max(shard_bytes, UPLOADING)

    def memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory for the next shard, which the next `add` takes; None if it is too large."""
        self._memory = upload_buffers.take(nbytes)
        return self._memory

    def add(self, name: str, nbytes: int) -> None:
        """Upload a shard that is complete.

        Raises:
            PermissionError, FileNotFoundError, ShardWriteError: a shard before it cannot be uploaded.
        """
        while self._under_way and (self._under_way[0].done.done() or self._nbytes + nbytes > UPLOADING):
            self._end_first()
        memory, self._memory = self._memory, None
        file = self.folder.path / name if memory is None else None
        content: Any = _mapped(self.folder.path / name) if memory is None else memoryview(memory.data)[:nbytes]
        self.names.append(name)
        self._under_way.append(_Upload(self._objects.upload(name, content), content, file, memory))

    def finish(self) -> None:
        """Wait until all shards are in the store; raises as `add`."""
        while self._under_way:
            self._end_first()

    def cancel(self, *others: Future[None]) -> None:
        """Wait for a moment, and cancel what goes on then: it could write an object after that was removed.

        Args:
            others: further requests that write, which are treated likewise.
        """
        for request in wait([*others, *(upload.done for upload in self._under_way)], _LEAVING).not_done:
            request.cancel()

    def close(self) -> None:
        """Give all memory back, and remove the folder. May be called again."""
        if self._memory is not None:
            upload_buffers.give(self._memory)
            self._memory = None
        while self._under_way:
            self._under_way.popleft().give_back()
        self.folder.remove()

    @property
    def _nbytes(self) -> int:
        return sum(len(upload.content) for upload in self._under_way)

    def _end_first(self) -> None:
        """Wait for the upload that began first, and remove its file, or give its memory back."""
        upload = self._under_way[0]
        upload.done.result()
        self._under_way.popleft()
        upload.give_back()
        if upload.file is not None:
            upload.file.unlink()


class _Upload(NamedTuple):
    """An upload under way: what ends with it, its bytes, and its file or its memory."""

    done: Future[None]
    content: Any
    file: Path | None
    memory: NDArray[np.uint8] | None

    def give_back(self) -> None:
        """Give the memory back, if nothing reads it any more."""
        if self.memory is not None:
            upload_buffers.give(self.memory, self.content)


def _mapped(path: Path) -> mmap.mmap:
    """Return the bytes of a file that has some, mapped: what was written a moment ago is still in memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
