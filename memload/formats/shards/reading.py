"""Open a directory of shards as columns, and verify it against its checksums."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import xxhash

from memload._core import Column, Storage, Tiles
from memload.columns.fields import Field, describe, digest_of
from memload.errors import ChecksumError, Damage, ShardFormatError
from memload.formats.codecs.fields import grids_of, read_starts
from memload.formats.paths import is_remote
from memload.formats.shards.index import (
    INDEX_NAME,
    RECORDING_NAME,
    ROWS_FOLDER,
    TIMES_NAME,
    AnySpec,
    FieldSpec,
    ShardIndex,
    ShardRecord,
    read_index,
    tensors_of,
)
from memload.formats.shards.ragged_shards import MappedShard, checked_blocks, open_ragged, rows_of_blocks
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.safetensors_header import ShardLayout, read_layout
from memload.sizes import counted

if TYPE_CHECKING:
    from memload.progress import Bar

_MOST_TOLD = 20  # places of damage in a message
_READ_BYTES = 2**22


def open_shards(directory: Path) -> dict[str, Field]:
    """Return the fields of a directory of shards, mapped; the length and header of each shard are checked.

    Raises:
        ShardFormatError: the index, a shard's name, length or header is wrong.
    """
    return opened_shards(directory, read_index(directory))


def opened_shards(directory: Path, index: ShardIndex) -> dict[str, Field]:
    """Return the fields of the shards in an index; otherwise as `open_shards`."""
    mapped: list[MappedShard] = []
    for shard in index.shards:
        layout = check_shard(directory, shard, index.fields)
        mapped.append(MappedShard(Storage.map_file(str(directory.absolute() / shard.file)), layout, shard))
    return fields_on(index, mapped)


def fields_on(index: ShardIndex, shards: Sequence[MappedShard]) -> dict[str, Field]:
    """Return the fields of an index over its shards.

    Raises:
        ShardFormatError: the offsets of a field are invalid.
    """
    return {name: _open_field(name, field, shards) for name, field in index.fields.items()}


def _open_field(name: str, field: AnySpec, shards: Sequence[MappedShard]) -> Field:
    if isinstance(field, RaggedSpec):
        return open_ragged(name, field, shards)
    digest = digest_of(digits for one in shards for digits in one.record.checksums[name])
    column: Column | Tiles
    if field.codec is None:
        begins = [one.layout.tensors[name].begin for one in shards]
        places = [
            (one.storage, begin, one.record.rows, field.row_bytes) for one, begin in zip(shards, begins, strict=True)
        ]
        column = Column(field.row_bytes, places)
    else:
        column = Tiles(
            [
                grid
                for storage, layout, shard, read in shards
                for grid in grids_of(storage, Path(storage.name), name, field, shard.rows, layout.tensors, read)
            ]
        )
    return Field(field.dtype, field.shape, column, digest=digest)


def check_shard(directory: Path, shard: ShardRecord, fields: Mapping[str, AnySpec]) -> ShardLayout:
    """Return the layout of a shard after comparing it with the index; its data is not read.

    Raises:
        ShardFormatError: the shard is missing or outside the directory, or its length or header differ from the index.
    """
    path = directory / shard.file
    if not path.is_file():
        what = "no file" if path.exists() else "missing"
        raise ShardFormatError(f"{path}: this shard is {what}; restore it, or write the set again")
    if path.resolve().parent != directory.resolve():
        raise ShardFormatError(f"{path}: a link to {path.resolve()}, outside the directory; shards must lie inside it")
    found = path.stat().st_size
    if found != shard.nbytes:
        raise ShardFormatError(
            f"{path}: the index says {shard.nbytes} bytes, but the file has {found}; it was cut short, lengthened "
            "or replaced: restore it, or write the set again"
        )
    layout = read_layout(path)
    check_tensors(path, layout, shard, fields)
    return layout


def check_tensors(path: object, layout: ShardLayout, shard: ShardRecord, fields: Mapping[str, AnySpec]) -> None:
    """Raise ShardFormatError unless the tensors of a shard are those of the index; `path` is for the message."""
    coded = {name for name, field in fields.items() if field.codec is not None}
    expected = tensors_of(fields, shard.rows, shard.items)
    if set(layout.tensors) != {*expected, *coded}:
        raise ShardFormatError(
            f"{path}: the index has the tensors {sorted({*expected, *coded})}, the header {sorted(layout.tensors)}"
        )
    for name, entry in layout.tensors.items():
        dtype, shape = expected.get(name, (torch.uint8, entry.shape[:1]))  # blocks have as many bytes as they have
        if entry.dtype != dtype or entry.shape != shape or (name in coded and not shape):
            raise ShardFormatError(
                f"{path}: field {name!r} should be {describe(dtype, shape)} by the index, "
                f"but is {describe(entry.dtype, entry.shape)} by the header"
            )


def verify(path: str | Path, *, progress: bool | None = None) -> int:
    """Read every byte of a set of shards, compare it with the checksums, and return how many bytes were read.

    Args:
        path: the directory that memload.write made, of a recording as well.
        progress: whether to show a bar; None shows it on a terminal.

    Raises:
        ChecksumError: bytes differ; `damages` has the shard, field and rows of each place, the message the first 20
            places of each folder.
        PermissionError: a shard may not be read.
        ShardFormatError: there is no index, or a malformed one.
        ValueError: `path` is the address of a store.

    Example:
        >>> import memload, tempfile, torch
        >>> path = tempfile.mkdtemp() + "/shards"
        >>> _ = memload.write(path, {"x": torch.zeros(1000, 3)})
        >>> memload.verify(path)
        12000
    """
    if is_remote(path):
        raise ValueError(f"{path}: only folders of this machine are verified; copy the set to one, and verify that")
    directory = Path(path)
    folders = [directory]
    if (directory / RECORDING_NAME).exists():
        check_times(directory)
        folders = sorted(index.parent for index in directory.glob(f"*/{INDEX_NAME}"))
    elif (directory / ROWS_FOLDER / INDEX_NAME).exists():
        folders.append(directory / ROWS_FOLDER)
    indices = [read_index(folder) for folder in folders]
    total = sum(shard.nbytes for index in indices for shard in index.shards)
    from memload.progress import byte_bar

    with byte_bar("verify", total, progress) as bar:
        checks = [_Verification(*one, bar).run() for one in zip(folders, indices, strict=True)]
    nbytes = sum(check.nbytes for check in checks)
    damaged = {folder: check.damages for folder, check in zip(folders, checks, strict=True) if check.damages}
    if damaged:
        text = "\n".join(_told(*one) for one in damaged.items())
        places = [
            replace(one, shard=str(folder.relative_to(directory) / one.shard))
            for folder, found in damaged.items()
            for one in found
        ]
        raise ChecksumError(text, places, nbytes=nbytes)
    return nbytes


def _told(folder: Path, damages: Sequence[Damage]) -> str:
    listed = "".join(f"\n  {damage}" for damage in damages[:_MOST_TOLD])
    more = len(damages) - _MOST_TOLD
    rest = f"\n  and {counted(more, 'more place')}" if more > 0 else ""
    return f"{folder}: bytes differ from those that were written:{listed}{rest}"


def check_times(directory: Path) -> None:
    """Raise ChecksumError if an array in the times of a recording differs from its checksum."""
    try:
        with zipfile.ZipFile(directory / TIMES_NAME) as times:
            damaged = times.testzip()
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ChecksumError(f"{directory / TIMES_NAME}: damaged: {error}") from error
    if damaged is not None:
        raise ChecksumError(f"{directory / TIMES_NAME}: bytes of {damaged} differ from those that were written")


def damages_of(directory: Path, index: ShardIndex, bar: Bar) -> list[Damage]:
    """Return each place where shards differ from `index`; every byte is read."""
    return _Verification(directory, index, bar).run().damages


class _Verification:
    """Reads the shards, collects damages and counts bytes."""

    def __init__(self, directory: Path, index: ShardIndex, bar: Bar) -> None:
        self.damages: list[Damage] = []
        self.nbytes = 0
        self._directory = directory
        self._index = index
        self._bar = bar
        self._first_row = 0  # of the current shard, in the set

    def run(self) -> _Verification:
        for shard in self._index.shards:
            self.shard(shard)
        return self

    def shard(self, shard: ShardRecord) -> None:
        try:
            layout = check_shard(self._directory, shard, self._index.fields)
            with (self._directory / shard.file).open("rb", buffering=0) as file:
                for name, field in self._index.fields.items():
                    if isinstance(field, RaggedSpec):
                        self._ragged(file, name, field, shard, layout)
                        continue
                    file.seek(layout.tensors[name].begin)
                    sums = self._sums(file, field, shard, layout, name)
                    found = zip(sums, shard.checksums[name], strict=True)
                    self._report(shard, name, field, (k for k, (got, want) in enumerate(found) if got != want))
        except PermissionError:  # nothing is known of the bytes
            raise
        except (ShardFormatError, OSError) as error:
            self.damages.append(Damage(shard.file, str(error)))
        self._first_row += shard.rows

    def _ragged(self, file: io.FileIO, name: str, field: RaggedSpec, shard: ShardRecord, layout: ShardLayout) -> None:
        for tensor, sizes in checked_blocks(name, field, shard).items():
            file.seek(layout.tensors[tensor].begin)
            if tensor == name and field.codec is not None:
                sums = self._coded_sums(file, name, field, field.planes, shard, layout)
            else:
                sums = (self._digits(file, nbytes) for nbytes in sizes)
            stated = shard.checksums[tensor]
            bad = [k for k, (got, want) in enumerate(zip(sums, stated, strict=True)) if got != want]
            if bad:
                what = f"the checksum differs, of {len(bad)} of {counted(len(stated), 'block')}"
                rows = rows_of_blocks(file, tensor, field, shard, layout, bad)
                places = range(self._first_row + rows.start, self._first_row + rows.stop)
                self.damages.append(Damage(shard.file, what, name, places))

    def _sums(
        self, file: io.FileIO, field: FieldSpec, shard: ShardRecord, layout: ShardLayout, name: str
    ) -> Iterator[str]:
        if field.codec is not None:
            yield from self._coded_sums(file, name, field, 1, shard, layout)
            return
        for first in range(0, shard.rows, field.block_rows):
            yield self._digits(file, min(field.block_rows, shard.rows - first) * field.row_bytes)

    def _coded_sums(
        self, file: io.FileIO, name: str, field: AnySpec, planes: int, shard: ShardRecord, layout: ShardLayout
    ) -> Iterator[str]:
        """Yield the checksums of encoded blocks; each plane begins a new one."""
        from memload.formats.codecs.blocks import BlockSums

        assert field.codec is not None
        sizes = np.diff(read_starts(self._directory / shard.file, name, field, layout.tensors))
        for plane in sizes.reshape(planes, -1).tolist():
            sums = BlockSums(field.block_rows // (field.codec.rows or 1))
            for nbytes in plane:
                sums.add(b"".join(self._pieces(file, nbytes)))
            yield from sums.finish()

    def _digits(self, file: io.FileIO, nbytes: int) -> str:
        hasher = xxhash.xxh3_64()
        for piece in self._pieces(file, nbytes):
            hasher.update(piece)
        return hasher.hexdigest()

    def _pieces(self, file: io.FileIO, nbytes: int) -> Iterator[bytes]:
        while nbytes:
            piece = file.read(min(nbytes, _READ_BYTES))
            if not piece:
                raise ShardFormatError("the file was cut short while it was read")
            nbytes -= len(piece)
            self.nbytes += len(piece)
            self._bar.update(len(piece))
            yield piece

    def _report(self, shard: ShardRecord, name: str, field: FieldSpec, bad: Iterable[int]) -> None:
        for first, last in _runs(bad):
            start = first * field.block_rows
            stop = min((last + 1) * field.block_rows, shard.rows)
            rows = range(self._first_row + start, self._first_row + stop)
            one = "" if field.block_rows == 1 else f" (there is one for every {field.block_rows:,} rows)"
            self.damages.append(Damage(shard.file, f"the checksum differs{one}", name, rows))


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as runs (first, last) without gaps."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
