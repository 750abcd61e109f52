"""The header of a safetensors file: parse bytes to a checked layout, and format a layout to bytes.

    | 8 bytes: n, little-endian | n bytes: JSON, padded with spaces | data ... to the end of the file |

The JSON is {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..., "__metadata__": {..}}; offsets
count from the end of the header, and the tensors fill the rest of the file without gap or overlap. The format is that
of https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch

from memload.columns.fields import RESERVED_NAME, check_name, check_size, row_nbytes
from memload.dtypes import TORCH_DTYPES, code_of
from memload.errors import ShardFormatError

DATA_ALIGN = 4096
MAX_HEADER = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file: its dtype, its whole shape, and its bytes [begin, end) of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class ShardLayout:
    """A checked header: each tensor by name, in the header's order, and the size of the file."""

    tensors: Mapping[str, TensorEntry]
    file_size: int


def read_layout(path: Path) -> ShardLayout:
    """Return the layout of the safetensors file at `path`.

    Raises:
        ShardFormatError: the header is malformed or does not fit the length of the file; the message names the file.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file_size = os.fstat(file.fileno()).st_size
        try:
            start = file.read(8)
            return parse_header(start + file.read(header_length(start, file_size)), file_size)
        except ShardFormatError as error:
            raise ShardFormatError(f"{path}: {error}") from error.__cause__


def header_length(start: bytes, file_size: int) -> int:
    """Return the length of the JSON in the first 8 bytes. Raises ShardFormatError if the file is too short for it."""
    if file_size < 8 or len(start) < 8:
        raise ShardFormatError(f"a safetensors file has at least 8 bytes, this one has {file_size}")
    length = int.from_bytes(start[:8], "little")
    if length > file_size - 8:
        raise ShardFormatError(
            f"the header states {length} bytes, but only {file_size - 8} follow: cut short, or not safetensors"
        )
    if length > MAX_HEADER:
        raise ShardFormatError(f"the header is said to have {length} bytes; the format allows {MAX_HEADER}")
    return length


def parse_header(start: bytes, file_size: int) -> ShardLayout:
    """Return the layout from the first bytes of a file.

    Args:
        start: the file's first bytes, at least to the end of its header.
        file_size: the bytes of the whole file.

    Raises:
        ShardFormatError: anything is wrong with the bytes; no other error is raised.
    """
    length = header_length(start, file_size)
    data_start = 8 + length
    header = _parse_json(start[8:data_start])
    _check_metadata(header.pop(RESERVED_NAME, {}))
    tensors = {name: _entry(name, entry, data_start) for name, entry in header.items()}
    _check_gapless(tensors, data_start, file_size)
    return ShardLayout(tensors, file_size)


def build_header(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], data_start: int | None = None) -> bytes:
    """Return the header of a file whose tensors follow one another in this order.

    Args:
        tensors: the dtype and whole shape of each tensor, by name.
        data_start: the place of the first tensor; by default the first possible multiple of 4096.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + row_nbytes(dtype, shape)
        header[name] = {"dtype": code_of(dtype), "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if data_start is None:
        data_start = -(-(8 + len(text)) // DATA_ALIGN) * DATA_ALIGN
    return (data_start - 8).to_bytes(8, "little") + text.ljust(data_start - 8, b" ")


def places_of(header: bytes, file_size: int) -> dict[str, tuple[int, int]]:
    """Return the bytes [begin, end) of each tensor in a file with this header."""
    return {name: (entry.begin, entry.end) for name, entry in parse_header(header, file_size).tensors.items()}


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; for json.loads. Raises ShardFormatError if a name occurs twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name, _ in pairs if times[name] > 1)
        raise ShardFormatError(f"the name {twice!r} occurs twice")
    return members


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is an integer in [0, 2^63); true and false are not."""
    return type(value) is int and 0 <= value < 2**63


def _parse_json(raw: bytes) -> dict[str, Any]:
    if raw[:1] != b"{":
        raise ShardFormatError(f"the header must begin with '{{', got {raw[:1]!r}")
    try:
        header = json.loads(raw.decode(), object_pairs_hook=unique_keys)
    except ShardFormatError as error:
        raise ShardFormatError(f"the header is malformed: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ShardFormatError(f"the header is not JSON in UTF-8: {error}") from error
    assert isinstance(header, dict)
    return header


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ShardFormatError(f"{RESERVED_NAME} must be an object of texts")


def check_name_read(name: str) -> None:
    """Raise ShardFormatError unless a name in the file is a valid name of a field."""
    try:
        check_name(name)
    except ValueError as error:
        raise ShardFormatError(str(error)) from None


def _entry(name: str, entry: object, data_start: int) -> TensorEntry:
    check_name_read(name)
    where = f"tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ShardFormatError(f"{where}: expected an object of dtype, shape and data_offsets")
    dtype = parse_dtype(entry["dtype"], where)
    shape = parse_shape(entry["shape"], where)
    check_counts(dtype, shape[1:], shape[0] if shape else 1, where)
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise ShardFormatError(f"{where}: data_offsets must be two counts")
    begin, end = offsets
    if end - begin != row_nbytes(dtype, shape):
        raise ShardFormatError(
            f"{where}: {entry['dtype']} {list(shape)} has {row_nbytes(dtype, shape)} bytes, "
            f"but data_offsets [{begin}, {end}] span {end - begin}"
        )
    return TensorEntry(dtype, shape, data_start + begin, data_start + end)


def parse_dtype(code: object, where: str) -> torch.dtype:
    """Return the dtype of a safetensors code. Raises ShardFormatError for others."""
    if not isinstance(code, str) or code not in TORCH_DTYPES:
        raise ShardFormatError(f"{where}: unknown dtype {code!r}; known are {', '.join(TORCH_DTYPES)}")
    return TORCH_DTYPES[code]


def parse_shape(shape: object, where: str) -> tuple[int, ...]:
    """Return a JSON array of counts as a tuple. Raises ShardFormatError for anything else."""
    if not isinstance(shape, list) or not all(map(is_count, shape)):
        raise ShardFormatError(f"{where}: the shape must be an array of counts")
    return tuple(shape)


def check_counts(dtype: torch.dtype, shape: tuple[int, ...], rows: int, where: str) -> None:
    """Raise ShardFormatError if there are too many rows, or bytes in them."""
    try:
        check_size(dtype, shape, rows)
    except ValueError as error:
        raise ShardFormatError(f"{where}: {error}") from None


def _check_gapless(tensors: Mapping[str, TensorEntry], data_start: int, file_size: int) -> None:
    at = data_start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            kind = "overlaps" if entry.begin < at else "leaves a gap to"
            raise ShardFormatError(
                f"tensor {name!r} {kind} what precedes it: it begins at byte {entry.begin} instead of {at}"
            )
        at = entry.end
    if at != file_size:
        kind = "cut short" if file_size < at else "lengthened"
        raise ShardFormatError(f"the file is {kind}: the header says {at} bytes, but the file has {file_size}")
