"""Keep computed rows in RAM, or write them as shards with a note of their origin.

path/index.json, shard-*.safetensors     as in any set of shards
path/origin.json                         the key of the computation, and the name of the function
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
from memload.memory.budget import memory_to_take
from memload.memory.guards import SPACE_MARGIN, check_space
from memload.sizes import format_size
from memload.writing.unfinished import read_unfinished
from memload.writing.writer import ShardWriter

ORIGIN_NAME = "origin.json"
_SHARDS = 32  # at most such a share of the computation is lost if it is interrupted
_SHARD_BYTES = range(1, 512_000_001)
_FORMAT = 1
_CHECK_BYTES = 64 << 20  # bytes of rows between two checks of the free space


@dataclass(frozen=True)
class Origin:
    """The origin of a set of shards.

    Attributes:
        key: the key of the computation; see `memload.caching.derivation`.
        function: the name of the function.
        layout: the layout of the rows, as in a dataset; or "graphs".
        ragged: for each ragged field the form of batches, the axis and the pad value, if the samples that the function
            received have them.
    """

    key: str
    function: str
    layout: str = "dict"
    ragged: RaggedForms = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Origin | None:
        """Return the origin of the complete set at a path; None if there is no such set, or it has no origin."""
        try:
            found = json.loads((path / ORIGIN_NAME).read_bytes())
            if found.pop("memload_origin") != _FORMAT or not (path / INDEX_NAME).exists():
                return None
            ragged = {name: (form, int(axis), pad) for name, (form, axis, pad) in found.pop("ragged", {}).items()}
            return cls(**{name: str(value) for name, value in found.items()}, ragged=ragged)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def dump(self) -> bytes:
        """Return the content of the file."""
        stated = {"key": self.key, "function": self.function, "layout": self.layout}
        ragged = {"ragged": dict(self.ragged)} if self.ragged else {}
        return json.dumps({"memload_origin": _FORMAT, **stated, **ragged}, indent=1).encode()


@contextlib.contextmanager
def shard_writer(path: Path, origin: Origin, rows: int, like: Batch, progress: bool | None) -> Iterator[ShardWriter]:
    """Return the writer of a set that appears when the block ends; an interrupted set is continued.

    Args:
        path: the path of the set.
        origin: the origin of the rows.
        rows: the number of rows of the complete set.
        like: some rows of about the average size.
        progress: whether to show a bar while existing shards are verified.

    Raises:
        FileExistsError, WriterBusyError, DiskSpaceError: as `memload.ShardWriter` does.
    """
    plan = {"computed": origin.key}
    unfinished = read_unfinished(unfinished_of(path))
    if unfinished is not None and unfinished.plan.get("computed") == origin.key:
        shard_bytes = int(unfinished.plan["shard_bytes"])  # a new estimate could differ with the sampled rows
    else:
        shard_bytes = min(max(_SHARD_BYTES[0], -(-rows // _SHARDS) * row_bytes_of(like)), _SHARD_BYTES[-1])
    items = rows * items_nbytes(like) // max(1, rows_in(like))
    options = {"shard_bytes": shard_bytes, "rows": rows, "nbytes": items, "resume": plan, "progress": progress}
    with ShardWriter(path, **options) as writer:  # type: ignore[arg-type]
        yield writer
        write_durably(being_written(path) / ORIGIN_NAME, origin.dump())


def row_bytes_of(batch: Batch) -> int:
    """Return the average bytes of a row of these."""
    return -(-sum(map(nbytes_of, batch.values())) // max(1, rows_in(batch)))


def rows_in(batch: Batch) -> int:
    """Return the number of rows."""
    return row_count(next(iter(batch.values())))


class OnDisk:
    """Writes rows to a set of shards. If a field begins to differ in length, its earlier rows are written again.

    Args:
        path: the path of the set.
        writer: the writer of the set, which may have rows of an interrupted run.
        rows: the number of rows of the complete set.
    """

    def __init__(self, path: Path, writer: ShardWriter, rows: int) -> None:
        self._path, self._writer, self._rows, self._filled = path, writer, rows, writer.rows_there
        self._forms = Forms({name: Form.stored(field) for name, field in writer.fields.items()})
        self._unchecked = 0  # bytes since the last check of the free space

    def extend(self, batch: Batch) -> None:
        """Write the next rows.

        Raises:
            DiskSpaceError: less than 1.2 times the space of the remaining rows is free; complete shards are kept.
            ValueError: as `Forms.take`.
        """
        differ = self._forms.take(batch, self._filled)
        if differ:
            self._writer.let_differ(differ)
        self._filled += rows_in(batch)
        self._writer.extend(**self._forms.arranged(batch))
        self._unchecked += rows_in(batch) * row_bytes_of(batch)
        if self._unchecked >= _CHECK_BYTES:
            self._unchecked = 0
            check_space(self._path, (self._rows - self._filled) * row_bytes_of(batch))

    def let_differ(self, names: Iterable[str]) -> None:
        """Store these fields as ragged, whether their rows differ in length or not.

        Raises:
            DiskSpaceError: there is no space to write the rows again; complete shards are kept.
        """
        if differ := self._forms.let_differ(names):
            self._writer.let_differ(differ)


class InMemory:
    """Copies rows into RAM, which is allocated with the first of them.

    Args:
        rows: the number of all rows.
        like: some of them, if they are known.

    Raises:
        MemoryError: less than 1.2 times the memory of all rows is free.
    """

    def __init__(self, rows: int, like: Batch | None = None) -> None:
        if like is not None:
            _check_memory(rows * row_bytes_of(like))
        self._held: dict[str, HeldRows] = {}
        self._forms = Forms()
        self._rows, self._filled = rows, 0
        self._unchecked = 0  # bytes since the last check of the free memory

    def extend(self, batch: Batch) -> None:
        """Copy the next rows.

        Raises:
            MemoryError: less than 1.2 times the memory of the remaining rows is free.
            ValueError: as `Forms.take`.
        """
        differ = self._forms.take(batch, self._filled)
        if not self._held:
            _check_memory(self._rows * row_bytes_of(batch))
        self._differing(differ)
        end = self._filled + rows_in(batch)
        self._check_rest(rows_in(batch) * row_bytes_of(batch), end)
        for name, values in self._forms.arranged(batch).items():
            held = self._held.setdefault(name, held_rows(self._rows, values))
            held.put(self._filled, values)
        self._filled = end

    def let_differ(self, names: Iterable[str]) -> None:
        """Keep these fields as ragged, whether their rows differ in length or not."""
        self._differing(self._forms.let_differ(names))

    def _differing(self, axes: Mapping[str, int]) -> None:
        for name, axis in axes.items():
            held = self._held[name]
            assert isinstance(held, AlikeRows)
            self._held[name] = held.differing(self._filled, axis)

    def finish(self) -> dict[str, Any]:
        """Return all rows by field: tensors (rows, *shape), `memload.Ragged`, or lists of texts."""
        return {name: held.finish() for name, held in self._held.items()}

    def _check_rest(self, nbytes: int, end: int) -> None:
        self._unchecked += nbytes
        if self._unchecked >= _CHECK_BYTES:
            self._unchecked = 0
            _check_memory((self._rows - end) * (nbytes // max(1, end - self._filled)))


def _check_memory(need: int) -> None:
    found = memory_to_take(need * SPACE_MARGIN)
    if found.free < need * SPACE_MARGIN:
        raise MemorySpaceError(
            f"the results take {format_size(need)} and need {format_size(need * SPACE_MARGIN)} free, but this process "
            f"may take {format_size(found.free)} ({found.described}); give a path, to write them as shards",
            need=need,
            free=found.free,
        )
