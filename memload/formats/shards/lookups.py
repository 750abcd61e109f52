"""Sets with shared rows: the outer set stores once what many rows share, and an inner set has the rows themselves.

NAME/index.json, NAME/shard-*.safetensors     the shared values, one row for each, such as images
NAME/rows/index.json, ...                     the rows of the dataset; their field `lookup.row` names a shared row
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.fields import Field
from memload.errors import ShardFormatError
from memload.formats.shards.index import INDEX_NAME, ROWS_FOLDER
from memload.formats.shards.reading import open_shards

LOOKUP = "lookup.row"
"""The int64 field of the inner set with the row of the outer set for each of its rows."""


def is_looked_up(directory: Path) -> bool:
    """Return whether a set has an inner set, whose rows share those of the outer set."""
    return (directory / ROWS_FOLDER / INDEX_NAME).exists()


def rows_being_written(target: Path) -> Path:
    """Return the directory of the inner set of a set that is being written, without files of an earlier writer."""
    from memload.formats.shards.staging import being_written

    folder = being_written(target) / ROWS_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def open_set(directory: Path) -> dict[str, Field]:
    """Return the fields of a directory of shards, with the fields of the outer set selected by row.

    Raises:
        ShardFormatError: the index, a shard's name, length or header is wrong, or a row of the outer set is missing.
    """
    shared = open_shards(directory)
    if not is_looked_up(directory):
        return shared
    inner = directory / ROWS_FOLDER
    return looked_up(directory, shared, inner, open_shards(inner))


def looked_up(directory: object, shared: dict[str, Field], inner: object, rows: dict[str, Field]) -> dict[str, Field]:
    """Return the fields of an outer set, selected by the rows of the inner set, and those of the inner set.

    Args:
        directory: where the outer set lies, for messages.
        shared: its fields.
        inner: where the inner set lies, for messages.
        rows: its fields.

    Raises:
        ShardFormatError: a row of the outer set is missing, or the sets do not fit together.
    """
    twice = sorted(shared.keys() & rows.keys())
    if LOOKUP not in rows or twice:
        wrong = f"the fields {twice} are in {directory}, too" if LOOKUP in rows else f"no field {LOOKUP!r}"
        raise ShardFormatError(f"{inner}: {wrong}; restore the directory, or write the set again")
    numbers = _numbers(inner, directory, rows.pop(LOOKUP), next(iter(shared.values())).rows)
    return {name: field.select(numbers) for name, field in shared.items()} | rows


def _numbers(inner: object, outer: object, field: Field, length: int) -> NDArray[np.int64]:
    if field.signature != (torch.int64, ()):
        raise ShardFormatError(f"{inner}: {LOOKUP!r} is {field.described}; expected an int64 for each row")
    numbers: NDArray[np.int64] = field.gather(np.arange(field.rows)).numpy()
    bad = np.flatnonzero((numbers < 0) | (numbers >= length))
    if len(bad):
        raise ShardFormatError(
            f"{inner}: row {bad[0]} looks up row {numbers[bad[0]]}, and {outer} has {length}; restore the "
            "directory, or write the set again"
        )
    return numbers
