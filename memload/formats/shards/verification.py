"""Compare shards in a directory with the checksums of their index."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from memload.errors import ChecksumError, Damage, ShardFormatError
from memload.formats.codecs.fields import read_starts
from memload.formats.shards.index import TIMES_NAME, AnySpec, FieldSpec, ShardIndex, ShardRecord
from memload.formats.shards.ragged_shards import checked_blocks, rows_of_blocks
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.reading import check_shard
from memload.formats.shards.safetensors_header import ShardLayout
from memload.sizes import counted

if TYPE_CHECKING:
    from memload.progress import Bar

_READ_BYTES = 2**22


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
    return Verification(directory, index, bar).run().damages


class Verification:
    """Reads shards, collects damages and counts bytes.

    Attributes:
        damages: the places where bytes differ, in the order of the rows.
        nbytes: bytes read.
    """

    def __init__(self, directory: Path, index: ShardIndex, bar: Bar) -> None:
        self.damages: list[Damage] = []
        self.nbytes = 0
        self._directory = directory
        self._index = index
        self._bar = bar
        self._first_row = 0  # of the current shard, in the set

    def run(self) -> Verification:
        """Verify all shards, and return this object."""
        for shard in self._index.shards:
            self.shard(shard)
        return self

    def shard(self, shard: ShardRecord) -> None:
        """Verify a shard; they come in the order of the index.

        Raises:
            PermissionError: it may not be read.
        """
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

    def missing(self, shard: ShardRecord, reason: str) -> None:
        """Record a shard of which nothing can be read."""
        self.damages.append(Damage(shard.file, reason))
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
