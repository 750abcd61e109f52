"""Memory for shards on their way to a store, which is used again.

To make new memory resident costs a multiple of all else that is done to the bytes of a shard.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from memload.formats.remote.link import link

LARGEST = 32 << 20
"""The most bytes of a shard that is written to memory."""
_MOST = 96 << 20  # bytes of all buffers of this process
_IDLE = 10.0  # seconds after which buffers that nobody took go


class UploadBuffers:
    """The buffers of this process; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[NDArray[np.uint8]] = []
        self._nbytes = 0  # of all buffers, free or not
        self._taken = 0  # how often one was taken

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory of at least `nbytes` bytes; None if that is too much for a shard, or with all others."""
        if nbytes > LARGEST:
            return None
        with self._lock:
            self._taken += 1
            fitting = [buffer for buffer in self._free if buffer.nbytes >= nbytes]
            if fitting:
                return self._removed(min(fitting, key=lambda buffer: buffer.nbytes))
            while self._free and self._nbytes + nbytes > _MOST:
                self._nbytes -= self._free.pop(0).nbytes
            if self._nbytes + nbytes > _MOST:
                return None
            self._nbytes += nbytes
        return np.empty(nbytes, np.uint8)

    def give(self, buffer: NDArray[np.uint8], lent: memoryview | None = None) -> None:
        """Give back what `take` returned.

        Args:
            buffer: the memory.
            lent: its bytes as a store got them. A store that still has them, as one in memory, keeps the buffer.
        """
        try:
            if lent is not None:
                lent.release()
        except BufferError:
            with self._lock:
                self._nbytes -= buffer.nbytes
            return
        with self._lock:
            self._free.append(buffer)
            taken = self._taken
        link().after(_IDLE, lambda: self._drop(taken))

    def _removed(self, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        self._free = [other for other in self._free if other is not buffer]
        return buffer

    def _drop(self, taken: int) -> None:
        """Drop the free buffers, if none was taken since."""
        with self._lock:
            if taken == self._taken:
                self._nbytes -= sum(buffer.nbytes for buffer in self._free)
                self._free.clear()


upload_buffers = UploadBuffers()
