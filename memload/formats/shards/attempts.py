"""One writer's attempt at one part of a set in a directory; the head of `parts.py` shows its files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memload.errors import ShardFormatError, WriterBusyError
from memload.formats.shards.index import ShardRecord
from memload.formats.shards.part_terms import (
    CompletePart,
    PartNumber,
    check_division,
    forked,
    part_in,
    shard_name,
    ticket_of,
)
from memload.formats.shards.staging import fsync_directory
from memload.memory.file_locks import is_at
from memload.progress import note

if TYPE_CHECKING:
    from memload.formats.shards.parts import PartsFolder

MOST_TRIES = 10
"""To begin, or to let others begin, while other processes end and leave."""


class Attempt:
    """One writer of one part, from its construction to `publish` or `discard`.

    It belongs to the process that made it.

    Args:
        folder: the parts of the set.
        number: which part.

    Raises:
        FileExistsError, WriterBusyError: the set is sealed or being sealed, or something else is at its path.
        FileNotFoundError: the job of the parts has ended.
        ValueError: parts of another division of the set are there.
    """

    durable = True

    def __init__(self, folder: PartsFolder, number: PartNumber) -> None:
        self.number, self.disk = number, folder.target
        self._folder = folder
        self._process = os.getpid()
        self._complete = folder.path / f"{number.name}.json"
        self._may_count = False
        self._lock = self._begin()

    @property
    def scratch(self) -> Path:
        """The path of a file for rows that arrive in pieces."""
        return self._ticket.with_name(f"{self._ticket.name}.rows")

    def most_on_disk(self, shard_bytes: int) -> int | None:  # noqa: ARG002 - as in other places
        """Return None: all shards of the part stay there."""
        return None

    def others(self) -> Iterator[CompletePart]:
        """Yield the other parts of the set that are complete. Raises ShardFormatError as `PartsFolder.read`."""
        for number in self._folder.numbers()[0]:
            if number != self.number and (part := self._folder.read(number)) is not None:
                yield part

    def shard(self, number: int) -> Path:
        """Return the path of a shard of this attempt."""
        return self._folder.target / shard_name(self.number, self.key, number)

    def memory(self, nbytes: int) -> None:
        """Return None: shards are written to files."""

    def add(self, shard: ShardRecord) -> None:
        """Take a shard that is complete, and lies where it stays."""

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the one that made this."""
        if os.getpid() != self._process:
            raise forked(self._folder.target, self.number, self._process, "here instead")

    def publish(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Complete the part, and return what counts: this attempt, or another one that took its place meanwhile.

        Raises:
            WriterBusyError: another writer took this one for dead, and is at work on the part.
            FileNotFoundError: the job of this part has ended.
        """
        self.check_process()
        with contextlib.suppress(FileNotFoundError):  # it went with the job
            fsync_directory(self._folder.target)
        earlier = self._earlier()
        with open(self._lock, "wb", closefd=False) as file:
            file.write(part.dump())
        os.fsync(self._lock)
        self._may_count = True  # also where an interrupt comes as soon as the part is complete
        try:
            self._ticket.rename(self._complete)
        except FileNotFoundError:
            self._may_count = False
            return self._overtaken(progress)
        with contextlib.suppress(FileNotFoundError):  # it is being sealed, and has its index on the disk soon
            fsync_directory(self._folder.path)
        self._close()
        for shard in () if earlier is None else earlier.index.shards:
            (self._folder.target / shard.file).unlink(missing_ok=True)
        return part

    def discard(self) -> None:
        """Remove the files of this attempt, and nothing else. May be called again, also after `publish`."""
        if self._lock >= 0 and os.getpid() == self._process:
            with contextlib.suppress(FileNotFoundError):
                self._ticket.unlink()
                self._may_count = False
            if not self._may_count:
                self._remove_files(self.key, self._ticket)
            self._folder.leave(self._is_new)
        self._close()

    def _begin(self) -> int:
        """Make the ticket, and return its descriptor. Another writer may remove empty directories meanwhile."""
        for left in reversed(range(MOST_TRIES)):
            self._is_new = self._folder.begin()
            try:
                check_division(self._folder.target, self._folder.numbers()[0], self.number)
                with self._folder.still_open():
                    made = self._made()
                return self._checked(made)
            except FileNotFoundError:
                if not left:
                    raise
            except BaseException:
                self._folder.leave(self._is_new)
                raise
        raise AssertionError

    def _made(self) -> int:
        for key, ticket in list(self._tickets()):
            self._remove_if_dead(key, ticket)
        self.key = uuid.uuid4().hex[:8]
        self._ticket = self._folder.path / f"{self.number.name}.{self.key}"
        return os.open(self._ticket, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _checked(self, lock: int) -> int:
        """Lock the new ticket, and return its descriptor if it may complete; otherwise it is removed."""
        try:
            if not _is_locked(lock, self._ticket):
                raise FileNotFoundError(f"{self._ticket}: another writer took this one for dead; write again")
            self._folder.check_open()  # .parts may be one that was made beside a sealing, whose parts are its own
        except BaseException:
            os.close(lock)
            self._ticket.unlink(missing_ok=True)
            raise
        return lock

    def _earlier(self) -> CompletePart | None:
        """Return the complete attempt that this one will replace; a damaged one counts as none."""
        with contextlib.suppress(ShardFormatError):
            return self._folder.read(self.number)
        return None

    def _overtaken(self, progress: bool | None) -> CompletePart:
        """Discard this attempt in favour of a complete one, where there is one."""
        self.discard()
        if self._folder.is_sealed:
            note(f"{self._folder.target}: sealed meanwhile, with {self.number} by another writer", progress)
            return part_in(self._folder.index(), self.number)
        other = self._earlier()
        if other is None:
            self._folder.check_job()
            raise WriterBusyError(
                f"{self._folder.target}: another writer of {self.number} took this one for dead, since its file system "
                "has no locks between machines, and is at work on it; its rows are kept instead"
            )
        note(f"{self._folder.target}: {self.number} was completed by another writer meanwhile", progress)
        return other

    def _tickets(self) -> Iterator[tuple[str, Path]]:
        for path in self._folder.path.iterdir():
            found = ticket_of(path.name)
            if found is not None and found[0] == self.number:
                yield found[1], path

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


def _is_locked(lock: int, ticket: Path) -> bool:
    """Lock a new ticket; return whether that came before another writer found it without a lock, and removes it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return is_at(lock, ticket)
