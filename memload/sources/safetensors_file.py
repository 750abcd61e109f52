"""A .safetensors file: each tensor is a field, and its first axis counts the rows."""

from __future__ import annotations

from pathlib import Path

from memload._core import Column, Storage
from memload.errors import FormatError
from memload.fields import Field, check_equal_lengths, row_nbytes
from memload.shards.safetensors_header import TensorEntry, read_layout


def open_safetensors(path: Path) -> dict[str, Field]:
    """Return the tensors of `path` as fields, in the order of its header.

    Raises:
        FormatError: the header is malformed (ShardFormatError), there is no tensor, or one of a single number.
        ValueError: the first axes differ; the message has them all.
    """
    tensors = read_layout(path).tensors
    if not tensors:
        raise FormatError(f"{path}: holds no tensors")
    for name, entry in tensors.items():
        if not entry.shape:
            raise FormatError(f"{path}: tensor {name!r} is a single number; expected a first axis that counts the rows")
    check_equal_lengths({name: entry.shape[0] for name, entry in tensors.items()}, f"{path}: the tensors")
    storage = Storage.map_file(str(path.absolute()))
    return {name: _field(storage, entry) for name, entry in tensors.items()}


def _field(storage: Storage, entry: TensorEntry) -> Field:
    rows, *shape = entry.shape
    row_bytes = row_nbytes(entry.dtype, shape)
    return Field(entry.dtype, tuple(shape), Column(row_bytes, [(storage, entry.begin, rows, row_bytes)]))
