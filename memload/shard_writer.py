"""A set of shards, written row by row or batch by batch, that exists only once it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from memload.codec_by_field import Codecs, check_same, coded_specs, parse_codecs, words_of
from memload.errors import DiskSpaceError
from memload.fields import check_equal_lengths, describe
from memload.progress import note
from memload.ragged_shard_file import RaggedShardFile
from memload.ragged_spec import RaggedSpec
from memload.ragged_writing import AnyRows, RaggedRows, encoded_row, encoded_rows
from memload.row_buffer import RowBuffer
from memload.shard_file import ShardFile
from memload.shard_index import (
    INDEX_NAME,
    AnySpec,
    FieldSpec,
    ShardIndex,
    ShardRecord,
    dump_index,
    read_index,
)
from memload.sizes import format_size, parse_size
from memload.staging import Staging
from memload.targets import makes, target_of
from memload.unfinished import Journal

SPACE_MARGIN = 1.2  # of the bytes to be written, wanted free on the target's file system
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ShardWriter:
    """Writes a directory of shards as a stream; what was interrupted leaves nothing that opens.

    The first row fixes the fields, their dtypes and shapes. The set appears under its name when the `with` block ends,
    and not at all if the block ends by an exception. Memory in use is about 4 MiB, or one row if that is larger;
    with a codec, 32 MiB or two of its blocks more.

    Args:
        path: the directory to make.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB"; a shard has one row at least.
            Small shards move and verify piece by piece; each costs an open file while it is mapped.
        append: add shards to the set if it exists; fields must match. Readers see the old set until the end.
        rows: how many rows will come, if known; the space on the disk is then checked at the first of them.
        nbytes: how many bytes of items they have, if fields differ in length and it is known.
        ragged: names of the fields whose rows may differ in length, or by name the axis along which they do, 0 or 1.
            Texts need no mention.
        codec: how to compress: a `Codec`, or its text such as "zstd:9", for all fields whose rows have at least 256
            bytes or differ in length; or a dict of these by field, for those it names. None: rows lie as they are,
            which loads fastest from memory. A set that is extended keeps its codecs.
        resume: what is being written, in words by name, so that equal words mean equal rows; plain text only. Then a
            writer that is interrupted leaves its complete shards in a hidden directory beside the set, and the next
            one with an equal `resume` (and `shard_bytes`) verifies them and goes on: the first `rows_there` rows are
            written already. One with other words clears them. None: what is interrupted is removed.
        progress: whether to show a bar while what is there is verified; None shows it on a terminal.

    Raises:
        FileExistsError: `path` exists, and `append` is not set.
        WriterBusyError: another writer is at work on `path`.
        ShardFormatError: the set to be extended is malformed.
        ValueError: `codec` is none, or not that of the set to be extended.

    Example:
        >>> import memload, tempfile, torch
        >>> path = tempfile.mkdtemp() + "/shards"
        >>> with memload.ShardWriter(path) as writer:
        ...     for trial in range(5):
        ...         writer.append(stim=torch.zeros(3, 8, 8), trial=trial)
        >>> len(memload.open(path))
        5
    """

    def __init__(
        self,
        path: str | Path,
        *,
        shard_bytes: int | str = "512MB",
        append: bool = False,
        rows: int | None = None,
        nbytes: int | None = None,
        ragged: Iterable[str] | Mapping[str, int] = (),
        codec: Codecs = None,
        resume: Mapping[str, str] | None = None,
        progress: bool | None = None,
    ) -> None:
        self._target = target_of(path)
        self._shard_bytes = parse_size(shard_bytes)
        self._expected, self._expected_items = rows, nbytes or 0
        self._axes = dict(ragged) if isinstance(ragged, Mapping) else dict.fromkeys(_names(ragged), 0)
        self._codecs = parse_codecs(codec)
        self._space_checked = False
        self._fields: dict[str, AnySpec] = {}
        self._shards: list[ShardRecord] = []
        self._written = 0
        self._file: ShardFile | RaggedShardFile | None = None
        self._buffer: RowBuffer | None = None
        self._journal: Journal | None = None
        self._progress = progress
        extends = append and self._target.exists()
        if not extends:
            _check_absent(self._target)
            with makes(self._target):
                self._target.parent.mkdir(parents=True, exist_ok=True)
        elif not self._target.is_dir():
            raise FileExistsError(f"{self._target}: a file, not a set of shards that could be extended")
        else:
            read_index(self._target)
        with makes(self._target):
            self._staging: Staging | None = Staging(self._target, extends, keep=resume is not None)
        with self._cleaning_up():
            if extends:
                self._take_over()
            else:
                _check_absent(self._target)  # another writer may have finished just before the lock was taken
            self._extended = len(self._shards)  # shards that are not ours
            if resume is not None:
                self._follow(resume)

    @property
    def rows_there(self) -> int:
        """Rows of this writing whose shards are complete; at the beginning, those that need not come again."""
        return self._own_index().rows

    @property
    def has_fields(self) -> bool:
        """Whether it is known what a row has, and how it is compressed: from rows before, or those that are there."""
        return bool(self._fields)

    def compress(self, codec: Codecs) -> None:
        """Compress as `codec` says, instead of what was said when this was made; to be called before the first row."""
        if self._fields:
            raise ValueError("the fields of this set have their codecs; they are chosen before the first row")
        self._codecs = parse_codecs(codec)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names that `leave_out` was given, by this writer and by those that it follows."""
        return self._journal.left_out if self._journal else ()

    def leave_out(self, name: str) -> None:
        """Remember that this of the source is no row, for a writer that follows this one; see `resume`."""
        if self._journal:
            self._journal.left_out += (name,)

    def scratch(self, nbytes: int) -> Path:
        """Return a file of so many bytes, on the disk of the set, for the caller to write to until the next such call.

        Raises:
            DiskSpaceError: they are not free; what was written is removed.
        """
        with self._cleaning_up():
            if self._staging is None:
                raise ValueError(f"{self._target}: this writer is closed")
            self._staging.scratch.mkdir(exist_ok=True)
            path = self._staging.scratch / "rows"
            path.unlink(missing_ok=True)
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, nbytes))  # a full disk shows here, not as a signal later
            return path

    def append(self, /, **row: Any) -> None:
        """Add one row, each field a tensor, an array or a number of the shape of one row, or a text.

        Raises:
            ValueError, TypeError: names, dtypes or shapes differ from those before; the writer stays usable.
            DiskSpaceError: the disk is full; what was written is removed.
        """
        self.append_rows(self.encoded(row))

    def encoded(self, row: Mapping[str, Any]) -> dict[str, AnyRows]:
        """Return one row as bytes, as a batch of one; raises as `append`."""
        return {name: encoded_row(name, value, self._axis(name)) for name, value in row.items()}

    def append_rows(self, rows: Mapping[str, AnyRows]) -> None:
        """Add one row that is bytes already, as a batch of one; otherwise as `append`."""
        self._check(rows)
        if self._buffer is None:
            self._buffer = RowBuffer(self._fields)
        if self._buffer.add(rows):
            self._flush()

    def extend(self, /, **batch: Any) -> None:
        """Add rows by the batch, each field a tensor or an array whose first axis counts the rows.

        Of fields whose rows differ in length: `memload.ragged`, a `memload.Ragged`, a list of rows, or a list of texts.

        Raises:
            ValueError, TypeError: names, dtypes, shapes or lengths do not fit; the writer stays usable.
            DiskSpaceError: the disk is full; what was written is removed.
        """
        rows = {name: encoded_rows(name, value, self._axis(name)) for name, value in batch.items()}
        check_equal_lengths({name: len(value) for name, value in rows.items()}, "the fields of a batch")
        self.extend_rows(rows)

    def extend_rows(self, rows: Mapping[str, AnyRows]) -> None:
        """Add rows that are bytes already; otherwise as `extend`."""
        self._check(rows)
        self._flush()
        with self._cleaning_up():
            self._write(rows)

    def close(self) -> None:
        """Complete the set and put it in its place. May be called again.

        Raises:
            ValueError: there is not one row to write.
            DiskSpaceError: the disk is full; what was written is removed.
            RuntimeError: called in a forked child; the parent's set is left alone.
        """
        if self._staging is None:
            return
        self._staging.check_process()
        self._flush()
        with self._cleaning_up():
            self._finish_shard()
            if not self._shards:
                raise ValueError(f"{self._target}: not one row was written, so there is nothing to make a set of")
            self._staging.publish(dump_index(ShardIndex(self._fields, tuple(self._shards))))
            self._staging = None

    def abort(self) -> None:
        """Remove what was written; the target stays as it was. May be called again, also after `close`.

        In a forked child only its descriptors are closed: what was written is the parent's.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._staging is not None:
            self._staging.discard()
            self._staging = None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._interrupted()

    def __del__(self) -> None:
        if hasattr(self, "_staging"):
            self._interrupted()

    def _interrupted(self) -> None:
        """Leave the complete shards to a writer that follows, or nothing."""
        if self._staging is None or not self._staging.mine or self._journal is None or not self.rows_there:
            self.abort()
            return
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):  # then it tells of fewer
            self._journal.record(self._own_index(), all_of_it=True)
        self._staging.leave()
        self._staging = None
        what = f"{self.rows_there:,} rows are complete and kept; the same writing goes on there"
        note(f"{self._target}: interrupted; {what}", self._progress)

    def _follow(self, plan: Mapping[str, str]) -> None:
        """Take up what a writer with the same plan has left, or clear what there is."""
        assert self._staging is not None
        base = dump_index(ShardIndex(self._fields, tuple(self._shards)))
        ours = {"codec": words_of(self._codecs), "shard_bytes": str(self._shard_bytes)}
        plan = {**ours, "after": xxhash.xxh3_64_hexdigest(base), **plan}
        self._journal = Journal(self._staging.unfinished, plan)
        found = self._journal.follow(self._staging, self._target, self._progress)
        if found is not None:
            self._fields = dict(found.fields)
            self._shards += found.shards
            self._written = self.rows_there

    def _take_over(self) -> None:
        index = read_index(self._target)
        check_same(index.fields, self._codecs)
        self._fields = dict(index.fields)
        self._shards = list(index.shards)
        listed = {shard.file for shard in index.shards}
        for leftover in self._target.glob("shard-*.safetensors"):  # of an appending writer that was killed
            if leftover.name not in listed:
                leftover.unlink()

    def _specs(self, rows: Mapping[str, AnyRows]) -> dict[str, AnySpec]:
        """What the index says of the fields of the first rows."""
        return coded_specs({name: _spec_of(value) for name, value in rows.items()}, self._codecs)

    def _axis(self, name: str) -> int | None:
        """Along which axis rows of a field differ in length; None: along none."""
        field = self._fields.get(name)
        return field.axis if isinstance(field, RaggedSpec) else self._axes.get(name)

    def _check(self, rows: Mapping[str, AnyRows]) -> None:
        if self._staging is None:
            raise ValueError(f"{self._target}: this writer is closed")
        self._staging.check_process()
        if not rows:
            raise ValueError("a row needs at least one field")
        if not self._fields:
            self._fields = self._specs(rows)
        number = self._written + (len(self._buffer) if self._buffer else 0)
        if set(rows) != set(self._fields):
            raise ValueError(f"row {number} has the fields {sorted(rows)}, expected {sorted(self._fields)}")
        for name, field in self._fields.items():
            value = rows[name]
            if value.signature != field.signature:
                differ = value.shape[1:] == field.shape[1:] and value.shape != field.shape
                hint = f"; if rows may differ in length, say so by ragged=[{name!r}]" if differ else ""
                raise ValueError(
                    f"row {number}: field {name!r} is {_described(value)}, expected {_described(field)}{hint}"
                )

    def _flush(self) -> None:
        if self._buffer is not None and len(self._buffer):
            with self._cleaning_up():
                self._write(self._buffer.take())

    def _write(self, rows: Mapping[str, AnyRows]) -> None:
        total = len(next(iter(rows.values())))
        if total:
            self._check_space()
        at = 0
        while at < total:
            shard: Any = self._file or self._new_shard()
            taken = shard.takes(rows, at)
            if taken:
                shard.write({name: part.cut(at, at + taken) for name, part in rows.items()})
            self._written += taken
            at += taken
            if at < total or not shard.takes(rows, 0):
                self._finish_shard()

    def _new_shard(self) -> ShardFile | RaggedShardFile:
        assert self._staging is not None
        row_bytes = sum(field.row_bytes for field in self._fields.values())
        capacity = max(1, self._shard_bytes // max(1, row_bytes))
        if self._expected is not None and self._expected > self._written:
            capacity = min(capacity, self._expected - self._written)
        path = self._staging.directory / f"shard-{len(self._shards):05d}.safetensors"
        fields = {name: field for name, field in self._fields.items() if isinstance(field, FieldSpec)}
        if len(fields) < len(self._fields):
            self._file = RaggedShardFile(path, self._fields, self._shard_bytes)
        else:
            self._file = ShardFile(path, fields, capacity)
        return self._file

    def _finish_shard(self) -> None:
        if self._file is not None:
            self._shards.append(self._file.finish())
            self._file = None
            if self._journal is not None:
                self._journal.record(self._own_index())

    def _own_index(self) -> ShardIndex:
        return ShardIndex(self._fields, tuple(self._shards[self._extended :]))

    def _check_space(self) -> None:
        if self._expected is None or self._space_checked:
            return
        self._space_checked = True
        plain = [field for field in self._fields.values() if field.codec is None]  # nobody knows what others will need
        rows = self._expected - self._written
        need = rows * sum(field.row_bytes for field in plain) + self._expected_items
        free = free_bytes(self._file_system())
        if free < need * SPACE_MARGIN:
            raise DiskSpaceError(
                f"{self._target}: {format_size(need)} are to be written and {format_size(need * SPACE_MARGIN)} wanted "
                f"free for that, but its file system has {format_size(free)}; free some, or write elsewhere",
                need=need,
                free=free,
            )

    def _file_system(self) -> Path:
        return self._target if self._target.exists() else self._target.parent

    @contextlib.contextmanager
    def _cleaning_up(self) -> Iterator[None]:
        """Stop at any exception, and tell a full disk by its own type."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_SPACE:
                self._interrupted()
                raise
            self.abort()
            if isinstance(error, DiskSpaceError):
                raise
            free = free_bytes(self._file_system())
            raise DiskSpaceError(
                f"{self._target}: the disk is full ({error.strerror}); what was written is removed, which leaves "
                f"{format_size(free)} free on its file system",
                free=free,
            ) from error
        except BaseException:
            self._interrupted()
            raise


def _names(ragged: Iterable[str]) -> list[str]:
    if isinstance(ragged, str):
        raise TypeError(f"ragged= takes names of fields, as ragged=[{ragged!r}]")
    return list(ragged)


def _described(rows: AnyRows | AnySpec) -> str:
    return "text" if getattr(rows, "text", False) else describe(rows.dtype, rows.shape)


def _spec_of(rows: AnyRows) -> AnySpec:
    return rows.spec if isinstance(rows, RaggedRows) else FieldSpec.of_rows(rows.dtype, rows.shape)


def free_bytes(path: Path) -> int:
    """Return the bytes that this process may still write to the file system of `path`."""
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize


def _check_absent(target: Path) -> None:
    if os.path.lexists(target):
        hint = "append=True, or --append, adds to it" if (target / INDEX_NAME).exists() else "it is no set of shards"
        raise FileExistsError(f"{target}: exists already ({hint}); write to another path, or remove it first")
