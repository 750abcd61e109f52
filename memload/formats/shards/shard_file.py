"""Write one shard: rows of all fields arrive together, and each field has its own run of the file.

    | header, to a multiple of 4096 | field A: rows | field B: rows | ...

The header tells where each field begins, so room for `capacity` rows is laid out beforehand. When fewer rows come, the
later fields are moved down and the file is cut. Fields lie by descending element size, which keeps each aligned. The
blocks of compressed fields, whose size nobody knows beforehand, wait in files of their own and come last.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload.columns.fields import row_nbytes
from memload.formats.codecs.blocks import CodedRun, starts_of
from memload.formats.shards.index import FieldSpec, ShardRecord, tensors_of
from memload.formats.shards.ragged_spec import offsets_name
from memload.formats.shards.rows import Rows
from memload.formats.shards.safetensors_header import build_header, places_of
from memload.formats.shards.spool import spools
from memload.formats.shards.stated_offsets import stated_offsets

_MOVE_BYTES = 2**24
_MOST_ENCODED = 2**50  # bytes of a compressed field; stands for what is not known yet, with at least as many digits


class ShardFile:
    """A new shard file, open for writing; `finish` completes it, and `close` only closes its descriptor.

    Args:
        path: the path of the file.
        fields: the fields of a row; `write` must get exactly these.
        capacity: the most rows of the shard.
        durable: whether `finish` waits until it is on the disk.
        memory: returns memory of at least so many bytes that the shard is written to, in place of a file; or None.
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, FieldSpec],
        capacity: int,
        durable: bool = True,
        memory: Callable[[int], NDArray[np.uint8] | None] = lambda _: None,
    ) -> None:
        self.rows = 0
        self.capacity = capacity
        self._name = path.name
        self._fields = dict(fields)
        plain = {name: field for name, field in fields.items() if field.codec is None}
        self._hashers = {name: BlockHasher(field.block_rows) for name, field in plain.items()}
        self._runs = {name: _coded_run(path.parent, field) for name, field in fields.items() if field.codec is not None}
        self._data_start = len(self._header(capacity, dict.fromkeys(self._runs, _MOST_ENCODED)))
        room = None if self._runs else memory(self._begins(capacity)[""])  # the length of runs is not known yet
        self._bytes = ShardBytes(path, durable) if room is None else BytesInMemory(room)

    def takes(self, rows: Mapping[str, Rows], at: int) -> int:
        """Return how many of these rows, from row `at` on, still fit into the shard."""
        return min(len(next(iter(rows.values()))) - at, self.capacity - self.rows)

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Append rows, equally many of each field; at most `capacity` rows fit in total."""
        begins = self._begins(self.capacity)
        for name, hasher in self._hashers.items():
            data = rows[name].data
            self._bytes.write_at(data.reshape(-1), begins[name] + self.rows * self._fields[name].row_bytes)
            hasher.update(data)
        for name, run in self._runs.items():
            run.write(rows[name].data)
        self.rows += len(next(iter(rows.values())))

    def finish(self) -> ShardRecord:
        """Complete the file, and return its entry in the index."""
        checksums = {name: hasher.finish() for name, hasher in self._hashers.items()}
        checksums |= {name: run.finish() for name, run in self._runs.items()}
        if self.rows < self.capacity:
            self._close_gaps()
        end = self._append_runs()
        header = self._header(self.rows, {name: run.nbytes for name, run in self._runs.items()}, self._data_start)
        self._bytes.write_at(np.frombuffer(header, dtype=np.uint8), 0)
        self._bytes.finish(end)
        offsets = stated_offsets((offsets_name(name), starts_of([run])) for name, run in self._runs.items())
        self.close()
        sums = {name: checksums[name] for name in self._fields}
        return ShardRecord(self._name, self.rows, end, sums, tensors=places_of(header, end), offsets=offsets)

    def close(self) -> None:
        """Close the file. May be called again."""
        self._bytes.close()
        for run in self._runs.values():
            run.close()

    def _header(self, rows: int, encoded: Mapping[str, int], data_start: int | None = None) -> bytes:
        blocks = {name: (torch.uint8, (nbytes,)) for name, nbytes in encoded.items()}
        return build_header({**tensors_of(self._fields, rows, {}), **blocks}, data_start)

    def _begins(self, rows: int) -> dict[str, int]:
        """Return the places of the tensors of fixed size, and, by the name "", the end of the last one."""
        begins, at = {}, self._data_start
        for name, (dtype, shape) in tensors_of(self._fields, rows, {}).items():
            begins[name] = at
            at += row_nbytes(dtype, shape)
        return {**begins, "": at}

    def _close_gaps(self) -> None:
        old, new = self._begins(self.capacity), self._begins(self.rows)
        for name in new:
            if name in self._hashers:
                self._bytes.move_down(old[name], new[name], self.rows * self._fields[name].row_bytes)

    def _append_runs(self) -> int:
        """Write the offsets and the blocks of compressed fields; return the end of the last one."""
        begins = self._begins(self.rows)
        at = begins[""]
        for name, run in self._runs.items():
            self._bytes.write_at(starts_of([run]), begins[offsets_name(name)])
            for piece in run.pieces():
                self._bytes.write_at(np.frombuffer(piece, dtype=np.uint8), at)
                at += len(piece)
        return at


class ShardBytes:
    """The bytes of a new shard, in a new file.

    Args:
        path: the path of the file.
        durable: whether `finish` waits until it is on the disk.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        self._durable = durable
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write_at(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write bytes (n,) at an offset."""
        at = 0
        while at < len(data):
            at += os.pwrite(self._file, data[at:].data, offset + at)

    def move_down(self, source: int, target: int, nbytes: int) -> None:
        """Move bytes to a lower offset."""
        moved = 0
        while target < source and moved < nbytes:
            piece = os.pread(self._file, min(_MOVE_BYTES, nbytes - moved), source + moved)
            if not piece:
                raise OSError(errno.EIO, "the shard was cut short by somebody else while it was written")
            self.write_at(np.frombuffer(piece, dtype=np.uint8), target + moved)
            moved += len(piece)

    def finish(self, nbytes: int) -> None:
        """End the shard after so many bytes."""
        os.ftruncate(self._file, nbytes)
        if self._durable:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class BytesInMemory:
    """The bytes of a new shard, in memory of the caller's; otherwise as `ShardBytes`.

    Args:
        memory: uint8 (n,), at least as long as the shard.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory

    def write_at(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write bytes (n,) at an offset."""
        self._memory[offset : offset + len(data)] = data

    def move_down(self, source: int, target: int, nbytes: int) -> None:
        """Move bytes to a lower offset."""
        self._memory[target : target + nbytes] = self._memory[source : source + nbytes]

    def finish(self, nbytes: int) -> None:
        """Do nothing: whoever has the memory knows the bytes from the entry in the index."""

    def close(self) -> None:
        """Do nothing."""


class BlockHasher:
    """XXH3-64 of each block of rows of one field; rows are added in pieces of any length."""

    def __init__(self, block_rows: int) -> None:
        self._block_rows = block_rows
        self._sums: list[str] = []
        self._current = xxhash.xxh3_64()
        self._rows = 0  # of the current block so far

    def update(self, data: NDArray[np.uint8]) -> None:
        """Append rows: uint8 (rows, row_bytes)."""
        for piece in self._pieces(data):
            self._current.update(np.ascontiguousarray(piece).data)
            self._rows += len(piece)
            if self._rows == self._block_rows:
                self._next()

    def finish(self) -> tuple[str, ...]:
        """Return the checksums of all blocks in hexadecimal digits."""
        if self._rows:
            self._next()
        return tuple(self._sums)

    def _pieces(self, data: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
        at = 0
        while at < len(data):
            piece = data[at : at + self._block_rows - self._rows]
            at += len(piece)
            yield piece

    def _next(self) -> None:
        self._sums.append(self._current.hexdigest())
        self._current = xxhash.xxh3_64()
        self._rows = 0


def _coded_run(folder: Path, field: FieldSpec) -> CodedRun:
    assert field.codec is not None
    (spool,) = spools(folder)
    return CodedRun(spool, field.codec, field.dtype.itemsize, field.row_bytes, field.block_rows)
