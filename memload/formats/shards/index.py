"""index.json lists the fields and shards of a set. docs/format.md describes every byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from memload.columns.fields import row_nbytes
from memload.dtypes import code_of
from memload.errors import ShardFormatError
from memload.formats.codecs.codec import Codec, parse_codec_entry
from memload.formats.paths import nothing_at, what_a_folder_has
from memload.formats.shards.ragged_spec import (
    RaggedSpec,
    blocks_name,
    is_ragged_shape,
    offsets_name,
    parse_items,
    parse_ragged,
)
from memload.formats.shards.safetensors_header import (
    check_counts,
    check_name_read,
    is_count,
    parse_dtype,
    parse_shape,
    unique_keys,
)

INDEX_NAME = "index.json"
RECORDING_NAME, TIMES_NAME = "recording.json", "times.npz"  # of a folder with several sets; see ../recordings/folder.py
ROWS_FOLDER = "rows"  # of a set inside a set; see lookups.py
PARTS_FOLDER, SEALING_FOLDER = ".parts", ".sealing"  # of a set that is written in parts; see parts.py
JOB_PREFIX = "job-"  # how the folder of a job's parts begins
PARTS_HERE = "parts of a set are here, which `memload seal`, or memload.seal, makes one set of once all are written"
PARTS_OF_JOB = "parts of a job of Ray are here, which seals them itself; if it was killed, remove them"
FORMAT_NAME = "memload-shards"
FORMAT_VERSION = 2
CHECK_BLOCK = 2**22  # bytes under one checksum, or one row where a row is larger
_DIGITS = 16  # hexadecimal digits of one checksum
_MOST_BYTES = 2**30  # of an index: the checksums of 256 TiB


@dataclass(frozen=True)
class FieldSpec:
    """A field in the index: the dtype and shape of one row, the rows under one checksum, and the codec.

    The codec has all defaults resolved. A checksum covers whole blocks of it.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    block_rows: int
    codec: Codec | None = None

    @classmethod
    def of_rows(cls, dtype: torch.dtype, shape: tuple[int, ...], codec: Codec | None = None) -> FieldSpec:
        """Return the field with as many rows under a checksum as fit into 4 MiB, but at least one row or block.

        Rows without bytes are not compressed.
        """
        row_bytes = row_nbytes(dtype, shape)
        codec = codec.of(dtype, shape) if codec and row_bytes else None
        unit = codec.rows or 1 if codec else 1
        return cls(dtype, shape, max(1, CHECK_BLOCK // max(1, row_bytes) // unit) * unit, codec)

    def coded(self, codec: Codec | None) -> FieldSpec:
        """Return the same field with this codec, or without one."""
        return self.of_rows(self.dtype, self.shape, codec)

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return row_nbytes(self.dtype, self.shape)

    @property
    def signature(self) -> tuple[Any, ...]:
        """The properties that all rows of the field share, for comparison."""
        return self.dtype, self.shape

    def tensors(self, name: str, rows: int, _items: int = 0) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of each tensor of this field in a shard with so many rows.

        The tensor of encoded blocks is left out, because its size is unknown.
        """
        if self.codec is not None:
            return {offsets_name(name): (torch.int64, (-(-rows // (self.codec.rows or 1)) + 1,))}
        return {name: (self.dtype, (rows, *self.shape))}

    def blocks(self, name: str, rows: int, _items: int = 0) -> dict[str, int]:
        """Return the number of checksums of each tensor."""
        return {name: -(-rows // self.block_rows)}

    def entry(self) -> dict[str, Any]:
        """Return the entry of the field in index.json."""
        entry = {"dtype": code_of(self.dtype), "shape": list(self.shape), "block_rows": self.block_rows}
        return entry if self.codec is None else {**entry, "codec": asdict(self.codec)}


AnySpec = FieldSpec | RaggedSpec
"""A field with rows of one shape, or a ragged field."""


@dataclass(frozen=True)
class ShardRecord:
    """A shard in the index.

    Attributes:
        file: the name of its file.
        rows: the number of rows.
        nbytes: the bytes of the file.
        checksums: XXH3-64 of each block of each tensor.
        items: the number of items in all rows, for each ragged field.
        tensors: where each tensor begins and ends in the file, in bytes; None if the index does not say.
        offsets: the content of small tensors of offsets, see stated_offsets.py.
    """

    file: str
    rows: int
    nbytes: int
    checksums: Mapping[str, tuple[str, ...]]
    items: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, tuple[int, int]] | None = None
    offsets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardIndex:
    """The content of a checked index.json.

    Attributes:
        fields: the fields.
        shards: the shards.
        inner: whether the set has an inner set, see lookups.py; None if the index does not say.
        parts: of how many parts the set was sealed; None if the index does not say.
    """

    fields: Mapping[str, AnySpec]
    shards: tuple[ShardRecord, ...]
    inner: bool | None = None
    parts: int | None = None

    @property
    def rows(self) -> int:
        """The rows of all shards."""
        return sum(shard.rows for shard in self.shards)


def tensors_of(
    fields: Mapping[str, AnySpec], rows: int, items: Mapping[str, int]
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return the dtype and whole shape of each tensor of known size in a shard with so many rows and items.

    The order is that of the file: by descending size of their elements, which keeps each tensor aligned.
    """
    forms = {
        tensor: form
        for name, spec in fields.items()
        for tensor, form in spec.tensors(name, rows, items.get(name, 0)).items()
    }
    return dict(sorted(forms.items(), key=lambda item: -item[1][0].itemsize))


def offset_tensors(fields: Mapping[str, AnySpec]) -> list[str]:
    """Return the names of the tensors of offsets: of ragged rows, and of encoded blocks."""
    names: list[str] = []
    for name, spec in fields.items():
        ragged = isinstance(spec, RaggedSpec)
        if ragged or spec.codec is not None:
            names.append(offsets_name(name))
        if ragged and spec.codec is not None:
            names.append(blocks_name(name))
    return names


def check_names(fields: Mapping[str, AnySpec]) -> None:
    """Raise ValueError if a field has a name that another one needs for its further tensors."""
    owners = {tensor: name for name, spec in fields.items() for tensor in spec.tensors(name, 0, 0) if tensor != name}
    for name in fields:
        if name in owners:
            what = "offsets" if name.endswith(".offsets") else "blocks"
            raise ValueError(f"field {name!r} has the name of the {what} of field {owners[name]!r}; give it another")


def dump_index(index: ShardIndex) -> bytes:
    """Return the bytes of index.json."""
    compressed = any(spec.codec for spec in index.fields.values())
    ragged = any(isinstance(spec, RaggedSpec) for spec in index.fields.values())
    content = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION if compressed or ragged else 1,  # older versions of memload can read version 1
        "rows": index.rows,
        **({} if index.inner is None else {"inner": index.inner}),
        **({} if index.parts is None else {"parts": index.parts}),
        "fields": {name: spec.entry() for name, spec in index.fields.items()},
        "shards": [
            {
                "file": shard.file,
                "rows": shard.rows,
                "bytes": shard.nbytes,
                "xxh3_64": {name: "".join(sums) for name, sums in shard.checksums.items()},
                **({"items": dict(shard.items)} if shard.items else {}),
                **({} if shard.tensors is None else {"tensors": {name: [*at] for name, at in shard.tensors.items()}}),
                **({"offsets": dict(shard.offsets)} if shard.offsets else {}),
            }
            for shard in index.shards
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def read_index(directory: Path) -> ShardIndex:
    """Return the index of a directory of shards.

    Raises:
        ShardFormatError: the index is missing, malformed, or from a newer version.
    """
    path = directory / INDEX_NAME
    if not path.exists():
        raise ShardFormatError(f"{directory}: {_why_no_index(directory)}")
    try:
        return parse_index(_bounded(path))
    except ShardFormatError as error:
        raise ShardFormatError(f"{path}: {error}") from error.__cause__


def _why_no_index(directory: Path) -> str:
    if not directory.exists():
        return f"{nothing_at(directory)}; expected a directory that memload.write made"
    if not directory.is_dir():
        return "a file; expected a directory that memload.write made"
    if waiting := parts_waiting(directory):
        return waiting
    found = what_a_folder_has(directory, INDEX_NAME, RECORDING_NAME)
    return f"no {INDEX_NAME} here, so this is no finished set of shards; {found}"


def parts_waiting(directory: Path) -> str:
    """Say whose parts are in a directory that is no set yet, and what makes one of them; "" if there are none."""
    if (directory / SEALING_FOLDER).exists():
        return "parts of a set are being sealed here; if that was interrupted, memload.seal ends it"
    if any((directory / PARTS_FOLDER).glob(f"{JOB_PREFIX}*")):
        return PARTS_OF_JOB
    return PARTS_HERE if (directory / PARTS_FOLDER).exists() else ""


def _bounded(path: Path) -> bytes:
    """Return the bytes of an index. A pipe, which could block for ever, and a file beyond memory are refused."""
    if not path.is_file():
        raise ShardFormatError("not a file; restore it, or write the shards again")
    found = path.stat().st_size
    if found > _MOST_BYTES:
        raise ShardFormatError(f"it has {found} bytes, and an index at most {_MOST_BYTES}; restore it")
    return path.read_bytes()


def parse_index(raw: bytes) -> ShardIndex:
    """Return the content of an index.json from its bytes. Raises ShardFormatError, and nothing else."""
    try:
        content = json.loads(raw.decode(), object_pairs_hook=unique_keys)
    except ShardFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise ShardFormatError(f"not JSON in UTF-8 ({error}); restore the file, or write the shards again") from error
    _check_version(content)
    newer = content["version"] > 1
    fields = {name: _field(name, entry, newer) for name, entry in _members(content, "fields", dict).items()}
    if not fields:
        raise ShardFormatError("fields: there must be at least one")
    try:
        check_names(fields)
    except ValueError as error:
        raise ShardFormatError(str(error)) from None
    shards = tuple(_shard(k, entry, fields) for k, entry in enumerate(_members(content, "shards", list)))
    index = ShardIndex(fields, shards, _inner(content), _parts(content))
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
            f"written in format version {version}, but this memload reads up to {FORMAT_VERSION}: install a newer one"
        )


def _inner(content: Mapping[str, Any]) -> bool | None:
    inner = content.get("inner")
    if inner is not None and not isinstance(inner, bool):
        raise ShardFormatError(f"inner: expected true or false, got {inner!r:.80}")
    return inner


def _parts(content: Mapping[str, Any]) -> int | None:
    parts = content.get("parts")
    if parts is None:
        return None
    if not is_count(parts) or parts == 0:
        raise ShardFormatError(f"parts: expected a number of at least 1, got {parts!r:.80}")
    return parts


def _members(content: Mapping[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        raise ShardFormatError(f"{name}: expected {'an object' if kind is dict else 'an array'}, got {value!r:.80}")
    return value


def _field(name: str, entry: object, newer: bool) -> AnySpec:
    where = f"field {name!r}"
    check_name_read(name)
    if not isinstance(entry, dict):
        raise ShardFormatError(f"{where}: expected an object of dtype, shape and block_rows")
    block_rows = entry.get("block_rows")
    if not is_count(block_rows) or block_rows == 0:
        raise ShardFormatError(f"{where}: block_rows must be at least 1, got {block_rows!r:.80}")
    if newer and is_ragged_shape(entry.get("shape")):
        return parse_ragged(entry, block_rows, where)
    dtype, shape = parse_dtype(entry.get("dtype"), where), parse_shape(entry.get("shape"), where)
    check_counts(dtype, shape, 1, where)
    if newer and "codec" in entry:
        codec = parse_codec_entry(where, entry["codec"], row_nbytes(dtype, shape), block_rows)
        return FieldSpec(dtype, shape, block_rows, codec)
    return FieldSpec(dtype, shape, block_rows)


def _shard(position: int, entry: object, fields: Mapping[str, AnySpec]) -> ShardRecord:
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
    ragged = [name for name, spec in fields.items() if isinstance(spec, RaggedSpec)]
    items = parse_items(entry.get("items"), ragged, where) if ragged else {}
    blocks: dict[str, int] = {}
    for name, spec in fields.items():
        blocks |= spec.blocks(name, rows, items.get(name, 0))
    sums = entry.get("xxh3_64")
    if not isinstance(sums, dict) or set(sums) != set(blocks):
        raise ShardFormatError(f"{where}: xxh3_64 must be an object with the checksums of each field")
    checksums = {name: _checksums(f"{where}, field {name!r}", sums[name], count) for name, count in blocks.items()}
    tensors = _tensors(entry.get("tensors"), nbytes, where)
    return ShardRecord(file, rows, nbytes, checksums, items, tensors, _offsets(entry.get("offsets", {}), where))


def _tensors(entry: object, nbytes: int, where: str) -> dict[str, tuple[int, int]] | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise ShardFormatError(f"{where}: tensors must be an object of [begin, end], got {entry!r:.80}")
    for name, at in entry.items():
        counts = isinstance(at, list) and len(at) == 2 and all(map(is_count, at))
        if not counts or not 8 <= at[0] <= at[1] <= nbytes:
            raise ShardFormatError(
                f"{where}: tensor {name!r} must be [begin, end] within the file's {nbytes} bytes, got {at!r:.80}"
            )
    return {name: (at[0], at[1]) for name, at in entry.items()}


def _offsets(entry: object, where: str) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
        raise ShardFormatError(f"{where}: offsets must be an object of texts, got {entry!r:.80}")
    return entry


def _checksums(where: str, digits: object, blocks: int) -> tuple[str, ...]:
    if not isinstance(digits, str) or len(digits) != _DIGITS * blocks or digits.strip("0123456789abcdef"):
        raise ShardFormatError(f"{where}: xxh3_64 must be {_DIGITS} lower-case hexadecimal digits per block ({blocks})")
    return tuple(digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS))


def _check_sums(index: ShardIndex, rows: object) -> None:
    if not is_count(rows) or rows != index.rows:
        raise ShardFormatError(f"rows do not add up: {rows!r:.80} are stated, the shards have {index.rows}")
    for name, spec in index.fields.items():
        where = f"all shards, field {name!r}"
        if isinstance(spec, RaggedSpec):
            items = sum(shard.items[name] for shard in index.shards)
            check_counts(spec.dtype, (spec.planes, items, *spec.item_shape), 1, where)
        else:
            check_counts(spec.dtype, spec.shape, index.rows, where)
    files = [shard.file for shard in index.shards]
    if len(set(files)) != len(files):
        raise ShardFormatError("a shard is listed twice")
