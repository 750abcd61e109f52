"""One shard of rows that differ in length, while it is written.

How long its tensors become is known in the end. So each goes into a nameless file of its own beside the shard, and
`finish` puts them behind the header. Of rows that are joined along their second axis the planes share this file: there
may be more of them, such as channels, than a process may open files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from memload.ragged_spec import OFFSETS_BLOCK, RaggedSpec, offsets_name
from memload.ragged_writing import AnyRows, RaggedRows
from memload.safetensors_header import build_header
from memload.shard_file import BlockHasher
from memload.shard_index import AnySpec, ShardRecord, tensors_of

_COPY_BYTES = 2**24


class RaggedShardFile:
    """A new shard file, open for writing; `finish` completes it, `close` only gives descriptors back.

    Args:
        path: the file to make.
        fields: what a row has; `write` brings exactly these.
        nbytes: about how large the file may grow; one row it has at least.
    """

    def __init__(self, path: Path, fields: Mapping[str, AnySpec], nbytes: int) -> None:
        self.rows = 0
        self._path, self._fields, self._limit = path, fields, nbytes
        self._items = {name: 0 for name, field in fields.items() if isinstance(field, RaggedSpec)}
        self._streams: dict[str, list[_Stream]] = {}
        for name, field in fields.items():
            if isinstance(field, RaggedSpec):
                self._streams[name] = _streams(path.parent, field.block_rows, field.planes)
                self._streams[offsets_name(name)] = _streams(path.parent, OFFSETS_BLOCK)
                self._add_offsets(name, np.zeros(1, dtype=np.int64))
            else:
                self._streams[name] = _streams(path.parent, field.block_rows)

    def takes(self, rows: Mapping[str, AnyRows], at: int) -> int:
        """Return how many of these rows, from row `at` on, are to be written; an empty shard takes one at least."""
        count = len(next(iter(rows.values())))
        sizes = np.zeros(count - at, dtype=np.int64)
        for name, field in self._fields.items():
            part = rows[name]
            sizes += field.row_bytes
            if isinstance(part, RaggedRows):
                sizes += part.lengths[at:] * (part.spec.item_bytes * len(part.planes))
        fit = int(np.searchsorted(np.cumsum(sizes), self._limit - self._nbytes, side="right"))
        return max(fit, 0 if self.rows else 1)

    def write(self, rows: Mapping[str, AnyRows]) -> None:
        """Append rows, as many of each field."""
        for name, part in rows.items():
            if isinstance(part, RaggedRows):
                for stream, plane in zip(self._streams[name], part.planes, strict=True):
                    stream.write(plane.reshape(-1, part.spec.item_bytes))
                self._add_offsets(name, self._items[name] + np.cumsum(part.lengths))
                self._items[name] += int(part.lengths.sum())
            else:
                self._streams[name][0].write(part.data)
        self.rows += len(next(iter(rows.values())))

    def finish(self) -> ShardRecord:
        """Complete the file, wait until it is on the disk, and return what the index has to say of it."""
        tensors = tensors_of(self._fields, self.rows, self._items)
        order = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)  # which keeps each aligned
        with self._path.open("xb", buffering=0) as file:
            _write_all(file, build_header({name: tensors[name] for name in order}))
            for name in order:
                for stream in self._streams[name]:
                    for piece in stream.pieces():
                        _write_all(file, piece)
            os.fsync(file.fileno())
            end = file.tell()
        self.close()
        sums = {name: tuple(digits for stream in self._streams[name] for digits in stream.sums()) for name in tensors}
        return ShardRecord(self._path.name, self.rows, end, sums, dict(self._items))

    def close(self) -> None:
        """Give the descriptors back. May be called again."""
        for stream in (stream for streams in self._streams.values() for stream in streams):
            stream.close()

    @property
    def _nbytes(self) -> int:
        return sum(stream.nbytes for streams in self._streams.values() for stream in streams)

    def _add_offsets(self, name: str, offsets: NDArray[np.int64]) -> None:
        self._streams[offsets_name(name)][0].write(np.ascontiguousarray(offsets).view(np.uint8).reshape(-1, 8))


def _streams(directory: Path, block_rows: int, planes: int = 1) -> list[_Stream]:
    """The planes of a tensor, in one new file."""
    file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed by _Stream.close()
    return [_Stream(file, block_rows) for _ in range(planes)]


class _Stream:
    """The bytes of a tensor, or of one plane of it, and their checksums.

    Args:
        file: takes them, and those of other planes; nothing is written any more once it is read.
        block_rows: items under one checksum.
    """

    def __init__(self, file: IO[bytes], block_rows: int) -> None:
        self.nbytes = 0
        self._file = file
        self._extents: list[tuple[int, int]] = []  # where in the file they begin and end
        self._hasher = BlockHasher(block_rows)

    def write(self, rows: NDArray[np.uint8]) -> None:
        begin = self._file.tell()
        _write_all(self._file, np.ascontiguousarray(rows).reshape(-1).data)
        if self._extents and self._extents[-1][1] == begin:
            begin = self._extents.pop()[0]
        self._extents.append((begin, self._file.tell()))
        self._hasher.update(rows)
        self.nbytes += rows.nbytes

    def pieces(self) -> Iterator[bytes]:
        for begin, end in self._extents:
            self._file.seek(begin)
            while begin < end and (piece := self._file.read(min(_COPY_BYTES, end - begin))):
                begin += len(piece)
                yield piece

    def sums(self) -> tuple[str, ...]:
        return self._hasher.finish()

    def close(self) -> None:
        self._file.close()


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]
