"""The parts of a set that many writers make, on any machines that share a file system, and their sealing.

    NAME/shard-00003-9f2c61aa-00000.safetensors    a shard of part 3, where it stays
    NAME/.parts/00003-of-00016.9f2c61aa            the ticket of an attempt under way, locked by its writer
    NAME/.parts/00003-of-00016.json                part 3 is complete: the index of its shards
    NAME/.parts/job-5d0e.../                       as .parts, of the parts of a job that has taken the place
    NAME/.sealing/                                 .parts while the set is sealed
    NAME/index.json                                the set is sealed, and opens; .parts is gone

Three renames decide, whoever else is at work:

- The ticket becomes the part's .json: the attempt is complete, and replaces an earlier one as a whole.
- .parts becomes .sealing: no attempt can complete or be replaced any more.
- The index gets its name: the set exists.

Whoever removes the shards of an attempt first takes from it what it needs to complete: its ticket, or the part's .json.
So does whoever gives a job up. Writers of a job never make its folder: one that begins or ends late finds none, and its
part is in no other job's set.

Locks only tell whose writer is alive; where a file system has none, files of killed writers stay until the sealing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memload.errors import ShardFormatError, WriterBusyError
from memload.formats.shards.index import (
    INDEX_NAME,
    JOB_PREFIX,
    PARTS_FOLDER,
    SEALING_FOLDER,
    ShardIndex,
    ShardRecord,
    read_index,
)
from memload.formats.shards.part_terms import (
    CompletePart,
    PartNumber,
    check_division,
    forked,
    is_shard_of_part,
    job_ended,
    numbers_of,
    parsed_part,
    part_in,
    shard_name,
    taken_by_job,
    ticket_of,
)
from memload.formats.shards.reading import check_shard
from memload.formats.shards.staging import fsync_directory, makes, write_durably
from memload.progress import note

_MOST_TRIES = 10  # to begin, while other writers end and leave


class PartsFolder:
    """The parts of one set, while they are written and until they are sealed.

    Args:
        target: the directory of the set.
        job: whose parts are meant, a text that begins with "job-"; "": those that belong to no job.
    """

    def __init__(self, target: Path, job: str = "") -> None:
        self.target, self._job = target, job
        self._open, self._sealing = target / PARTS_FOLDER, target / SEALING_FOLDER
        self.path, self._claimed = self._open / job, self._sealing / job

    @property
    def is_sealed(self) -> bool:
        """Whether the set is complete."""
        return (self.target / INDEX_NAME).exists()

    def begin(self) -> bool:
        """Make the directories, if this writer is the first, and return whether the set's own was made.

        Raises:
            FileExistsError: the set is sealed, or something else is at its path.
            FileNotFoundError: the job has ended.
            WriterBusyError: the set is being sealed.
        """
        self.check_open()
        if self._job:
            self.check_job()
            return False
        if not self.path.exists() and _is_foreign(self.target):
            self.check_open()  # a sealing may have begun meanwhile
            raise FileExistsError(
                f"{self.target}: exists already, and no parts of a set are in it; write to another path"
            )
        is_new = not os.path.lexists(self.target)
        with makes(self.target):
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            self.check_open()
        except BaseException:
            with contextlib.suppress(OSError):
                self.path.rmdir()  # made beside a sealing that began meanwhile
            raise
        fsync_directory(self.target.parent)
        return is_new

    def leave(self, is_new: bool) -> None:
        """Remove the directories that `begin` made, if nothing is in them; those of a job stay, for all its writers."""
        if self._job:
            return
        with contextlib.suppress(OSError):
            self.path.rmdir()
            if is_new:
                self.target.rmdir()

    def numbers(self) -> tuple[list[PartNumber], list[PartNumber]]:
        """Return the parts that are complete, and those that have a ticket, in their order."""
        names = self._names()
        if any(name.startswith(JOB_PREFIX) for name in names):
            raise taken_by_job(self.target)
        return numbers_of(names)

    def there(self) -> tuple[list[PartNumber], list[PartNumber]] | None:
        """Return what `numbers` does; None if the set is sealed."""
        return None if self.is_sealed else self.numbers()

    def read(self, number: PartNumber) -> CompletePart | None:
        """Return a part, or None if it is not complete.

        Raises:
            ShardFormatError: its file is damaged, or is that of another part.
        """
        for folder in self._places:
            path = folder / f"{number.name}.json"
            with contextlib.suppress(FileNotFoundError):
                return parsed_part(path.read_bytes(), number, path)
        return None

    def read_all(self, numbers: Sequence[PartNumber]) -> list[CompletePart | None]:
        """Return parts as `read` does."""
        return [self.read(number) for number in numbers]

    def complete(self, number: PartNumber, same: Callable[[CompletePart], bool]) -> CompletePart | None:
        """Return a part that is complete, and of which `same` is true; otherwise None. Raises as `Parts.complete`."""
        part = None if self.is_sealed else self.read(number)
        if part is None or not same(part):
            return None
        self.check(part.index)
        return part

    def attempt(self, number: PartNumber) -> Attempt:
        """Begin an attempt at a part; raises as `Attempt`."""
        return Attempt(self, number)

    def check(self, index: ShardIndex) -> None:
        """Raise ShardFormatError unless all shards of an index are there, with its lengths, headers and fields."""
        for shard in index.shards:
            check_shard(self.target, shard, index.fields)

    def index(self) -> ShardIndex:
        """Return the index of the sealed set. Raises ShardFormatError."""
        return read_index(self.target)

    def claim(self) -> bool:
        """Keep all writers from completing or replacing a part. May be called again, by other processes, too."""
        try:
            self._open.rename(self._sealing)
        except OSError as error:  # it is claimed; a writer may have made .parts again, and is about to find that
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            return True
        fsync_directory(self.target)
        return True

    def release(self) -> None:
        """Let writers complete parts again, because the set cannot be sealed yet."""
        with contextlib.suppress(FileNotFoundError):
            if self._open.exists():  # made again by a writer that has found meanwhile, or is about to, what is going on
                for path in self._open.iterdir():
                    path.rename(self._sealing / path.name)
            self._sealing.rename(self._open)

    def publish(self, index: bytes) -> None:
        """Give the set its index; it exists from then on."""
        fsync_directory(self.target)
        fresh = self._claimed / f"index.{uuid.uuid4().hex[:8]}"
        write_durably(fresh, index)
        fresh.rename(self.target / INDEX_NAME)
        fsync_directory(self.target)

    def reserve(self) -> None:
        """Make the directories of a job. Of two jobs the one that makes `.parts` has the place.

        Raises:
            FileExistsError: the set is sealed, or something is at its path but shards that belong to no part.
            WriterBusyError: the set is being sealed.
        """
        self.check_open()
        taken = FileExistsError(f"{self.target}: exists already; write to another path, or remove it first")
        with makes(self.target):
            self.target.mkdir(parents=True, exist_ok=True)
        if not all(is_shard_of_part(path.name) for path in self.target.iterdir()):
            raise taken
        try:
            self._open.mkdir()
        except FileExistsError:
            raise taken from None
        self.path.mkdir()
        fsync_directory(self.target.parent)

    def check_job(self) -> None:
        """Raise FileNotFoundError if the job has ended, and its parts are not being sealed."""
        if self._job and not (self.path.is_dir() or self._claimed.is_dir()):
            raise job_ended(self.target)

    def abandon(self) -> None:
        """Remove all parts of a job whose set is not sealed. Writers that are at work are kept from completing."""
        if self.path.is_dir() and not self.is_sealed:
            self.claim()
            self.clear(ShardIndex({}, ()))
            with contextlib.suppress(OSError):  # somebody else's files are there
                self.target.rmdir()

    def clear(self, index: ShardIndex) -> None:
        """Remove what no index lists: tickets, and shards of attempts that were killed or replaced."""
        listed = {shard.file for shard in index.shards}
        for path in self.target.iterdir():
            if is_shard_of_part(path.name) and path.name not in listed:
                path.unlink(missing_ok=True)
        for folder in (self._sealing, self._open):
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def still_open(self) -> Iterator[None]:
        """Raise as `begin` in this context where the set is sealed meanwhile."""
        try:
            with makes(self.target):
                yield
        except FileNotFoundError:
            self.check_open()
            raise

    def check_open(self) -> None:
        """Raise FileExistsError if the set is sealed, and WriterBusyError while that is being done."""
        if self.is_sealed:
            raise FileExistsError(f"{self.target}: this set is complete; write to another path, or remove it first")
        if self._sealing.exists():
            raise WriterBusyError(
                f"{self.target}: this set is being sealed; if that was interrupted, memload.seal ends it"
            )

    @property
    def _places(self) -> tuple[Path, Path, Path]:
        """Where the parts can be, to be looked through in this order: a sealing may begin between two looks.

        While the set is sealed, a writer can make an empty .parts again for a moment.
        """
        return self._claimed, self.path, self._claimed

    def _names(self) -> list[str]:
        for folder in self._places:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if names := [path.name for path in folder.iterdir()]:
                    return names
        return []


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
        self.key = uuid.uuid4().hex[:8]
        self._ticket = folder.path / f"{number.name}.{self.key}"
        self._lock = self._begin()
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

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
        try:
            self._ticket.rename(self._complete)
        except FileNotFoundError:
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
            self._ticket.unlink(missing_ok=True)
            self._remove_files(self.key, self._ticket)
            self._folder.leave(self._is_new)
        self._close()

    def _begin(self) -> int:
        """Make the ticket, and return its descriptor. Another writer may remove empty directories meanwhile."""
        for left in reversed(range(_MOST_TRIES)):
            self._is_new = self._folder.begin()
            try:
                check_division(self._folder.target, self._folder.numbers()[0], self.number)
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
        for key, ticket in list(self._tickets()):
            self._remove_if_dead(key, ticket)
        lock = os.open(self._ticket, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
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


def _is_foreign(target: Path) -> bool:
    """Return whether something else than a directory of parts, or an empty one, is there."""
    try:
        names = [path.name for path in target.iterdir()]
    except FileNotFoundError:
        return target.is_symlink() and not target.exists()  # a link to nothing; another writer may make it just now
    except NotADirectoryError:
        return target.parent.is_dir()
    return bool(names) and PARTS_FOLDER not in names  # another writer may just have made it
