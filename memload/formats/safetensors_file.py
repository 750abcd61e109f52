"""Read a .safetensors file: each tensor is a field, and its first axis counts the rows."""

from __future__ import annotations

from pathlib import Path

from memload._core import Column, Storage
from memload.columns.fields import Field, row_nbytes
from memload.formats.members import Key, check_lengths, choose
from memload.formats.shards.safetensors_header import TensorEntry, read_layout


def open_safetensors(path: Path, key: Key = None, field: str | None = None) -> dict[str, Field]:
    """Return tensors of `path` as fields, in the order of its header.

    Raises:
        FormatError: the header is malformed (ShardFormatError), there is no tensor, or one is a single number.
        KeyError, TypeError: as `choose`.
        ValueError: as `choose`; or the first axes differ.
    """
    tensors = choose(path, read_layout(path).tensors, key, field)
    check_lengths(path, {name: entry.shape[0] if entry.shape else None for name, entry in tensors.items()}, key)
    storage = Storage.map_file(str(path.absolute()))
    return {name: _field(storage, entry) for name, entry in tensors.items()}


def safetensors_names(path: Path) -> list[str]:
    """Return the names of the tensors of a file.

    Raises:
        FormatError: as `open_safetensors`.
    """
    return list(read_layout(path).tensors)


def _field(storage: Storage, entry: TensorEntry) -> Field:
    rows, *shape = entry.shape
    row_bytes = row_nbytes(entry.dtype, shape)
    return Field(entry.dtype, tuple(shape), Column(row_bytes, [(storage, entry.begin, rows, row_bytes)]))
