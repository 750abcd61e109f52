"""Rows that are computed: kept in RAM, or written as shards with a note of what they were computed from.

path/index.json, shard-*.safetensors     as any set of shards
path/origin.json                         the key of the computation, and what people call it
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from memload.memory.budget import memory
from memload.memory.disk_space import SPACE_MARGIN
from memload.shards.index import INDEX_NAME
from memload.shards.staging import being_written, write_durably
from memload.shards.writer import ShardWriter
from memload.sizes import format_size

ORIGIN_NAME = "origin.json"
_SHARDS = 32  # what is computed may have been dear: whoever is interrupted loses no more than such a part of it
_SHARD_BYTES = range(1, 512_000_001)
_FORMAT = 1
_LOOK_BYTES = 64 << 20  # that are kept between two looks at what is free

Batch = Mapping[str, Any]
"""Some rows by field: tensors on the CPU (rows, *shape), or lists of texts."""


@dataclass(frozen=True)
class Origin:
    """Where a set of shards comes from.

    Attributes:
        key: of the computation; see `memload.results.derivation`.
        function: what people call it.
        layout: of the rows, as a dataset has it.
    """

    key: str
    function: str
    layout: str = "dict"

    @classmethod
    def of(cls, path: Path) -> Origin | None:
        """Return the origin of the complete set at a path; None if there is no such set, or it does not say."""
        try:
            found = json.loads((path / ORIGIN_NAME).read_bytes())
            if found.pop("memload_origin") != _FORMAT or not (path / INDEX_NAME).exists():
                return None
            return cls(**{name: str(value) for name, value in found.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def dump(self) -> bytes:
        """Return the file's content."""
        return json.dumps({"memload_origin": _FORMAT, **asdict(self)}, indent=1).encode()


@contextlib.contextmanager
def shard_writer(
    path: Path, origin: Origin | None, rows: int, row_bytes: int, progress: bool | None
) -> Iterator[ShardWriter]:
    """Return the writer of a set that appears when the block ends; what is interrupted is taken up by the next one.

    Args:
        path: of the set.
        origin: what is computed; None: not to be known again, nor taken up.
        rows: that there will be.
        row_bytes: of one of them, about.
        progress: whether to show a bar while what is there is verified.

    Raises:
        FileExistsError, WriterBusyError, DiskSpaceError: as `memload.ShardWriter` does.
    """
    shard_bytes = min(max(_SHARD_BYTES[0], -(-rows // _SHARDS) * row_bytes), _SHARD_BYTES[-1])
    plan = None if origin is None else {"computed": origin.key}
    with ShardWriter(path, shard_bytes=shard_bytes, rows=rows, resume=plan, progress=progress) as writer:
        yield writer
        if origin is not None:
            write_durably(being_written(path) / ORIGIN_NAME, origin.dump())


def row_bytes_of(batch: Batch) -> int:
    """Return the bytes of one of these rows, on average."""
    rows = max(1, rows_in(batch))
    return -(-sum(_nbytes(value) for value in batch.values()) // rows)


def rows_in(batch: Batch) -> int:
    """Return how many rows these are."""
    return len(next(iter(batch.values())))


def _nbytes(value: Any) -> int:
    return value.nbytes if isinstance(value, torch.Tensor) else sum(len(text.encode()) for text in value)


class InMemory:
    """Takes rows into RAM that is allocated when the first of them come.

    Args:
        rows: that will come.

    Attributes:
        values: by field, a tensor (rows, *shape) or a list of texts.
    """

    def __init__(self, rows: int) -> None:
        self.values: dict[str, Any] = {}
        self._rows, self._filled = rows, 0
        self._unseen = 0  # bytes since the last look at what is free

    def extend(self, batch: Batch) -> None:
        """Take the rows that follow.

        Raises:
            MemoryError: there is not 1.2 times the memory for all of them; others may take of it meanwhile.
            ValueError: they have other fields, dtypes or shapes than those before.
        """
        if not self.values:
            _check_memory(self._rows * row_bytes_of(batch))
            self.values = {name: self._made_for(value) for name, value in batch.items()}
        if batch.keys() != self.values.keys():
            raise ValueError(f"row {self._filled:,} has the fields {[*batch]}, expected {[*self.values]}")
        end = self._filled + rows_in(batch)
        self._look(rows_in(batch) * row_bytes_of(batch), end)
        for name, value in batch.items():
            self._take(name, value, end)
        self._filled = end

    def _look(self, nbytes: int, end: int) -> None:
        self._unseen += nbytes
        if self._unseen >= _LOOK_BYTES:
            self._unseen = 0
            _check_memory((self._rows - end) * (nbytes // max(1, end - self._filled)))

    def _made_for(self, value: Any) -> Any:
        return value.new_empty((self._rows, *value.shape[1:])) if isinstance(value, torch.Tensor) else []

    def _take(self, name: str, value: Any, end: int) -> None:
        held = self.values[name]
        if isinstance(held, list):
            held += value
            return
        if value.dtype != held.dtype or value.shape[1:] != held.shape[1:]:
            raise ValueError(
                f"row {self._filled:,}: field {name!r} is {value.dtype} {tuple(value.shape[1:])}, expected "
                f"{held.dtype} {tuple(held.shape[1:])}"
            )
        held[self._filled : end] = value


def _check_memory(need: int) -> None:
    free = memory().free
    if free < need * SPACE_MARGIN:
        raise MemoryError(
            f"{format_size(need)} are to be kept and {format_size(need * SPACE_MARGIN)} wanted free for that, but this "
            f"process may take {format_size(free)}; give a path, to write them as shards"
        )
