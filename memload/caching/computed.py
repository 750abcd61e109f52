"""Computed rows: kept in RAM, or written as shards with a note of their origin.

path/index.json, shard-*.safetensors     as any set of shards
path/origin.json                         the key of the computation, and what people call it
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memload.caching.forms import Batch, Form, Forms, items_nbytes, nbytes_of
from memload.columns.held_rows import AlikeRows, HeldRows, held_rows
from memload.columns.ragged_forms import row_count
from memload.columns.ragged_samples import Forms as RaggedForms
from memload.errors import MemorySpaceError
from memload.formats.shards.index import INDEX_NAME
from memload.formats.shards.staging import being_written, unfinished_of, write_durably
from memload.memory.budget import memory
from memload.memory.guards import SPACE_MARGIN, check_space
from memload.sizes import format_size
from memload.writing.unfinished import read_unfinished
from memload.writing.writer import ShardWriter

ORIGIN_NAME = "origin.json"
_SHARDS = 32  # what is computed may have been dear: whoever is interrupted loses no more than such a part of it
_SHARD_BYTES = range(1, 512_000_001)
_FORMAT = 1
_LOOK_BYTES = 64 << 20  # that are kept between two looks at what is free


@dataclass(frozen=True)
class Origin:
    """Where a set of shards comes from.

    Attributes:
        key: of the computation; see `memload.caching.derivation`.
        function: what people call it.
        layout: of the rows, as a dataset has it; or "graphs".
        ragged: of fields whose rows differ in length, the form of batches, the axis and what pads rows, where the rows
            that the function was given told them.
    """

    key: str
    function: str
    layout: str = "dict"
    ragged: RaggedForms = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Origin | None:
        """Return the origin of the complete set at a path; None if there is no such set, or it does not say."""
        try:
            found = json.loads((path / ORIGIN_NAME).read_bytes())
            if found.pop("memload_origin") != _FORMAT or not (path / INDEX_NAME).exists():
                return None
            ragged = {name: (form, int(axis), pad) for name, (form, axis, pad) in found.pop("ragged", {}).items()}
            return cls(**{name: str(value) for name, value in found.items()}, ragged=ragged)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def dump(self) -> bytes:
        """Return the file's content."""
        stated = {"key": self.key, "function": self.function, "layout": self.layout}
        ragged = {"ragged": dict(self.ragged)} if self.ragged else {}
        return json.dumps({"memload_origin": _FORMAT, **stated, **ragged}, indent=1).encode()


@contextlib.contextmanager
def shard_writer(path: Path, origin: Origin, rows: int, like: Batch, progress: bool | None) -> Iterator[ShardWriter]:
    """Return the writer of a set that appears when the block ends; what is interrupted is taken up by the next one.

    Args:
        path: of the set.
        origin: what is computed.
        rows: that there will be.
        like: some of them, of about the size of all.
        progress: whether to show a bar while what is there is verified.

    Raises:
        FileExistsError, WriterBusyError, DiskSpaceError: as `memload.ShardWriter` does.
    """
    plan = {"computed": origin.key}
    began = read_unfinished(unfinished_of(path))  # whoever goes on keeps to the size of shards: samples may differ
    if began is not None and began.plan.get("computed") == origin.key:
        shard_bytes = int(began.plan["shard_bytes"])
    else:
        shard_bytes = min(max(_SHARD_BYTES[0], -(-rows // _SHARDS) * row_bytes_of(like)), _SHARD_BYTES[-1])
    items = rows * items_nbytes(like) // max(1, rows_in(like))
    how = {"shard_bytes": shard_bytes, "rows": rows, "nbytes": items, "resume": plan, "progress": progress}
    with ShardWriter(path, **how) as writer:  # type: ignore[arg-type]
        yield writer
        write_durably(being_written(path) / ORIGIN_NAME, origin.dump())


def row_bytes_of(batch: Batch) -> int:
    """Return the bytes of one of these rows, on average."""
    return -(-sum(map(nbytes_of, batch.values())) // max(1, rows_in(batch)))


def rows_in(batch: Batch) -> int:
    """Return how many rows these are."""
    return row_count(next(iter(batch.values())))


class OnDisk:
    """Takes rows into a set of shards. Rows that begin to differ in length have those before written again.

    Args:
        path: of the set.
        writer: of the set, which may have rows from an interrupted run.
        rows: that there will be.
    """

    def __init__(self, path: Path, writer: ShardWriter, rows: int) -> None:
        self._path, self._writer, self._rows, self._filled = path, writer, rows, writer.rows_there
        self._forms = Forms({name: Form.stored(one) for name, one in writer.fields.items()})
        self._unseen = 0  # bytes since the last look at what is free

    def extend(self, batch: Batch) -> None:
        """Write the rows that follow.

        Raises:
            DiskSpaceError: there is not 1.2 times the space for all that will follow; what is complete is kept.
            ValueError: as `Forms.take`.
        """
        differ = self._forms.take(batch, self._filled)
        if differ:
            self._writer.let_differ(differ)
        self._filled += rows_in(batch)
        self._writer.extend(**self._forms.arranged(batch))
        self._unseen += rows_in(batch) * row_bytes_of(batch)
        if self._unseen >= _LOOK_BYTES:
            self._unseen = 0
            check_space(self._path, (self._rows - self._filled) * row_bytes_of(batch))

    def let_differ(self, names: Iterable[str]) -> None:
        """Store these fields as ones that differ in length, whether the rows did or not.

        Raises:
            DiskSpaceError: there is no room to write rows again; what is complete is kept.
        """
        if differ := self._forms.let_differ(names):
            self._writer.let_differ(differ)


class InMemory:
    """Takes rows into RAM that is allocated when the first of them come.

    Args:
        rows: that will come.
        like: some of them, if they are known.

    Raises:
        MemoryError: there is not 1.2 times the memory for all of them.
    """

    def __init__(self, rows: int, like: Batch | None = None) -> None:
        if like is not None:
            _check_memory(rows * row_bytes_of(like))
        self._held: dict[str, HeldRows] = {}
        self._forms = Forms()
        self._rows, self._filled = rows, 0
        self._unseen = 0  # bytes since the last look at what is free

    def extend(self, batch: Batch) -> None:
        """Take the rows that follow.

        Raises:
            MemoryError: there is not 1.2 times the memory for all of them; others may take of it meanwhile.
            ValueError: as `Forms.take`.
        """
        differ = self._forms.take(batch, self._filled)
        if not self._held:
            _check_memory(self._rows * row_bytes_of(batch))
        self._differing(differ)
        end = self._filled + rows_in(batch)
        self._look(rows_in(batch) * row_bytes_of(batch), end)
        for name, values in self._forms.arranged(batch).items():
            held = self._held.setdefault(name, held_rows(self._rows, values))
            held.put(self._filled, values)
        self._filled = end

    def let_differ(self, names: Iterable[str]) -> None:
        """Keep these fields as ones that differ in length, whether the rows did or not."""
        self._differing(self._forms.let_differ(names))

    def _differing(self, axes: Mapping[str, int]) -> None:
        for name, axis in axes.items():
            held = self._held[name]
            assert isinstance(held, AlikeRows)
            self._held[name] = held.differing(self._filled, axis)

    def finish(self) -> dict[str, Any]:
        """Return all rows by field: tensors (rows, *shape), `memload.Ragged`, or lists of texts."""
        return {name: held.finish() for name, held in self._held.items()}

    def _look(self, nbytes: int, end: int) -> None:
        self._unseen += nbytes
        if self._unseen >= _LOOK_BYTES:
            self._unseen = 0
            _check_memory((self._rows - end) * (nbytes // max(1, end - self._filled)))


def _check_memory(need: int) -> None:
    found = memory()
    if found.free < need * SPACE_MARGIN:
        raise MemorySpaceError(
            f"{format_size(need)} are to be kept and {format_size(need * SPACE_MARGIN)} wanted free for that, but this "
            f"process may take {format_size(found.free)} ({found.described}); give a path, to write them as shards",
            need=need,
            free=found.free,
        )
