"""Limit the number of files that a dataset has open at once: `max_open_files` of `memload.open`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

from memload._core import OpenFiles, Storage
from memload.columns.fields import Field
from memload.columns.numbers import kind
from memload.columns.parts import on_storages


def bounded(fields: Mapping[str, Field], max_open_files: int) -> dict[str, Field]:
    """Return the fields on files of which at most so many are open at once; other fields have their own limit.

    A mapped file has no descriptor; only reads past the page cache need one.

    Raises:
        TypeError: the limit is not an integer.
        ValueError: the limit is less than 1.
    """
    try:
        limit = operator.index(max_open_files)
    except TypeError:
        raise TypeError(f"max_open_files is a number of files, got {kind(max_open_files)}") from None
    if limit < 1:
        raise ValueError(f"max_open_files is at least 1, got {limit}")
    table = OpenFiles(limit)
    made: dict[Storage, Storage] = {}

    def exchange(storage: Storage) -> Storage:
        if storage.closed or not storage.mapped:
            return storage
        if storage not in made:
            made[storage] = Storage.map_file(
                storage.name, storage.past_cache, storage.cache, storage.tier, storage.reason, table
            )
        return made[storage]

    return {name: replace(field, column=on_storages(field.column, exchange)) for name, field in fields.items()}
