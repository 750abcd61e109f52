"""index.json: what a directory of shards holds. docs/format.md describes every byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from memload.codec import LARGEST_BLOCK, Codec
from memload.dtypes import code_of
from memload.errors import ShardFormatError
from memload.fields import check_name, row_nbytes
from memload.safetensors_header import check_counts, is_count, parse_dtype, parse_shape, unique_keys

INDEX_NAME = "index.json"
FORMAT_NAME = "memload-shards"
FORMAT_VERSION = 2
CHECK_BLOCK = 2**22  # bytes under one checksum, or one row where a row is larger
_DIGITS = 16  # hexadecimal digits of one checksum


@dataclass(frozen=True)
class FieldSpec:
    """What the index says of a field: the dtype and shape of one row, how many rows share a checksum, and the codec.

    A codec is one with all choices made; it stands for its blocks, of which a checksum covers whole ones.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    block_rows: int
    codec: Codec | None = None

    @classmethod
    def of_rows(cls, dtype: torch.dtype, shape: tuple[int, ...], codec: Codec | None = None) -> FieldSpec:
        """Return the field with as many rows to a checksum as fit into 4 MiB, at least one, or one block of the codec.

        Rows without bytes are not compressed.
        """
        row_bytes = row_nbytes(dtype, shape)
        codec = codec.of(dtype, shape) if codec and row_bytes else None
        unit = codec.rows or 1 if codec else 1
        return cls(dtype, shape, max(1, CHECK_BLOCK // max(1, row_bytes) // unit) * unit, codec)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return row_nbytes(self.dtype, self.shape)

    def blocks(self, rows: int) -> int:
        """Return how many checksums stand for `rows` rows."""
        return -(-rows // self.block_rows)


@dataclass(frozen=True)
class ShardRecord:
    """What the index says of one shard; `checksums` has XXH3-64 of each block of rows, for each field."""

    file: str
    rows: int
    nbytes: int
    checksums: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class ShardIndex:
    """A checked index.json."""

    fields: Mapping[str, FieldSpec]
    shards: tuple[ShardRecord, ...]

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.rows for shard in self.shards)


def dump_index(index: ShardIndex) -> bytes:
    """Return the bytes of index.json."""
    compressed = any(field.codec for field in index.fields.values())
    content = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION if compressed else 1,  # what older memloads read as well, they shall
        "rows": index.rows,
        "fields": {name: _field_entry(field) for name, field in index.fields.items()},
        "shards": [
            {
                "file": shard.file,
                "rows": shard.rows,
                "bytes": shard.nbytes,
                "xxh3_64": {name: "".join(sums) for name, sums in shard.checksums.items()},
            }
            for shard in index.shards
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def _field_entry(field: FieldSpec) -> dict[str, Any]:
    entry = {"dtype": code_of(field.dtype), "shape": list(field.shape), "block_rows": field.block_rows}
    return entry if field.codec is None else {**entry, "codec": asdict(field.codec)}


def read_index(directory: Path) -> ShardIndex:
    """Return the index of a directory of shards.

    Raises:
        ShardFormatError: there is none, or it is malformed or from a newer version.
    """
    path = directory / INDEX_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ShardFormatError(
            f"{directory}: no {INDEX_NAME} here, so this is no finished set of shards; memload.write makes one, and a "
            "writer that was interrupted leaves none"
        ) from None
    try:
        return parse_index(raw)
    except ShardFormatError as error:
        raise ShardFormatError(f"{path}: {error}") from error.__cause__


def parse_index(raw: bytes) -> ShardIndex:
    """Return the index that the bytes of an index.json state. Raises ShardFormatError, and nothing else."""
    try:
        content = json.loads(raw.decode(), object_pairs_hook=unique_keys)
    except ShardFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise ShardFormatError(f"not JSON in UTF-8 ({error}); restore the file, or write the shards again") from error
    _check_version(content)
    coded = content["version"] > 1
    fields = {name: _field(name, entry, coded) for name, entry in _members(content, "fields", dict).items()}
    if not fields:
        raise ShardFormatError("fields: there must be at least one")
    shards = tuple(_shard(k, entry, fields) for k, entry in enumerate(_members(content, "shards", list)))
    index = ShardIndex(fields, shards)
    _check_sums(index, content.get("rows"))
    return index


def _check_version(content: object) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise ShardFormatError(f'not an index of memload: expected an object with "format": "{FORMAT_NAME}"')
    version = content.get("version")
    if not is_count(version) or version == 0:
        raise ShardFormatError(f"version: expected a number from 1 to {FORMAT_VERSION}, got {version!r}")
    if version > FORMAT_VERSION:
        raise ShardFormatError(
            f"written in format version {version}, and this memload reads up to {FORMAT_VERSION}: install a newer one"
        )


def _members(content: Mapping[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        raise ShardFormatError(f"{name}: expected {'an object' if kind is dict else 'an array'}, got {value!r:.80}")
    return value


def _field(name: str, entry: object, coded: bool) -> FieldSpec:
    where = f"field {name!r}"
    try:
        check_name(name)
    except ValueError as error:
        raise ShardFormatError(str(error)) from None
    if not isinstance(entry, dict):
        raise ShardFormatError(f"{where}: expected an object of dtype, shape and block_rows")
    block_rows = entry.get("block_rows")
    if not is_count(block_rows) or block_rows == 0:
        raise ShardFormatError(f"{where}: block_rows must be at least 1, got {block_rows!r:.80}")
    dtype, shape = parse_dtype(entry.get("dtype"), where), parse_shape(entry.get("shape"), where)
    check_counts(dtype, shape, 1, where)
    codec = _codec(where, entry["codec"], row_nbytes(dtype, shape), block_rows) if coded and "codec" in entry else None
    return FieldSpec(dtype, shape, block_rows, codec)


def _codec(where: str, entry: object, row_bytes: int, block_rows: int) -> Codec:
    if not isinstance(entry, dict) or set(entry) != {"name", "level", "shuffle", "rows"} or None in entry.values():
        raise ShardFormatError(
            f"{where}: codec: expected an object of name, level, shuffle and rows, got {entry!r:.80}"
        )
    try:
        codec = Codec(**entry)
    except (TypeError, ValueError) as error:
        raise ShardFormatError(f"{where}: codec: {error}") from error
    rows = codec.rows or 1
    if row_bytes == 0 or rows * row_bytes > LARGEST_BLOCK or block_rows % rows:
        raise ShardFormatError(
            f"{where}: codec: blocks of {rows} rows of {row_bytes} bytes cannot be, with checksums of {block_rows} rows"
        )
    return codec


def _shard(position: int, entry: object, fields: Mapping[str, FieldSpec]) -> ShardRecord:
    where = f"shard {position}"
    if not isinstance(entry, dict):
        raise ShardFormatError(f"{where}: expected an object of file, rows, bytes and xxh3_64")
    file, rows, nbytes = entry.get("file"), entry.get("rows"), entry.get("bytes")
    if not isinstance(file, str) or file in ("", ".", "..") or "/" in file or "\0" in file:
        raise ShardFormatError(
            f"{where}: file must be the plain name of a file in the same directory, got {file!r:.80}"
        )
    if not is_count(rows) or not is_count(nbytes):
        raise ShardFormatError(f"{where}: rows and bytes must be counts, got {rows!r:.80} and {nbytes!r:.80}")
    sums = entry.get("xxh3_64")
    if not isinstance(sums, dict) or set(sums) != set(fields):
        raise ShardFormatError(f"{where}: xxh3_64 must be an object with the checksums of each field")
    checksums = {name: _checksums(f"{where}, field {name!r}", sums[name], fields[name].blocks(rows)) for name in fields}
    return ShardRecord(file, rows, nbytes, checksums)


def _checksums(where: str, digits: object, blocks: int) -> tuple[str, ...]:
    if not isinstance(digits, str) or len(digits) != _DIGITS * blocks or digits.strip("0123456789abcdef"):
        raise ShardFormatError(f"{where}: xxh3_64 must be {_DIGITS} lower-case hexadecimal digits per block ({blocks})")
    return tuple(digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS))


def _check_sums(index: ShardIndex, rows: object) -> None:
    if not is_count(rows) or rows != index.rows:
        raise ShardFormatError(f"rows do not add up: {rows!r:.80} are stated, the shards have {index.rows}")
    for name, field in index.fields.items():
        check_counts(field.dtype, field.shape, index.rows, f"all shards, field {name!r}")
    files = [shard.file for shard in index.shards]
    if len(set(files)) != len(files):
        raise ShardFormatError("a shard is listed twice")
