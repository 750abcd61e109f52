"""`memload.ShardSink`: Ray Data writes a set of shards, one part in each of its tasks.

The driver begins and seals, tasks write: on_write_start -> write, write, ... -> on_write_complete or on_write_failed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memload.formats.codecs.by_field import Codecs
from memload.formats.ragged_arrays import ragged as ragged_rows
from memload.formats.shards.part_terms import PartNumber
from memload.formats.shards.parts import PartsFolder
from memload.formats.shards.sealing import seal_parts
from memload.sizes import parse_size
from memload.writing.part_set import PartSet
from memload.writing.parts import fields_of_parts, parts_at
from memload.writing.writer import RowWriter

if TYPE_CHECKING:
    _Datasink = object
else:
    try:
        from ray.data import Datasink as _Datasink
    except ImportError:  # the constructor says so
        _Datasink = object


class ShardSink(_Datasink):
    """A Ray Data sink: `ray_dataset.write_datasink(memload.ShardSink(path))` writes a set of shards.

    Each write task of Ray writes one part, on its own machine, to a file system that all share, or to a store. The
    driver seals the parts when the job succeeds; a job that fails leaves nothing. A task that Ray runs again writes its
    part again, and one that outlives its job is in no set of another job. Rows come in the order of Ray's tasks, which
    is that of its dataset only if Ray preserves order.

    Columns of numbers and tensors become fields, columns of str texts.

    Args:
        path: the directory to create, or an empty one; or an address in a store, such as "s3://bucket/shards", with
            nothing there yet.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB"; each part has at least one shard.
        codec: as in `memload.write`, but not "auto".
        ragged: the columns whose rows may differ in length, as in `memload.ShardWriter`.

    Raises:
        ImportError: Ray is not installed.
        TypeError, ValueError: `path` is where sets cannot be written, or `codec`, `ragged` or `shard_bytes` is invalid.

    When the job begins, a FileExistsError says that something is at `path`, such as what another job writes; and a
    PermissionError, ShardWriteError or ShardReadError that a store refuses it, or failed again and again.

    Example:
        >>> import memload, ray  # doctest: +SKIP
        >>> ray.data.range_tensor(1000, shape=(8,)).write_datasink(memload.ShardSink("shards/"))  # doctest: +SKIP
        >>> memload.open("shards/")  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        *,
        shard_bytes: int | str = "512MB",
        codec: Codecs = None,
        ragged: Iterable[str] | Mapping[str, int] = (),
    ) -> None:
        if _Datasink is object:
            raise ImportError('memload.ShardSink needs Ray: pip install "ray[data]"')
        fields_of_parts(ragged, codec)  # refuses what is invalid here, not in the tasks
        folder = parts_at(path)
        self._path: Any = folder.target if isinstance(folder, PartsFolder) else path
        self._shard_bytes = parse_size(shard_bytes)
        self._codec, self._ragged = codec, dict(ragged) if isinstance(ragged, Mapping) else list(ragged)
        self._job = ""

    def on_write_start(self, schema: Any = None) -> None:  # noqa: ARG002 - the rows themselves have the fields
        """Make the directory, or take the address. Raises FileExistsError if something is there already."""
        self._job = ""
        job = f"job-{uuid.uuid4().hex}"
        parts_at(self._path, job).reserve()
        self._job = job  # which travels to the tasks

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Write the blocks of one task as a part, and return its number."""
        number, fields = PartNumber(int(ctx.task_idx)), fields_of_parts(self._ragged, self._codec)
        into = PartSet(parts_at(self._path, self._job), number, fields, {}, None, progress=False)
        with RowWriter(into.disk, fields, into, self._shard_bytes, None, None) as writer:
            for block in blocks:
                columns = _columns(block)
                if columns:
                    writer.extend(columns)
        return number.part

    def on_write_complete(self, write_result: Any) -> None:
        """Seal the parts of all tasks."""
        seal_parts(parts_at(self._path, self._job), len(set(write_result.write_returns)))

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002 - Ray raises it
        """Remove what this job wrote."""
        if self._job:
            parts_at(self._path, self._job).abandon()

    def get_name(self) -> str:
        """Return the name of the tasks, as Ray shows it."""
        return "memload.ShardSink"


def _columns(block: Any) -> dict[str, Any]:
    """Return the columns of a block of Ray as values of fields; none if it has no row."""
    from ray.data.block import BlockAccessor

    accessor: Any = BlockAccessor.for_block(block)
    if accessor.num_rows() == 0:
        return {}
    return {name: _values(column) for name, column in accessor.to_numpy().items()}


def _values(column: np.ndarray[Any, Any]) -> Any:
    """Return a column as rows: texts, rows that differ in length, or an array."""
    if column.dtype.kind == "U" or (column.dtype == object and all(isinstance(value, str) for value in column)):
        return column.tolist()
    if column.dtype == object and all(isinstance(value, np.ndarray) for value in column):
        return ragged_rows(list(column))
    return column
