"""A set of shards that is hidden until it is complete, and that a later writer can continue if that was requested."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

import xxhash

from memload.formats.paths import is_taken
from memload.formats.shards.index import (
    INDEX_NAME,
    ROWS_FOLDER,
    AnySpec,
    ShardIndex,
    ShardRecord,
    dump_index,
    parts_waiting,
    read_index,
)
from memload.formats.shards.ragged_input import AnyRows, RaggedRows, blocks_of, differing_rows
from memload.formats.shards.ragged_shard_file import RaggedShardFile
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.reading import opened_shards
from memload.formats.shards.row_fields import RowFields
from memload.formats.shards.staging import Staging, makes, scratch_file
from memload.memory.guards import check_space
from memload.progress import note
from memload.sizes import counted
from memload.writing.unfinished import Journal

_NUMBERED = re.compile(r"shard-(\d+)\.safetensors")


class GrowingSet:
    """The complete shards of a set that one writer makes or extends, and the hidden directory with the new ones.

    Args:
        target: the directory to make or extend.
        fields: the fields of its rows; an existing set determines them.
        append: extend the set at `target` if there is one.
        keep: keep the shards of an interrupted writer, for `follow`.
        progress: whether to show a bar while existing shards are verified, and to report the result.

    Raises:
        FileExistsError: `target` exists and must not be extended.
        WriterBusyError: another writer is at work on it.
        ShardFormatError: the set to extend is malformed.
    """

    durable = True
    """Whether a shard has to be on the disk, beyond a failure of the machine, once it is complete."""

    def __init__(self, target: Path, fields: RowFields, *, append: bool, keep: bool, progress: bool | None) -> None:
        self._target = target
        self._fields = fields
        self._progress = progress
        self._shards: list[ShardRecord] = []
        self._extended = 0  # the number of shards of the set before it was extended
        self._journal: Journal | None = None
        self._extends = append and is_taken(target)
        if not self._extends:
            _check_absent(target)
            with makes(target):
                target.parent.mkdir(parents=True, exist_ok=True)
        elif not target.is_dir():
            raise FileExistsError(f"{target}: a file, not a set of shards to extend")
        else:
            read_index(target)
            if (target / ROWS_FOLDER / INDEX_NAME).exists():
                raise FileExistsError(
                    f"{target}: several of its rows share one stored row, so it cannot be extended; write to another "
                    "path, and open both as one dataset: memload.open([one, two])"
                )
        with makes(target):
            self._staging: Staging | None = Staging(target, self._extends, keep=keep)

    @property
    def closed(self) -> bool:
        """Whether the set was published or discarded, or left to a later writer."""
        return self._staging is None

    @property
    def rows(self) -> int:
        """The rows of the complete shards of this writer and of those that it continues."""
        return self._own_index().rows

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names in the source that are no rows, found by this writer and by those that it continues."""
        return self._journal.left_out if self._journal else ()

    def leave_out(self, name: str) -> None:
        """Record such a name for a writer that continues this one."""
        if self._journal:
            self._journal.left_out += (name,)

    def take_over(self) -> None:
        """Read the existing set, now that no other writer can change it."""
        if not self._extends:
            _check_absent(self._target)  # another writer may have finished just before the lock was taken
            return
        index = read_index(self._target)
        self._fields.take_over(index.fields)
        self._shards = list(index.shards)
        self._extended = len(self._shards)
        listed = {shard.file for shard in index.shards}
        for leftover in self._target.glob("shard-*.safetensors"):  # the shards of an appending writer that was killed
            if leftover.name not in listed:
                leftover.unlink()

    def follow(self, plan: Mapping[str, str]) -> None:
        """Adopt the complete shards of an interrupted writer with the same plan; remove those of another plan."""
        base = dump_index(ShardIndex(self._fields.specs, tuple(self._shards)))
        staging = self._open()
        self._journal = Journal(staging.unfinished, {"after": xxhash.xxh3_64_hexdigest(base), **plan})
        found = self._journal.follow(staging, self._target, self._progress)
        if found is not None:
            self._fields.specs = dict(found.fields)
            self._shards += found.shards

    def memory(self, nbytes: int) -> None:
        """Return None: shards are written to files."""

    def next_path(self) -> Path:
        """Return the path of the next shard."""
        return self._path(self._next_number())

    def add(self, shard: ShardRecord) -> None:
        """Record a complete shard."""
        self._shards.append(shard)
        if self._journal is not None:
            self._journal.record(self._own_index())

    def check_rewriting(self) -> None:
        """Check that the complete shards can be written again.

        Raises:
            DiskSpaceError: there is no space for second copies.
            ValueError: the set existed before, so that others may read it.
        """
        if self._extended:
            raise ValueError(f"{self._target}: the existing rows have one shape; write to another path")
        check_space(self._target, sum(shard.nbytes for shard in self._shards))

    def let_differ(self, fields: Mapping[str, AnySpec]) -> None:
        """Write the complete shards again with these fields, of which more are ragged than before."""
        staging, old = self._open(), self._shards
        first, before = self._next_number(), self._fields.specs
        self._shards = [
            rewritten(shard, staging.directory, before, fields, self._path(first + k)) for k, shard in enumerate(old)
        ]
        self._fields.specs = dict(fields)
        if self._journal is not None:
            self._journal.record(self._own_index(), force=True)
        for shard in old:
            (staging.directory / shard.file).unlink()

    def scratch(self, nbytes: int) -> Path:
        """Return a file of `nbytes` bytes on the same disk, which belongs to the caller until the next call."""
        folder = self._open().scratch
        folder.mkdir(exist_ok=True)
        return scratch_file(folder / "rows", nbytes)

    def check_process(self) -> None:
        """Raise ValueError if the set is closed, and RuntimeError in a forked child."""
        self._open().check_process()

    def publish(self) -> None:
        """Move the complete set to its final path. Raises ValueError if it has no shard."""
        staging = self._open()
        if not self._shards:
            raise ValueError(f"{self._target}: no row was written; a set needs at least one")
        inner = (staging.directory / ROWS_FOLDER / INDEX_NAME).exists()
        staging.publish(dump_index(ShardIndex(self._fields.specs, tuple(self._shards), inner)))
        self._staging = None

    def discard(self) -> None:
        """Remove all new files; the target stays unchanged. May be called again, also after `publish`."""
        if self._staging is not None:
            self._staging.discard()
            self._staging = None

    def leave(self) -> None:
        """Keep the complete shards for a writer that continues them, if there are any. May be called again."""
        if self._staging is None or not self._staging.mine or self._journal is None or not self.rows:
            self.discard()
            return
        with contextlib.suppress(OSError):  # the file then lists fewer shards
            self._journal.record(self._own_index(), force=True)
        self._staging.leave()
        self._staging = None
        what = f"{counted(self.rows, 'row is', 'rows are')} complete and kept; the same call continues after that"
        note(f"{self._target}: interrupted; {what}", self._progress)

    def _next_number(self) -> int:
        """Return the number of the next shard; shards that are written again get new numbers."""
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
    if is_taken(target):
        hint = parts_waiting(target) or "it is not a set of shards"
        if (target / INDEX_NAME).exists():
            hint = "a complete set: memload.open reads it, and append=True adds more rows to it"
        raise FileExistsError(f"{target}: exists already ({hint}); write to another path, or remove it first")


_BLOCK_BYTES = 2**24
_NO_LIMIT = 2**62  # bytes: the rows of a shard stay together


def rewritten(
    shard: ShardRecord, directory: Path, before: Mapping[str, AnySpec], after: Mapping[str, AnySpec], path: Path
) -> ShardRecord:
    """Write the rows of a shard to another file, with more ragged fields.

    Args:
        shard: the complete shard.
        directory: the directory of its file.
        before: its fields.
        after: the same fields, at least one of them ragged.
        path: the path of the new file.
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
