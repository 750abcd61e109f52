"""The parts of a set that many writers make, on any machines that share a file system, and their sealing.

    NAME/shard-00003-9f2c61aa-00000.safetensors    a shard of part 3, where it stays
    NAME/.parts/00003-of-00016.9f2c61aa            the ticket of an attempt under way, locked by its writer
    NAME/.parts/00003-of-00016.json                part 3 is complete: the index of its shards
    NAME/.parts/job-5d0e.../                       as .parts, of the parts of a job that has taken the place
    NAME/.sealing/                                 .parts while the set is sealed
    NAME/.sealing/index.5d0e9a41                   what becomes index.json, unless the sealing was released meanwhile
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
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memload.errors import WriterBusyError
from memload.formats.shards.attempts import MOST_TRIES, Attempt
from memload.formats.shards.index import (
    INDEX_NAME,
    JOB_PREFIX,
    PARTS_FOLDER,
    SEALING_FOLDER,
    ShardIndex,
    read_index,
)
from memload.formats.shards.part_terms import (
    CompletePart,
    PartNumber,
    is_shard_of_part,
    job_ended,
    numbers_of,
    parsed_part,
    taken_by_job,
)
from memload.formats.shards.reading import check_shard
from memload.formats.shards.staging import fsync_directory, makes, write_durably

_INDEX_PREFIX = "index."  # of what becomes the set's index


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
        if not any(place.exists() for place in self._places) and _is_foreign(self.target):
            self.check_open()  # it may have been sealed meanwhile
            raise FileExistsError(
                f"{self.target}: exists already, and no parts of a set are in it; write to another path"
            )
        is_new = not os.path.lexists(self.target)
        with makes(self.target):
            self._make()
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
        """Keep all writers from completing or replacing a part. May be called again, by other processes, too.

        What the set's index is written to is made here, and goes when the claim is released: writers may replace parts
        then, and an index that was merged before would list what is gone.
        """
        self._fresh = self._claimed / f"{_INDEX_PREFIX}{uuid.uuid4().hex[:8]}"
        try:
            self._open.rename(self._sealing)
        except OSError as error:  # it is claimed; a writer may have made .parts again, and is about to find that
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            self._forget_indices()  # of who claimed the parts while they were being released
            fsync_directory(self.target)
        with contextlib.suppress(FileNotFoundError):  # released, or sealed, meanwhile, as `publish` finds
            self._fresh.touch()
        return True

    def release(self) -> bool:
        """Let writers complete parts again, because the set cannot be sealed yet; return False if others have done so.

        A writer that made .parts again has found meanwhile, or is about to, what is going on. Its ticket stays with it.
        """
        for left in reversed(range(MOST_TRIES)):
            with contextlib.suppress(FileNotFoundError):  # the writer removes both itself
                for path in self._open.iterdir():
                    path.rename(self._sealing / path.name)
            self._forget_indices()
            try:
                self._sealing.rename(self._open)
            except FileNotFoundError:
                return False
            except OSError:  # a ticket came meanwhile
                if not left:
                    raise
            else:
                return True
        raise AssertionError

    def _forget_indices(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # released, or sealed, meanwhile
            for index in self._claimed.glob(f"{_INDEX_PREFIX}*"):
                index.unlink(missing_ok=True)

    def publish(self, index: bytes) -> None:
        """Give the set its index; it exists from then on. Raises FileNotFoundError if the claim was released."""
        fsync_directory(self.target)
        write_durably(self._fresh, index, "r+b")
        self._fresh.rename(self.target / INDEX_NAME)
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

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            if self.path.is_file():  # asked once: a sealing may take a directory away between two questions
                raise

    @property
    def _places(self) -> tuple[Path, Path, Path]:
        """Where the parts can be, to be looked through in this order: a sealing may begin between two looks.

        While the set is sealed, a writer can make an empty .parts again for a moment.
        """
        return self._claimed, self.path, self._claimed

    def _names(self) -> set[str]:
        names = set[str]()
        for _ in range(MOST_TRIES):  # sealings that begin and fail may pass by all looks
            for folder in self._places:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    names.update(path.name for path in folder.iterdir())
            if names:
                break
        return names


def _is_foreign(target: Path) -> bool:
    """Return whether something else than a directory of parts, or an empty one, is there."""
    try:
        names = [path.name for path in target.iterdir()]
    except FileNotFoundError:
        return target.is_symlink() and not target.exists()  # a link to nothing; another writer may make it just now
    except NotADirectoryError:
        return target.parent.is_dir()
    return bool(names) and PARTS_FOLDER not in names  # another writer may just have made it
