"""Write the blocks of a compressed field of a shard: rows come in any number, and bytes leave block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from memload.formats.codecs.codec import Codec
from memload.formats.shards.spool import Spool
from memload.memory.threads import ThreadPool

_AT_ONCE = 2**24  # bytes of rows that are encoded before anything of them is written


class CodedRun:
    """The encoded blocks of one field while a shard is written.

    Args:
        spool: stores the encoded bytes.
        codec: the codec with all defaults resolved.
        element: the bytes of an element.
        row_bytes: the bytes of a row.
        block_rows: the rows under one checksum; whole blocks.
    """

    def __init__(self, spool: Spool, codec: Codec, element: int, row_bytes: int, block_rows: int) -> None:
        self.sizes: list[int] = []  # of the blocks
        self._codec = codec
        self._chain = codec.chain(element)
        self._rows = codec.rows or 1
        self._pending = np.empty((self._rows, row_bytes), dtype=np.uint8)  # rows that make no whole block yet
        self._waiting = 0
        self._sums = BlockSums(block_rows // self._rows)
        self._spool = spool

    @property
    def nbytes(self) -> int:
        """The encoded bytes of all blocks so far."""
        return self._spool.nbytes

    def write(self, data: NDArray[np.uint8]) -> None:
        """Append rows (n, row_bytes)."""
        at = 0
        if self._waiting:
            at = min(len(data), self._rows - self._waiting)
            self._keep(data[:at])
            if self._waiting < self._rows:
                return
            self._encode([self._take()])
        whole = at + (len(data) - at) // self._rows * self._rows
        step = self._rows * max(1, _AT_ONCE // max(1, self._pending.nbytes))
        for start in range(at, whole, step):
            stop = min(whole, start + step)
            self._encode([data[first : first + self._rows] for first in range(start, stop, self._rows)])
        self._keep(data[whole:])

    def finish(self) -> tuple[str, ...]:
        """Encode the pending rows, and return the checksums."""
        if self._waiting:
            self._encode([self._take()])
        return self._sums.finish()

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of all blocks in order, after `finish`."""
        return self._spool.pieces()

    def close(self) -> None:
        """Free the disk space. May be called again."""
        self._spool.close()

    def _keep(self, data: NDArray[np.uint8]) -> None:
        self._pending[self._waiting : self._waiting + len(data)] = data
        self._waiting += len(data)

    def _take(self) -> NDArray[np.uint8]:
        count, self._waiting = self._waiting, 0
        return self._pending[:count]

    def _encode(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        if len(blocks) == 1:
            self._put(self._encoded(blocks[0]))
            return
        with ThreadPool(min(len(blocks), len(os.sched_getaffinity(0)))) as threads:
            for encoded in threads.map(self._encoded, blocks):
                self._put(encoded)

    def _put(self, encoded: bytes) -> None:
        self._spool.write(encoded)
        self._sums.add(encoded)
        self.sizes.append(len(encoded))

    def _encoded(self, block: NDArray[np.uint8]) -> bytes:
        return self._codec.encode(self._chain, np.ascontiguousarray(block).data)


def starts_of(runs: Sequence[CodedRun]) -> NDArray[np.uint8]:
    """Return the offsets of the blocks of these runs in one tensor, and the end of the last: int64 as bytes."""
    sizes = [size for run in runs for size in run.sizes]
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype("<i8").view(np.uint8)


class BlockSums:
    """XXH3-64 over groups of `count` blocks: the length of each as 8 bytes little-endian, then its bytes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sums: list[str] = []
        self._current = xxhash.xxh3_64()
        self._blocks = 0  # under the current sum

    def add(self, block: bytes) -> None:
        """Add the next block."""
        self._current.update(len(block).to_bytes(8, "little"))
        self._current.update(block)
        self._blocks += 1
        if self._blocks == self._count:
            self._next()

    def finish(self) -> tuple[str, ...]:
        """Return the checksums, 16 digits each."""
        if self._blocks:
            self._next()
        return tuple(self._sums)

    def _next(self) -> None:
        self._sums.append(self._current.hexdigest())
        self._current = xxhash.xxh3_64()
        self._blocks = 0
