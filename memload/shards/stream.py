"""Rows on their way into shards, one shard after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memload.ragged_rows.shard_file import RaggedShardFile
from memload.ragged_rows.writing import AnyRows
from memload.shards.growing_set import GrowingSet
from memload.shards.index import FieldSpec
from memload.shards.row_fields import RowFields
from memload.shards.shard_file import ShardFile


class ShardStream:
    """Cuts a stream of rows into shards, and adds each to the set once it is complete.

    Args:
        into: the set.
        fields: of the rows.
        shard_bytes: about how large a shard may grow; it has one row at least.
        rows: how many will come, those that are there included, if known.

    Attributes:
        rows: of this writing so far; those that were there before count, once it is set to them.
    """

    def __init__(self, into: GrowingSet, fields: RowFields, shard_bytes: int, rows: int | None) -> None:
        self.rows = 0
        self._into = into
        self._fields = fields
        self._shard_bytes = shard_bytes
        self._expected = rows
        self._file: ShardFile | RaggedShardFile | None = None

    def write(self, rows: Mapping[str, AnyRows]) -> None:
        """Write rows of these fields; what is written of a shard that is not complete does not count."""
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
        """Complete the shard that was begun, if there is one."""
        if self._file is not None:
            shard = self._file.finish()
            self._file = None
            self._into.add(shard)

    def close(self) -> None:
        """Give up the shard that was begun. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _new_shard(self) -> ShardFile | RaggedShardFile:
        capacity = max(1, self._shard_bytes // max(1, self._fields.row_bytes))
        if self._expected is not None and self._expected > self.rows:
            capacity = min(capacity, self._expected - self.rows)
        path, specs = self._into.next_path(), self._fields.specs
        fields = {name: field for name, field in specs.items() if isinstance(field, FieldSpec)}
        if len(fields) < len(specs):
            self._file = RaggedShardFile(path, specs, self._shard_bytes)
        else:
            self._file = ShardFile(path, fields, capacity)
        return self._file
