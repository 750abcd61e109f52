"""Cut a stream of rows into shards; a buffer collects single rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from memload.formats.shards.index import AnySpec, FieldSpec
from memload.formats.shards.ragged_input import AnyRows, RaggedRows, joined_rows
from memload.formats.shards.ragged_shard_file import RaggedShardFile
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.row_fields import RowFields
from memload.formats.shards.rows import Rows
from memload.formats.shards.shard_file import ShardFile
from memload.writing.growing_set import GrowingSet
from memload.writing.part_set import PartSet


class ShardStream:
    """Cuts a stream of rows into shards, and adds each to the set once it is complete.

    Args:
        into: the set.
        fields: the fields of the rows.
        shard_bytes: the approximate limit of a shard; it has at least one row.
        rows: the number of rows to come, existing ones included, if known.

    Attributes:
        rows: the number of rows so far; the caller adds existing rows by assignment.
    """

    def __init__(self, into: GrowingSet | PartSet, fields: RowFields, shard_bytes: int, rows: int | None) -> None:
        self.rows = 0
        self._into = into
        self._fields = fields
        self._shard_bytes = shard_bytes
        self._expected = rows
        self._file: ShardFile | RaggedShardFile | None = None

    def write(self, rows: Mapping[str, AnyRows]) -> None:
        """Write rows of these fields. Rows of an incomplete shard do not count as written."""
        total = len(next(iter(rows.values())))
        at = 0
        while at < total:
            shard: Any = self._file or self._new_shard()
            taken = shard.takes(rows, at)
            if taken:
                shard.write({name: part.cut(at, at + taken) for name, part in rows.items()})
            self.rows += taken
            at += taken
            if at < total or not shard.takes(rows, 0):
                self.finish()

    def finish(self) -> None:
        """Complete the current shard, if there is one."""
        if self._file is not None:
            shard = self._file.finish()
            self._file = None
            self._into.add(shard)

    def close(self) -> None:
        """Discard the current shard, if there is one. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _new_shard(self) -> ShardFile | RaggedShardFile:
        capacity = max(1, self._shard_bytes // max(1, self._fields.row_bytes))
        if self._expected is not None and self._expected > self.rows:
            capacity = min(capacity, self._expected - self.rows)
        path, specs, durable = self._into.next_path(), self._fields.specs, self._into.durable
        fields = {name: field for name, field in specs.items() if isinstance(field, FieldSpec)}
        if len(fields) < len(specs):
            self._file = RaggedShardFile(path, specs, self._shard_bytes, durable)
        else:
            self._file = ShardFile(path, fields, capacity, durable, self._into.memory)
        return self._file


_BUFFER_BYTES = 2**22
_BUFFER_ROWS = 4096


class RowBuffer:
    """Collects copies of single rows until there are enough for one write."""

    def __init__(self, fields: Mapping[str, AnySpec]) -> None:
        row_bytes = sum(field.row_bytes for field in fields.values())
        self._capacity = min(_BUFFER_ROWS, max(1, _BUFFER_BYTES // max(1, row_bytes)))
        self._rows = {
            name: Rows(field.dtype, field.shape, np.empty((self._capacity, field.row_bytes), dtype=np.uint8))
            for name, field in fields.items()
            if isinstance(field, FieldSpec)
        }
        self._ragged: dict[str, list[RaggedRows]] = {
            name: [] for name, field in fields.items() if isinstance(field, RaggedSpec)
        }
        self._ragged_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Mapping[str, AnyRows]) -> bool:
        """Copy one row; return whether the buffer is now full."""
        for name, part in row.items():
            if isinstance(part, RaggedRows):
                self._ragged[name].append(joined_rows([part]))
                self._ragged_bytes += part.nbytes
            else:
                self._rows[name].data[self._count] = part.data[0]
        self._count += 1
        return self._count == self._capacity or self._ragged_bytes >= _BUFFER_BYTES

    def take(self) -> dict[str, AnyRows]:
        """Return the rows, valid until the next `add`, and empty the buffer."""
        count, self._count, self._ragged_bytes = self._count, 0, 0
        taken: dict[str, AnyRows] = {name: rows.cut(0, count) for name, rows in self._rows.items()}
        for name, parts in self._ragged.items():
            taken[name], self._ragged[name] = joined_rows(parts), []
        return taken
