"""Fields with the origin of rows: keys from their file's name, its path, and the number of the row in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from memload._core import Column, Storage
from memload.columns.fields import Field, check_name
from memload.formats.keyed_paths import KeyedPath, Value, keys_of
from memload.formats.paths import PathLike, entries_of


def with_keys(
    parts: Sequence[Mapping[str, Field]], places: Sequence[KeyedPath], row_field: str | None, file_field: str | None
) -> list[dict[str, Field]]:
    """Return the fields of files, followed by fields that identify the file and the number in it of each row.

    Args:
        parts: the fields of each file, at least one, of one length.
        places: the path of each file with the keys in its name.
        row_field: a name for the numbers of the rows in their file, from 0.
        file_field: a name for the paths.

    Raises:
        ValueError: a field of a file has one of these names, or two of the names are equal.
    """
    lengths = [next((field.rows for field in part.values()), 0) for part in parts]
    numbers = _numbers(max(lengths, default=0)) if row_field is not None else None
    made = []
    for part, place, rows in zip(parts, places, lengths, strict=True):
        fields = dict(part)
        for name, value in place.keys.items():
            _add(fields, place, name, constant(name, value, rows))
        if row_field is not None and numbers is not None:
            _add(fields, place, row_field, Field(torch.int64, (), Column(8, [(numbers, 0, rows, 8)])))
        if file_field is not None:
            _add(fields, place, file_field, constant(file_field, str(place.path), rows))
        made.append(fields)
    return made


def key_options(paths: PathLike | Iterable[PathLike], row_field: str | None, file_field: str | None) -> list[str]:
    """Return the arguments by which `memload write` gives rows the same keys, sources last; [] if rows have no keys."""
    options = [("--row-field", row_field), ("--file-field", file_field)]
    given = [part for option, name in options if name is not None for part in (option, name)]
    sources = [os.fspath(path) for path in entries_of(paths)]
    return [*given, *sources] if given or any(map(keys_of, sources)) else []


def _add(fields: dict[str, Field], place: KeyedPath, name: str, field: Field) -> None:
    check_name(name)
    if name in fields:
        raise ValueError(
            f"{place.path}: two fields would have the name {name!r}; give the key, row_field= or file_field= another "
            "name, or the file's own field by field= or key={...}"
        )
    fields[name] = field


def constant(name: str, value: Value, rows: int) -> Field:
    """Return a field with this number or text in every row; it is stored once."""
    if isinstance(value, str):
        from memload.formats.ragged_arrays import text_field

        return text_field(name, [value]).select(np.zeros(rows, dtype=np.int64))
    one = np.array([value], dtype=np.int64)
    storage = Storage.borrow(one, one.ctypes.data, one.nbytes, f"the {name!r} of all rows")
    return Field(torch.int64, (), Column(one.nbytes, [(storage, 0, rows, 0)]))


def _numbers(count: int) -> Storage:
    """Return the numbers from 0 on, which the rows of all files share."""
    numbers = np.arange(count, dtype=np.int64)
    return Storage.borrow(numbers, numbers.ctypes.data, numbers.nbytes, "the numbers of rows")
