"""A set of shards in the making: hidden until it is whole, and kept for who goes on with it if that was asked for."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import xxhash

from memload.formats.shards.index import (
    INDEX_NAME,
    ROWS_FOLDER,
    AnySpec,
    ShardIndex,
    ShardRecord,
    dump_index,
    read_index,
)
from memload.formats.shards.ragged_input import AnyRows, RaggedRows, blocks_of, differing_rows
from memload.formats.shards.ragged_shard_file import RaggedShardFile
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.reading import opened_shards
from memload.formats.shards.row_fields import RowFields
from memload.formats.shards.staging import Staging, makes
from memload.memory.guards import check_space
from memload.progress import note
from memload.writing.unfinished import Journal

_NUMBERED = re.compile(r"shard-(\d+)\.safetensors")


class GrowingSet:
    """The complete shards of a set that one writer makes or extends, and the hidden directory in which ours lie.

    Args:
        target: the directory that is to be made or extended.
        fields: of its rows, which what is there already fixes.
        append: extend the set at `target` if there is one.
        keep: leave what a writer before has left, for `follow`.
        progress: whether to show a bar while what is there is verified, and to say what became of it.

    Raises:
        FileExistsError: there is something at `target`, and it is not to be extended.
        WriterBusyError: another writer is at work on it.
        ShardFormatError: the set to be extended is malformed.
    """

    def __init__(self, target: Path, fields: RowFields, *, append: bool, keep: bool, progress: bool | None) -> None:
        self._target = target
        self._fields = fields
        self._progress = progress
        self._shards: list[ShardRecord] = []
        self._extended = 0  # shards that are not ours
        self._journal: Journal | None = None
        self._extends = append and target.exists()
        if not self._extends:
            _check_absent(target)
            with makes(target):
                target.parent.mkdir(parents=True, exist_ok=True)
        elif not target.is_dir():
            raise FileExistsError(f"{target}: a file, not a set of shards that could be extended")
        else:
            read_index(target)
            if (target / ROWS_FOLDER / INDEX_NAME).exists():
                raise FileExistsError(
                    f"{target}: its rows share rows that are stored once, and cannot be extended; write to another "
                    "path, and open both as one dataset: memload.open([one, two])"
                )
        with makes(target):
            self._staging: Staging | None = Staging(target, self._extends, keep=keep)

    @property
    def closed(self) -> bool:
        """Whether it was published, given up or left to others."""
        return self._staging is None

    @property
    def rows(self) -> int:
        """Rows of our own complete shards, and of those that we follow."""
        return self._own_index().rows

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the source was said to be no row, by this writer and by those that it follows."""
        return self._journal.left_out if self._journal else ()

    def leave_out(self, name: str) -> None:
        """Remember it for a writer that follows this one."""
        if self._journal:
            self._journal.left_out += (name,)

    def take_over(self) -> None:
        """Begin with what is at the target now that no other writer can change it."""
        if not self._extends:
            _check_absent(self._target)  # another writer may have finished just before the lock was taken
            return
        index = read_index(self._target)
        self._fields.take_over(index.fields)
        self._shards = list(index.shards)
        self._extended = len(self._shards)
        listed = {shard.file for shard in index.shards}
        for leftover in self._target.glob("shard-*.safetensors"):  # of an appending writer that was killed
            if leftover.name not in listed:
                leftover.unlink()

    def follow(self, plan: Mapping[str, str]) -> None:
        """Adopt the complete shards of an interrupted writer with the same plan, or remove what another one left."""
        base = dump_index(ShardIndex(self._fields.specs, tuple(self._shards)))
        staging = self._open()
        self._journal = Journal(staging.unfinished, {"after": xxhash.xxh3_64_hexdigest(base), **plan})
        found = self._journal.follow(staging, self._target, self._progress)
        if found is not None:
            self._fields.specs = dict(found.fields)
            self._shards += found.shards

    def next_path(self) -> Path:
        """Return where the next shard is to be written."""
        return self._path(self._next_number())

    def add(self, shard: ShardRecord) -> None:
        """Record one more complete shard."""
        self._shards.append(shard)
        if self._journal is not None:
            self._journal.record(self._own_index())

    def check_rewriting(self) -> None:
        """Raise an error unless our complete shards can be written again.

        Raises:
            DiskSpaceError: there is no room for them beside those that are there.
            ValueError: the set is one that is extended: others read it.
        """
        if self._extended:
            raise ValueError(f"{self._target}: the rows that are there have one shape; write a set of its own")
        check_space(self._target, sum(shard.nbytes for shard in self._shards))

    def let_differ(self, fields: Mapping[str, AnySpec]) -> None:
        """Write our complete shards again, as fields of which more have rows that may differ in length."""
        staging, ours = self._open(), self._shards
        first, before = self._next_number(), self._fields.specs
        self._shards = [
            rewritten(shard, staging.directory, before, fields, self._path(first + k)) for k, shard in enumerate(ours)
        ]
        self._fields.specs = dict(fields)
        if self._journal is not None:
            self._journal.record(self._own_index(), all_of_it=True)
        for shard in ours:
            (staging.directory / shard.file).unlink()

    def scratch(self, nbytes: int) -> Path:
        """Return a file of so many bytes on the same disk, which is the caller's until the next such call."""
        folder = self._open().scratch
        folder.mkdir(exist_ok=True)
        path = folder / "rows"
        path.unlink(missing_ok=True)
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, nbytes))  # a full disk shows here, not as a signal later
        return path

    def check_process(self) -> None:
        """Raise ValueError if this is closed, and RuntimeError in a forked child."""
        self._open().check_process()

    def publish(self) -> None:
        """Move the complete set to its final path; ValueError if it has no shard."""
        staging = self._open()
        if not self._shards:
            raise ValueError(f"{self._target}: not one row was written, so there is nothing to make a set of")
        staging.publish(dump_index(ShardIndex(self._fields.specs, tuple(self._shards))))
        self._staging = None

    def discard(self) -> None:
        """Remove what was written; the target stays as it was. May be called again, also once it is published."""
        if self._staging is not None:
            self._staging.discard()
            self._staging = None

    def leave(self) -> None:
        """Leave the complete shards to a writer that follows, or nothing. May be called again, as `discard`."""
        if self._staging is None or not self._staging.mine or self._journal is None or not self.rows:
            self.discard()
            return
        with contextlib.suppress(OSError):  # then it tells of fewer
            self._journal.record(self._own_index(), all_of_it=True)
        self._staging.leave()
        self._staging = None
        what = f"{self.rows:,} rows are complete and kept; the same writing goes on there"
        note(f"{self._target}: interrupted; {what}", self._progress)

    def _next_number(self) -> int:
        """Of the shard that follows: files that are written again leave their numbers unused."""
        numbers = (int(found[1]) for shard in self._shards if (found := _NUMBERED.fullmatch(shard.file)))
        return max([len(self._shards) - 1, *numbers]) + 1

    def _path(self, number: int) -> Path:
        return self._open().directory / f"shard-{number:05d}.safetensors"

    def _own_index(self) -> ShardIndex:
        return ShardIndex(self._fields.specs, tuple(self._shards[self._extended :]))

    def _open(self) -> Staging:
        if self._staging is None:
            raise ValueError(f"{self._target}: this writer is closed")
        return self._staging


def _check_absent(target: Path) -> None:
    if os.path.lexists(target):
        hint = "append=True, or --append, adds to it" if (target / INDEX_NAME).exists() else "it is no set of shards"
        raise FileExistsError(f"{target}: exists already ({hint}); write to another path, or remove it first")


_BLOCK_BYTES = 2**24
_NO_LIMIT = 2**62  # bytes: the rows of a shard stay together


def rewritten(
    shard: ShardRecord, directory: Path, before: Mapping[str, AnySpec], after: Mapping[str, AnySpec], path: Path
) -> ShardRecord:
    """Write the rows of a shard to another file, as fields that may differ in length.

    Args:
        shard: that is complete.
        directory: in which it lies.
        before: its fields.
        after: the same fields, of which at least one has rows that may differ in length.
        path: of the new file.
    """
    fields = opened_shards(directory, ShardIndex(before, (shard,)))
    file = RaggedShardFile(path, after, _NO_LIMIT)
    try:
        for block in blocks_of(fields, _BLOCK_BYTES):
            file.write({name: _as_stored(rows, after[name]) for name, rows in block.items()})
        return file.finish()
    finally:
        file.close()


def _as_stored(rows: AnyRows, field: AnySpec) -> AnyRows:
    differs = isinstance(field, RaggedSpec) and not isinstance(rows, RaggedRows)
    return differing_rows(rows, field.axis) if differs else rows  # type: ignore[arg-type, union-attr]
