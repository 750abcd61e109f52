"""Write one shard with ragged fields.

How long its tensors become is known in the end. So each goes into a nameless file of its own beside the shard, and
`finish` puts them behind the header, encoded ones last. Of rows that are joined along their second axis the planes
share this file: there may be more of them, such as channels, than a process may open files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from memload.formats.codecs.blocks import CodedRun, starts_of
from memload.formats.codecs.fields import starts_name
from memload.formats.shards.index import AnySpec, ShardRecord, offset_tensors, tensors_of
from memload.formats.shards.ragged_input import AnyRows, RaggedRows
from memload.formats.shards.ragged_spec import OFFSETS_BLOCK, RaggedSpec, offsets_name
from memload.formats.shards.safetensors_header import build_header, places_of
from memload.formats.shards.shard_file import BlockHasher
from memload.formats.shards.spool import Spool, spools
from memload.formats.shards.stated_offsets import stated_offsets


class RaggedShardFile:
    """A new shard file, open for writing; `finish` completes it, and `close` only closes its descriptors.

    Args:
        path: the path of the file.
        fields: the fields of a row; `write` must get exactly these.
        nbytes: the approximate limit of the file before compression; it has at least one row.
        durable: whether `finish` waits until it is on the disk.
    """

    def __init__(self, path: Path, fields: Mapping[str, AnySpec], nbytes: int, durable: bool = True) -> None:
        self.rows = 0
        self._path, self._fields, self._limit, self._durable = path, fields, nbytes, durable
        self._taken = 0  # bytes, before compression
        self._items = {name: 0 for name, field in fields.items() if isinstance(field, RaggedSpec)}
        self._streams: dict[str, list[_Stream | CodedRun]] = {}
        for name, field in fields.items():
            self._streams[name] = _streams(path.parent, field)
            if isinstance(field, RaggedSpec):
                (offsets,) = spools(path.parent)
                self._streams[offsets_name(name)] = [_Stream(offsets, OFFSETS_BLOCK)]
                self._add_offsets(name, np.zeros(1, dtype=np.int64))

    def takes(self, rows: Mapping[str, AnyRows], at: int) -> int:
        """Return how many of these rows, from row `at` on, still fit; an empty shard takes at least one row."""
        fit = int(np.searchsorted(np.cumsum(self._sizes(rows, at)), self._limit - self._taken, side="right"))
        return max(fit, 0 if self.rows else 1)

    def write(self, rows: Mapping[str, AnyRows]) -> None:
        """Append rows, equally many of each field."""
        self._taken += int(self._sizes(rows).sum())
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
        """Complete the file, and return its entry in the index."""
        sums = {
            name: tuple(digits for stream in streams for digits in stream.finish())
            for name, streams in self._streams.items()
        }
        coded = {name: (torch.uint8, (self._nbytes(name),)) for name, field in self._fields.items() if field.codec}
        tensors = {**tensors_of(self._fields, self.rows, self._items), **coded}
        with self._path.open("xb", buffering=0) as file:
            header = build_header(tensors)
            _write_all(file, header)
            for name in tensors:
                for piece in self._pieces(name):
                    _write_all(file, piece)
            if self._durable:
                os.fsync(file.fileno())
            end = file.tell()
        offsets = stated_offsets((name, b"".join(self._pieces(name))) for name in offset_tensors(self._fields))
        self.close()
        places = places_of(header, end)
        return ShardRecord(self._path.name, self.rows, end, sums, dict(self._items), places, offsets)

    def close(self) -> None:
        """Close the files. May be called again."""
        for stream in (stream for streams in self._streams.values() for stream in streams):
            stream.close()

    def _sizes(self, rows: Mapping[str, AnyRows], at: int = 0) -> NDArray[np.int64]:
        """Return the bytes of each row from `at` on, before compression."""
        sizes = np.zeros(len(next(iter(rows.values()))) - at, dtype=np.int64)
        for name, field in self._fields.items():
            part = rows[name]
            sizes += field.row_bytes
            if isinstance(part, RaggedRows):
                sizes += part.lengths[at:] * (part.spec.item_bytes * len(part.planes))
        return sizes

    def _nbytes(self, name: str) -> int:
        return sum(stream.nbytes for stream in self._streams[name])

    def _pieces(self, tensor: str) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a tensor: stored bytes, or the offsets of the blocks of a compressed field."""
        if tensor in self._streams:
            for stream in self._streams[tensor]:
                yield from stream.pieces()
            return
        (name,) = (name for name, field in self._fields.items() if field.codec and starts_name(name, field) == tensor)
        yield starts_of([run for run in self._streams[name] if isinstance(run, CodedRun)]).data

    def _add_offsets(self, name: str, offsets: NDArray[np.int64]) -> None:
        self._streams[offsets_name(name)][0].write(np.ascontiguousarray(offsets).view(np.uint8).reshape(-1, 8))


class _Stream:
    """The bytes of a tensor, or of one plane of it, and their checksums.

    Args:
        spool: stores the bytes.
        block_rows: the items under one checksum.
    """

    def __init__(self, spool: Spool, block_rows: int) -> None:
        self._spool = spool
        self._hasher = BlockHasher(block_rows)

    @property
    def nbytes(self) -> int:
        return self._spool.nbytes

    def write(self, rows: NDArray[np.uint8]) -> None:
        self._spool.write(np.ascontiguousarray(rows).reshape(-1).data)
        self._hasher.update(rows)

    def finish(self) -> tuple[str, ...]:
        return self._hasher.finish()

    def pieces(self) -> Iterator[bytes]:
        return self._spool.pieces()

    def close(self) -> None:
        self._spool.close()


def _streams(directory: Path, field: AnySpec) -> list[_Stream | CodedRun]:
    """Return the streams of the planes of a field, in one new file."""
    planes, item = (field.planes, field.item_bytes) if isinstance(field, RaggedSpec) else (1, field.row_bytes)
    runs = spools(directory, planes)
    if field.codec is None:
        return [_Stream(run, field.block_rows) for run in runs]
    return [CodedRun(run, field.codec, field.dtype.itemsize, item, field.block_rows) for run in runs]


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]
