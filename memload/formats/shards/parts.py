"""The parts of a set that many writers make, on any machines that share a file system, and their sealing.

    NAME/shard-00003-9f2c61aa-00000.safetensors    a shard of part 3, where it stays
    NAME/.parts/00003-of-00016.9f2c61aa            the ticket of an attempt under way, locked by its writer
    NAME/.parts/00003-of-00016.json                part 3 is complete: the index of its shards
    NAME/.sealing/                                 .parts while the set is sealed
    NAME/index.json                                the set is sealed, and opens; .parts is gone

Three renames decide, whoever else is at work:

- The ticket becomes the part's .json: the attempt is complete, and replaces an earlier one as a whole.
- .parts becomes .sealing: no attempt can complete or be replaced any more.
- The index gets its name: the set exists.

Whoever removes the shards of an attempt first takes from it what it needs to complete: its ticket, or the part's .json.
Locks only tell whose writer is alive; where a file system has none, files of killed writers stay until the sealing.
A store of objects needs the same three steps by other means, behind the methods of `PartsFolder` and `Attempt`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from memload.columns.numbers import is_whole
from memload.errors import ShardFormatError, WriterBusyError
from memload.formats.shards.index import (
    INDEX_NAME,
    PARTS_FOLDER,
    SEALING_FOLDER,
    ShardIndex,
    dump_index,
    parse_index,
)
from memload.formats.shards.staging import fsync_directory, makes, write_durably
from memload.progress import note

_COMPLETE = re.compile(r"(\d{5,})(?:-of-(\d{5,}))?\.json")
_TICKET = re.compile(r"(\d{5,})(?:-of-(\d{5,}))?\.([0-9a-f]{8})")
_MOST_TRIES = 10  # to begin, while other writers end and leave
_SHARD = re.compile(r"shard-\d{5,}-[0-9a-f]{8}-\d{5,}\.safetensors")


@dataclass(frozen=True)
class PartNumber:
    """Which part of a set: `part` counts from 0, and `parts` is how many there are, or None if only sealing tells.

    Raises:
        TypeError, ValueError: `part` is not one of `parts`.
    """

    part: int
    parts: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("part", self.part), ("parts", self.parts)):
            if value is not None and not is_whole(value):
                raise TypeError(f"{name} must be an int, got {value!r}")
            object.__setattr__(self, name, None if value is None else int(value))  # numpy's integers, too
        if self.parts is not None and self.parts < 1:
            raise ValueError(f"parts must be at least 1, got {self.parts}")
        if self.part < 0 or (self.parts is not None and self.part >= self.parts):
            allowed = "0 or more" if self.parts is None else f"from 0 to {self.parts - 1} for {self.parts} parts"
            raise ValueError(f"part must be {allowed}, got {self.part}; parts count from 0")

    def __str__(self) -> str:
        return f"part {self.part}" if self.parts is None else f"part {self.part} of {self.parts}"

    @property
    def name(self) -> str:
        """How names of files of this part begin."""
        return f"{self.part:05d}" if self.parts is None else f"{self.part:05d}-of-{self.parts:05d}"


@dataclass(frozen=True)
class CompletePart:
    """A part that is complete.

    Attributes:
        number: which part.
        index: its fields and shards; without fields if no row came.
        options: texts by name, which must be equal in all parts that have them.
        source: a text; equal texts promise equal rows. None: there is no such text.
    """

    number: PartNumber
    index: ShardIndex
    options: Mapping[str, str]
    source: str | None

    @property
    def nbytes(self) -> int:
        """The bytes of its shards."""
        return sum(shard.nbytes for shard in self.index.shards)

    def dump(self) -> bytes:
        """Return the bytes of its file."""
        about = {"part": self.number.part, "parts": self.number.parts}
        words = {"options": dict(self.options), "source": self.source}
        return json.dumps({**json.loads(dump_index(self.index)), **about, **words}, ensure_ascii=False).encode()

    @classmethod
    def parse(cls, raw: bytes) -> CompletePart:
        """Return the part of a file. Raises ShardFormatError, and nothing else."""
        try:
            content = json.loads(raw)
            number = PartNumber(content["part"], content["parts"])
            options, source = dict(content["options"]), content["source"]
            empty = content["fields"] == {} and content["shards"] == []  # of a part that got no row
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ShardFormatError(f"not the index of a part ({error!r}); write this part again") from error
        return cls(number, ShardIndex({}, ()) if empty else parse_index(raw), options, source)


class PartsFolder:
    """The parts of one set, while they are written and until they are sealed.

    Args:
        target: the directory of the set.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target / PARTS_FOLDER
        self._claimed = target / SEALING_FOLDER

    @property
    def is_sealed(self) -> bool:
        """Whether the set is complete."""
        return (self.target / INDEX_NAME).exists()

    def begin(self) -> bool:
        """Make the directories, if this writer is the first, and return whether the set's own was made.

        Raises:
            FileExistsError: the set is sealed, or something else is at its path.
            WriterBusyError: the set is being sealed.
        """
        self._check_open()
        if not self.path.exists() and _is_foreign(self.target):
            self._check_open()  # a sealing may have begun meanwhile
            raise FileExistsError(
                f"{self.target}: exists already, and no parts of a set are in it; write to another path"
            )
        is_new = not os.path.lexists(self.target)
        with makes(self.target):
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._check_open()
        except BaseException:
            with contextlib.suppress(OSError):
                self.path.rmdir()  # made beside a sealing that began meanwhile
            raise
        fsync_directory(self.target.parent)
        return is_new

    def leave(self, is_new: bool) -> None:
        """Remove the directories that `begin` made, if nothing is in them."""
        with contextlib.suppress(OSError):
            self.path.rmdir()
            if is_new:
                self.target.rmdir()

    def numbers(self) -> tuple[list[PartNumber], list[PartNumber]]:
        """Return the parts that are complete, and those that have a ticket, in their order."""
        complete, begun = set(), set()
        for name in self._names():
            if found := _COMPLETE.fullmatch(name):
                complete.add(_number_of(found))
            elif found := _TICKET.fullmatch(name):
                begun.add(_number_of(found))
        return sorted(complete, key=_order), sorted(begun - complete, key=_order)

    def read(self, number: PartNumber) -> CompletePart | None:
        """Return a part, or None if it is not complete.

        Raises:
            ShardFormatError: its file is damaged, or is that of another part.
        """
        for folder in (self.path, self._claimed):
            path = folder / f"{number.name}.json"
            with contextlib.suppress(FileNotFoundError):
                raw = path.read_bytes()
                try:
                    part = CompletePart.parse(raw)
                except ShardFormatError as error:
                    raise ShardFormatError(f"{path}: {error}") from error.__cause__
                if part.number != number:
                    raise ShardFormatError(f"{path}: it is of {part.number}; write {number} again")
                return part
        return None

    def claim(self) -> None:
        """Keep all writers from completing or replacing a part. May be called again, by other processes, too."""
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self._claimed)
            fsync_directory(self.target)

    def release(self) -> None:
        """Let writers complete parts again, because the set cannot be sealed yet."""
        with contextlib.suppress(FileNotFoundError):
            self._claimed.rename(self.path)

    def publish(self, index: bytes) -> None:
        """Give the set its index; it exists from then on."""
        fsync_directory(self.target)
        fresh = self._claimed / f"index.{uuid.uuid4().hex[:8]}"
        write_durably(fresh, index)
        fresh.rename(self.target / INDEX_NAME)
        fsync_directory(self.target)

    def abandon(self) -> None:
        """Remove all parts of a set that is not sealed. Writers that are at work are kept from completing."""
        self.claim()
        if not self.is_sealed:
            self.clear(ShardIndex({}, ()))
            with contextlib.suppress(OSError):  # somebody else's files are there
                self.target.rmdir()

    def clear(self, index: ShardIndex) -> None:
        """Remove what no index lists: tickets, and shards of attempts that were killed or replaced."""
        listed = {shard.file for shard in index.shards}
        for path in self.target.iterdir():
            if _SHARD.fullmatch(path.name) and path.name not in listed:
                path.unlink(missing_ok=True)
        for folder in (self._claimed, self.path):
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def still_open(self) -> Iterator[None]:
        """Raise as `begin` in this context where the set is sealed meanwhile."""
        try:
            with makes(self.target):
                yield
        except FileNotFoundError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self.is_sealed:
            raise FileExistsError(f"{self.target}: this set is complete; write to another path, or remove it first")
        if self._claimed.exists():
            raise WriterBusyError(
                f"{self.target}: this set is being sealed; if that was interrupted, memload.seal ends it"
            )

    def _names(self) -> list[str]:
        for folder in (self.path, self._claimed):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return [path.name for path in folder.iterdir()]
        return []


class Attempt:
    """One writer of one part, from its construction to `publish` or `discard`.

    It belongs to the process that made it.

    Args:
        folder: the parts of the set.
        number: which part.

    Raises:
        FileExistsError, WriterBusyError: the set is sealed or being sealed, or something else is at its path.
        ValueError: parts of another division of the set are there.
    """

    def __init__(self, folder: PartsFolder, number: PartNumber) -> None:
        self.number = number
        self._folder = folder
        self._process = os.getpid()
        self._complete = folder.path / f"{number.name}.json"
        self.key = uuid.uuid4().hex[:8]
        self._ticket = folder.path / f"{number.name}.{self.key}"
        self._lock = self._begin()
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def scratch(self) -> Path:
        """The path of a file for rows that arrive in pieces."""
        return self._ticket.with_name(f"{self._ticket.name}.rows")

    def shard(self, number: int) -> Path:
        """Return the path of a shard of this attempt."""
        return self._folder.target / f"shard-{self.number.part:05d}-{self.key}-{number:05d}.safetensors"

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the one that made this."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self._folder.target}: this writer of {self.number} belongs to process {self._process}, and this is "
                f"process {os.getpid()}, forked from it; call memload.write_part here instead"
            )

    def publish(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Complete the part, and return what counts: this attempt, or another one that took its place meanwhile.

        Raises:
            WriterBusyError: another writer took this one for dead, and is at work on the part.
        """
        self.check_process()
        fsync_directory(self._folder.target)
        earlier = self._earlier()
        _write_all(self._lock, part.dump())
        try:
            self._ticket.rename(self._complete)
        except FileNotFoundError:
            return self._overtaken(part, progress)
        with contextlib.suppress(FileNotFoundError):  # it is being sealed, and has its index on the disk soon
            fsync_directory(self._folder.path)
        self._close()
        for shard in () if earlier is None else earlier.index.shards:
            (self._folder.target / shard.file).unlink(missing_ok=True)
        return part

    def discard(self) -> None:
        """Remove the files of this attempt, and nothing else. May be called again, also after `publish`."""
        if self._lock >= 0 and os.getpid() == self._process:
            self._ticket.unlink(missing_ok=True)
            self._remove_files(self.key, self._ticket)
            self._folder.leave(self._is_new)
        self._close()

    def _begin(self) -> int:
        """Make the ticket, and return its descriptor. Another writer may remove empty directories meanwhile."""
        for left in reversed(range(_MOST_TRIES)):
            self._is_new = self._folder.begin()
            try:
                with self._folder.still_open():
                    return self._made()
            except FileNotFoundError:
                if not left:
                    raise
            except BaseException:
                self._folder.leave(self._is_new)
                raise
        raise AssertionError

    def _made(self) -> int:
        check_division(self._folder, self.number)
        for key, ticket in list(self._tickets()):
            self._remove_if_dead(key, ticket)
        return os.open(self._ticket, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _earlier(self) -> CompletePart | None:
        """Return the complete attempt that this one will replace; a damaged one counts as none."""
        with contextlib.suppress(ShardFormatError):
            return self._folder.read(self.number)
        return None

    def _overtaken(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Discard this attempt in favour of a complete one, where there is one."""
        self.discard()
        if self._folder.is_sealed:
            note(f"{self._folder.target}: sealed meanwhile, with {self.number} by another writer", progress)
            return part
        other = self._earlier()
        if other is None:
            raise WriterBusyError(
                f"{self._folder.target}: another writer of {self.number} took this one for dead, since its file system "
                "has no locks between machines, and is at work on it; its rows are kept instead"
            )
        note(f"{self._folder.target}: {self.number} was completed by another writer meanwhile", progress)
        return other

    def _tickets(self) -> Iterator[tuple[str, Path]]:
        for path in self._folder.path.iterdir():
            found = _TICKET.fullmatch(path.name)
            if found and _number_of(found) == self.number:
                yield found[3], path

    def _remove_if_dead(self, key: str, ticket: Path) -> None:
        """Remove the files of an attempt whose writer has ended, as its lock tells."""
        with contextlib.suppress(OSError):  # alive, gone meanwhile, or on a file system without locks
            lock = os.open(ticket, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ticket.unlink()  # it can complete no more
                self._remove_files(key, ticket)
            finally:
                os.close(lock)

    def _remove_files(self, key: str, ticket: Path) -> None:
        for path in self._folder.target.glob(f"shard-{self.number.part:05d}-{key}-*.safetensors"):
            path.unlink(missing_ok=True)
        ticket.with_name(f"{ticket.name}.rows").unlink(missing_ok=True)

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def check_division(folder: PartsFolder, number: PartNumber) -> None:
    """Raise ValueError if parts of another number of parts are complete."""
    others = [other for other in folder.numbers()[0] if other.parts != number.parts]
    if others:
        raise ValueError(
            f"{folder.target}: {others[0]} is complete, and this is {number}; all parts must be of the same number of "
            f"parts. To divide the rows anew, remove {folder.target} first"
        )


def _number_of(found: re.Match[str]) -> PartNumber:
    return PartNumber(int(found[1]), None if found[2] is None else int(found[2]))


def _order(number: PartNumber) -> tuple[int, int]:
    return number.part, number.parts or 0


def _is_foreign(target: Path) -> bool:
    """Return whether something else than a directory of parts, or an empty one, is there."""
    try:
        names = [path.name for path in target.iterdir()]
    except FileNotFoundError:
        return target.is_symlink() and not target.exists()  # a link to nothing; another writer may make it just now
    except NotADirectoryError:
        return target.parent.is_dir()
    return bool(names) and PARTS_FOLDER not in names  # another writer may just have made it


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while len(view):
        view = view[os.write(file, view) :]
    os.fsync(file)
