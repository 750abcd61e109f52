"""Identify a source of rows without reading it, so that a write is resumed with the same rows only."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from memload.columns.fields import Field, HasFields, describe, digest_of
from memload.columns.pickled_columns import pack_columns
from memload.formats.row_digests import digest_of_rows

_MOST_IN_MEMORY = 2**27  # bytes to hash; the keys of rows in files take 8 bytes for each row of the longest file


def identity_of(dataset: HasFields) -> str | None:
    """Return a short text that is equal for datasets of the same rows in the same order, in files.

    The text depends on the paths, sizes and modification times of the files and on the places of rows in them. Data in
    memory beside the files (keys of rows, fill values) is hashed, and so are rows that were read from files into memory
    as a whole, whose fields have a digest. The result is None if no other data is in files, or if more than 128 MiB is
    in memory.
    """
    if dataset.fields and all(map(_read_once, dataset.fields.values())):
        return digest_of(f"{name} {digest_of_rows(field)}" for name, field in dataset.fields.items())
    storages = [storage for field in dataset.fields.values() for storage in field.column.storages]
    files = {storage.name for storage in storages if storage.mapped}
    if not files or sum(storage.nbytes for storage in storages if not storage.mapped) > _MOST_IN_MEMORY:
        return None
    hasher = xxhash.xxh3_64()
    for name in sorted(files):
        try:
            found = Path(name).stat()
        except OSError:
            return None
        hasher.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    for name, field in dataset.fields.items():
        hasher.update(f"{name}\0{describe(field.dtype, field.shape)}\0{field.rows}\0{field.digest}\0".encode())
    _feed(hasher, pack_columns([field.column for field in dataset.fields.values()]))
    return hasher.hexdigest()


def _read_once(field: Field) -> bool:
    """Return whether the rows were read from a file into memory as a whole, and are no image of a tier."""
    return bool(field.digest) and not any(one.mapped or one.is_image for one in field.column.storages)


def _feed(hasher: Any, value: Any) -> None:
    """Hash the pickled form of a dataset's columns; arrays count by their bytes."""
    if isinstance(value, np.ndarray):
        hasher.update(f"{value.dtype.str}{value.shape}".encode())
        hasher.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif dataclasses.is_dataclass(value):
        hasher.update(type(value).__name__.encode())
        _feed(hasher, [getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, dict):
        _feed(hasher, list(value.items()))
    elif isinstance(value, (list, tuple)):
        hasher.update(f"[{len(value)}".encode())
        for part in value:
            _feed(hasher, part)
    else:
        hasher.update(f"{type(value).__name__}:{value!r};".encode())
