"""Write a set of shards row by row or batch by batch; it exists only once it is complete."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import torch

from memload.errors import DiskSpaceError
from memload.formats.codecs.by_field import Codecs
from memload.formats.shards.index import AnySpec
from memload.formats.shards.ragged_input import AnyRows
from memload.formats.shards.row_fields import RowFields
from memload.formats.shards.staging import target_of
from memload.memory.endings import finish
from memload.memory.guards import check_space, full_disk, is_full
from memload.sizes import parse_size
from memload.writing.growing_set import GrowingSet
from memload.writing.part_set import PartSet
from memload.writing.stream import RowBuffer, ShardStream

_Writer = TypeVar("_Writer", bound="RowWriter")


class RowWriter:
    """Cuts rows, one by one or by the batch, into the shards of a set or of one part of a set.

    Args:
        target: the directory of the set, for messages.
        fields: the fields of its rows.
        into: the shards; they are published when the `with` block ends, and discarded if it ends by an exception.
        shard_bytes: the approximate limit of a shard.
        rows: the number of rows to come, if it is known.
        nbytes: the bytes of their ragged items, if they are known.
        most_on_disk: the most bytes that lie on the disk of `target` at once; None: all of the rows.
    """

    def __init__(
        self,
        target: Path,
        fields: RowFields,
        into: GrowingSet | PartSet,
        shard_bytes: int,
        rows: int | None,
        nbytes: int | None,
        most_on_disk: int | None = None,
    ) -> None:
        self._target, self._most_on_disk = target, most_on_disk
        self._fields = fields
        self._expected, self._expected_items = rows, nbytes or 0
        self._space_checked = False
        self._buffer: RowBuffer | None = None
        self._into = into
        self._stream = ShardStream(into, fields, shard_bytes, rows)
        weakref.finalize(self, finish, partial(_leave, self._stream, into))  # also at the end of the program

    @property
    def rows_there(self) -> int:
        """The rows of this write in complete shards; before the first row, those of an interrupted write."""
        return self._into.rows

    @property
    def has_fields(self) -> bool:
        """Whether the fields of a row and their codecs are known, from a row or from existing shards."""
        return bool(self._fields.specs)

    @property
    def fields(self) -> Mapping[str, AnySpec]:
        """The fields as in the index; empty until they are known."""
        return MappingProxyType(self._fields.specs)

    def compress(self, codec: Codecs) -> None:
        """Replace the codecs that the constructor got; call this before the first row."""
        self._fields.compress(codec)

    def scratch(self, nbytes: int) -> Path:
        """Return a file of `nbytes` bytes on the disk of the set, which belongs to the caller until the next call.

        Raises:
            DiskSpaceError: the disk has not enough space; all new files are removed.
        """
        with self._cleaning_up():
            return self._into.scratch(nbytes)

    def append(self, row: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Add one row, each field a tensor, an array or a number of the shape of one row, or a text.

        Raises:
            ValueError, TypeError: names, dtypes or shapes differ from those before; the writer stays usable.
            DiskSpaceError: the disk is full; what was written is removed.
        """
        self.append_rows(self.encoded({**(row or {}), **fields}))

    def encoded(
        self,
        row: Mapping[str, Any],
        stated: Mapping[str, torch.dtype] | None = None,
        converted: Callable[[str], bool] | None = None,
    ) -> dict[str, AnyRows]:
        """Return one row as bytes, as a batch of one row; raises as `append`.

        Args:
            row: the values of the fields. Python's numbers take the dtype of the rows before.
            stated: the dtypes that they take in fields of which there are no rows; None: none.
            converted: whether rows of a field get another dtype before they are added, so that the set's says nothing;
                None: of none.
        """
        return self._fields.encoded_row(row, stated, converted)

    def append_rows(self, rows: Mapping[str, AnyRows]) -> None:
        """Add one row that is already bytes, as a batch of one row; otherwise as `append`."""
        self._check(rows)
        if self._buffer is None:
            self._buffer = RowBuffer(self._fields.specs)
        if self._buffer.add(rows):
            self._flush()

    def extend(self, batch: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Add rows by the batch, each field a tensor or an array whose first axis counts the rows.

        Values of ragged fields: `memload.ragged`, a `memload.Ragged`, a list of rows, or a list of texts.

        Raises:
            ValueError, TypeError: names, dtypes, shapes or lengths do not fit; the writer stays usable.
            DiskSpaceError: the disk is full; what was written is removed.
        """
        self.extend_rows(self._fields.encoded_rows({**(batch or {}), **fields}))

    def extend_rows(self, rows: Mapping[str, AnyRows]) -> None:
        """Add rows that are already bytes; otherwise as `extend`."""
        self._check(rows)
        self._flush()
        with self._cleaning_up():
            self._write(rows)

    def close(self) -> None:
        """Complete the set and move it to its path. May be called again.

        Raises:
            ValueError: no row was written.
            DiskSpaceError: the disk is full; all new files are removed.
            RuntimeError: called in a forked child; the parent's set stays unchanged.
        """
        if self._into.closed:
            return
        self._into.check_process()
        self._flush()
        with self._cleaning_up():
            self._stream.finish()
            self._into.publish()

    def abort(self) -> None:
        """Remove all new files; the target stays unchanged. May be called again, also after `close`.

        A forked child only closes its descriptors, because the files belong to the parent.
        """
        self._stream.close()
        self._into.discard()

    def __enter__(self: _Writer) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._interrupted()

    def _interrupted(self) -> None:
        _leave(self._stream, self._into)

    def _check(self, rows: Mapping[str, AnyRows]) -> None:
        self._into.check_process()
        self._fields.check(rows, self._stream.rows + (len(self._buffer) if self._buffer else 0))

    def _flush(self) -> None:
        if self._buffer is not None and len(self._buffer):
            with self._cleaning_up():
                self._write(self._buffer.take())

    def _write(self, rows: Mapping[str, AnyRows]) -> None:
        if not self._space_checked and self._expected is not None and len(next(iter(rows.values()))):
            self._space_checked = True
            more = self._expected - self._stream.rows
            items = self._expected_items * more // max(1, self._expected)
            need = more * self._fields.plain_row_bytes + items
            check_space(self._target, need if self._most_on_disk is None else min(need, self._most_on_disk))
        self._stream.write(rows)

    @contextlib.contextmanager
    def _cleaning_up(self) -> Iterator[None]:
        """Stop the write at any exception, and raise DiskSpaceError for a full disk."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                self._interrupted()
                raise
            self.abort()
            if isinstance(error, DiskSpaceError):
                raise
            raise full_disk(self._target, error) from error
        except BaseException:
            self._interrupted()
            raise


class ShardWriter(RowWriter):
    """Writes a directory of shards row by row, or batch by batch; an interrupted write leaves nothing that opens.

    The first row fixes the fields, their dtypes and shapes. The set appears under its name when the `with` block ends,
    and not at all if the block ends by an exception. Memory in use is about 4 MiB, or one row if that is larger;
    with a codec, 32 MiB or two of its blocks more.

    Args:
        path: the directory to create.
        shard_bytes: about how large a shard file may grow, in bytes or as "512MB"; a shard has at least one row. Small
            shards can be copied and verified one by one; more shards mean more mapped files.
        append: add shards to the set if it exists; fields must match. Readers see the old set until the end.
        rows: how many rows will be written, if known; the space on the disk is then checked at the first of them.
        nbytes: how many bytes the items of ragged fields have, if that is known.
        ragged: names of the fields whose rows may differ in length, or a dict from names to the axis along which they
            do, 0 or 1. Texts need not be named.
        codec: how to compress: a `Codec`, or its text such as "zstd:9", for all fields whose rows have at least 256
            bytes or differ in length; or a dict of these by field, for those it names. None: no compression, which
            loads fastest from memory. A set that is extended keeps its codecs.
        resume: a dict of texts that describes what is being written; equal texts promise equal rows. A writer that is
            interrupted then leaves its complete shards in a hidden directory beside the set, and the next writer with
            an equal `resume` (and `shard_bytes`) verifies them and continues: the first `rows_there` rows are written
            already. One with another `resume` removes them. None: an interrupted writer's shards are removed.
        progress: whether to show a bar while shards of an interrupted writer are verified; None shows it on a terminal.

    Raises:
        FileExistsError: `path` exists and is no empty folder, and `append` is not set.
        WriterBusyError: another writer is at work on `path`.
        ShardFormatError: the set to be extended is malformed.
        ValueError: `codec` is invalid, or not that of the set to be extended.

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
        target, fields = target_of(path), RowFields(ragged, codec)
        size = parse_size(shard_bytes)
        self._set = GrowingSet(target, fields, append=append, keep=resume is not None, progress=progress)
        super().__init__(target, fields, self._set, size, rows, nbytes)
        with self._cleaning_up():
            self._set.take_over()
            if resume is not None:
                options = {"codec": self._fields.codec_words, "shard_bytes": str(size)}
                self._set.follow({**options, **resume})
                self._stream.rows = self._set.rows

    def let_differ(self, axes: Mapping[str, int]) -> None:
        """Make fields ragged whose rows had one shape so far.

        The complete shards are written again. This is for writers that cannot tell from the first row which rows
        differ; others use `ragged`.

        Args:
            axes: by field, the axis along which rows may differ, 0 or 1.

        Raises:
            KeyError: no row so far has such a field.
            ValueError: the set existed before and is being extended.
            DiskSpaceError: there is no space for second copies of the shards, which stay unchanged.
        """
        self._set.check_process()
        specs = self._fields.differing(axes)
        self._flush()
        with self._cleaning_up():
            self._stream.finish()
        self._set.check_rewriting()
        with self._cleaning_up():
            self._set.let_differ(specs)
        self._buffer = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names passed to `leave_out`, by this writer and by those that it continues."""
        return self._set.left_out

    def leave_out(self, name: str) -> None:
        """Record a name in the source that is no row, for a writer that continues this one; see `resume`."""
        self._set.leave_out(name)


def _leave(stream: ShardStream, into: GrowingSet | PartSet) -> None:
    """Keep the complete shards for a writer that continues them, if resuming was requested."""
    stream.close()
    into.leave()
