"""The parts of a set that many writers make straight in a store of objects, and their sealing.

    NAME/shard-00003-9f2c61aa-00000.safetensors    a shard of part 3, where it stays
    NAME/.parts/00003-of-00016.9f2c61aa            an attempt is under way, or its writer was killed
    NAME/.parts/00003-of-00016.json                part 3 is complete: the index of its shards
    NAME/.parts/job                                a job has taken the place, whose text this is
    NAME/.parts/job-5d0e.../                       as .parts, of the parts of this job, or of one that has ended
    NAME/index.json                                the set is sealed, and opens; .parts is gone

A store has no renames and no locks, but each object appears as a whole. So:

- A part is complete, or replaced as a whole, when its .json is written.
- The set exists when its index is written, on the condition that there is none: the first of two sealers counts.
- Before the set exists nobody removes a shard of an attempt that may have completed: whoever seals may just list it.
  Afterwards all shards that the index does not list are removed, by the sealer and by writers that come too late.
- A job is given up by making `job` empty. Whoever completes a part of a job reads `job` afterwards: it has another text
  only if the set is sealed, or never will be. A part that comes too late is in its own job's folder, and in no set.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memload.errors import ShardFormatError
from memload.formats.remote.addresses import Address
from memload.formats.remote.objects import Listed
from memload.formats.remote.uploads import Uploads
from memload.formats.shards.index import INDEX_NAME, JOB_PREFIX, PARTS_FOLDER, ShardIndex, ShardRecord, parse_index
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
)
from memload.progress import note

_FOLDER = f"{PARTS_FOLDER}/"
_JOB = f"{_FOLDER}job"
_OF_JOB = f"{_FOLDER}{JOB_PREFIX}"


class Seen(NamedTuple):
    """Objects that were at an address at some moment.

    Attributes:
        names: those beside the index, and folders with a slash at their ends.
        parts: those in the folder of parts, and in its folders.
    """

    names: Mapping[str, Listed]
    parts: Mapping[str, Listed]


class StoreParts:
    """The parts of one set in a store, while they are written and until they are sealed.

    Args:
        address: where the set lies.
        job: whose parts are meant, a text that begins with "job-"; "": those that belong to no job.

    Raises:
        ImportError, ValueError: as `Address.writable`; or the address is that of a web server.
    """

    def __init__(self, address: Address, job: str = "") -> None:
        self.target, self._job = address.url, job
        self.folder = f"{_FOLDER}{job}/" if job else _FOLDER
        self.objects = address.writable()
        self._seen: Seen | None = None  # by `complete` or `there`, for what follows it
        if type(self.objects.store).__name__ == "HTTPStore":
            raise ValueError(
                f"{self.target}: sets are read from web servers, and not written to them; give the address of a store, "
                "such as s3://bucket/folder, or write to a folder that the server shows"
            )

    @property
    def is_sealed(self) -> bool:
        """Whether the set is complete."""
        return self.objects.exists(INDEX_NAME)

    def look(self) -> Seen:
        """Return what is at the address, by two requests at once."""
        return Seen(*self.objects.listings(("", False), (_FOLDER, True)))

    def check_place(self, seen: Seen) -> None:
        """Raise FileExistsError if the set is sealed, or other objects are at its address."""
        if INDEX_NAME in seen.names:
            raise FileExistsError(f"{self.target}: this set is complete; write to another address, or remove it first")
        if foreign := [name for name in seen.names if name != _FOLDER and not is_shard_of_part(name)]:
            raise FileExistsError(
                f"{self.target}: other objects are there, such as {foreign[0]!r}; write to another address"
            )

    def reserve(self) -> None:
        """Put an object that says whose this place is, on the condition that there is none; `clear` removes it.

        Raises:
            FileExistsError: something is there. In a store without conditions two jobs at once may both take the place.
        """
        taken = FileExistsError(
            f"{self.target}: something is there already, of another job or other writers; write to another address, or "
            "remove it first"
        )
        seen = self.look()
        self.check_place(seen)
        if not all(name.startswith(_OF_JOB) for name in seen.parts):  # those of jobs that have ended
            raise taken
        try:
            self.objects.put(_JOB, self._job.encode(), create=True)
        except FileExistsError:
            if not self.is_ours:  # else an answer to this very request was lost
                raise taken from None

    @property
    def is_ours(self) -> bool:
        """Whether this job has taken the place, and was not given up."""
        return self.objects.read_whole([_JOB]) == [self._job.encode()]

    @property
    def has_ended(self) -> bool:
        """Whether these are the parts of a job that was given up, or has sealed its set."""
        return self._job != "" and not self.is_ours

    def check_job(self) -> None:
        """Raise FileNotFoundError if the job has ended."""
        if self.has_ended:
            raise job_ended(self.target)

    def complete(self, number: PartNumber, same: Callable[[CompletePart], bool]) -> CompletePart | None:
        """Return a part that is complete, and of which `same` is true; otherwise None. Raises as `Parts.complete`."""
        self._seen = seen = self.look()
        is_there = INDEX_NAME not in seen.names and self.index_name(number) in seen.parts
        part = self.read(number) if is_there else None
        if part is None or not same(part):
            return None
        self.check(part.index)
        return part

    def attempt(self, number: PartNumber) -> StoreAttempt:
        """Begin an attempt at a part; raises as `StoreAttempt`."""
        seen, self._seen = self._seen or self.look(), None
        return StoreAttempt(self, number, seen)

    def numbers(self) -> tuple[list[PartNumber], list[PartNumber]]:
        """Return the parts that are complete, and those that were begun, in their order."""
        return self._numbers_of(self.objects.sizes(self.folder))

    def there(self) -> tuple[list[PartNumber], list[PartNumber]] | None:
        """Return what `numbers` does; None if the set is sealed."""
        self._seen = seen = self.look()
        return None if INDEX_NAME in seen.names else self.numbers_in(seen)

    def numbers_in(self, seen: Seen) -> tuple[list[PartNumber], list[PartNumber]]:
        """Return what `numbers` did at some moment. Raises FileExistsError as `Parts.numbers`."""
        return self._numbers_of([name for name in seen.parts if name.startswith(self.folder)])

    def _numbers_of(self, names: Collection[str]) -> tuple[list[PartNumber], list[PartNumber]]:
        if not self._job and _JOB in names:
            raise taken_by_job(self.target)
        return numbers_of(name.removeprefix(self.folder) for name in names)

    def index_name(self, number: PartNumber) -> str:
        """Return the name of the index of a part, which is there once the part is complete."""
        return f"{self.folder}{number.name}.json"

    def read(self, number: PartNumber) -> CompletePart | None:
        """Return a part, or None if it is not complete. Raises ShardFormatError as `parsed_part`."""
        return self.read_all([number])[0]

    def read_all(self, numbers: Sequence[PartNumber]) -> list[CompletePart | None]:
        """Return parts as `read` does, with many requests at once."""
        return self.parsed(numbers, self.begin_reading(numbers))

    def begin_reading(self, numbers: Sequence[PartNumber]) -> Future[list[bytes | None]]:
        """Begin to read the indices of parts; `parsed` has the parts."""
        return self.objects.begin_reading([self.index_name(number) for number in numbers])

    def parsed(self, numbers: Sequence[PartNumber], read: Future[list[bytes | None]]) -> list[CompletePart | None]:
        """Return the parts of indices that were begun to be read; raises as `read`."""
        found = zip(numbers, read.result(), strict=True)
        return [None if raw is None else parsed_part(raw, one, self._url_of(one)) for one, raw in found]

    def _url_of(self, number: PartNumber) -> str:
        return self.objects.url_of(self.index_name(number))

    def check(self, index: ShardIndex) -> None:
        """Raise ShardFormatError unless all shards of an index are there, with the bytes that it states."""
        seen = self._seen.names if self._seen else {}
        if all(shard.file in seen and seen[shard.file].nbytes == shard.nbytes for shard in index.shards):
            return
        there = self.objects.sizes(below=False)  # those of parts that have completed since
        for shard in index.shards:
            if (found := there.get(shard.file)) != shard.nbytes:
                what = "is missing" if found is None else f"has {found} bytes instead of {shard.nbytes}"
                raise ShardFormatError(f"{self.objects.url_of(shard.file)}: it {what}; write its part again")

    def index(self) -> ShardIndex:
        """Return the index of the sealed set. Raises ShardFormatError, FileNotFoundError."""
        try:
            return parse_index(self.objects.read(INDEX_NAME))
        except ShardFormatError as error:
            raise ShardFormatError(f"{self.objects.url_of(INDEX_NAME)}: {error}") from error.__cause__

    def claim(self) -> bool:
        """Return False: a part that completes while the set is sealed does no harm, see the head of this file."""
        return False

    def release(self) -> bool:
        """Do nothing, as `claim`; return True."""
        return True

    def publish(self, index: bytes) -> None:
        """Give the set its index; it exists from then on. Raises FileExistsError where it has another one by now."""
        try:
            self.objects.put(INDEX_NAME, index, create=True)
        except FileExistsError:
            if self.objects.read(INDEX_NAME) != index:  # else an answer to this very request was lost
                raise

    def clear(self, index: ShardIndex) -> None:
        """Remove what the index of a sealed set does not list: tickets, parts, and shards of other attempts.

        The set is complete, so a store that refuses this, or fails, is told by a line and raises nothing.
        """
        try:
            self._clear({shard.file for shard in index.shards})
        except OSError as error:
            note(f"{self.target}: complete, but what writers left could not be removed: {error}", None)

    def abandon(self) -> None:
        """Remove all parts of a set that is not sealed, if this job took the place with `reserve`."""
        if not self.is_sealed and self.is_ours:
            self.objects.put(_JOB, b"")  # what completes from now on is removed by its writer
            self._clear(set())

    def _clear(self, listed: set[str]) -> None:
        names, parts = self.look()
        shards = [name for name in names if is_shard_of_part(name) and name not in listed]
        self.objects.delete([*(name for name in parts if name != _JOB), *shards])
        self.objects.delete([_JOB] if _JOB in parts else [])  # the last: then another job may take the place


class _Others(NamedTuple):
    """Parts that are complete, and what becomes the index of the first of them."""

    numbers: list[PartNumber]
    first: Future[list[bytes | None]]


class StoreAttempt:
    """One writer of one part in a store, from its construction to `publish` or `discard`.

    Shards are written to memory, or to a folder of this machine where they are large, compressed or ragged, and are
    uploaded while the next ones are written. It belongs to the process that made it.

    Args:
        parts: the parts of the set.
        number: which part.
        seen: what is at its address.

    Raises:
        FileExistsError: the set is sealed, or other objects are at its address, or a job has taken it.
        ValueError: parts of another division of the set are there.
        FileNotFoundError: the job of the parts has ended.
        FileNotFoundError, PermissionError, ShardReadError, ShardWriteError: the store refuses it, or fails.
    """

    durable = False
    """A shard is sent from memory, and once it is stored, its file goes."""

    def __init__(self, parts: StoreParts, number: PartNumber, seen: Seen) -> None:
        self._parts, self.number, self.key, self._process = parts, number, uuid.uuid4().hex[:8], os.getpid()
        self._may_count = False  # whether the part may be complete with the shards of this attempt
        parts.check_place(seen)
        parts.check_job()
        complete = parts.numbers_in(seen)[0]
        check_division(parts.target, complete, number)
        self._uploads = Uploads(parts.objects)
        self.disk = self._uploads.folder.path
        self._ticket = f"{parts.folder}{number.name}.{self.key}"
        self._ticket_put = parts.objects.begin_put(self._ticket, b"")
        self._others: _Others | None = self._begin_others(complete)
        self._open = True

    def most_on_disk(self, shard_bytes: int) -> int | None:
        """Return the most bytes that lie in the folder at once, for shards of a size."""
        return self._uploads.most_on_disk(shard_bytes)

    def others(self) -> Iterator[CompletePart]:
        """Yield the other parts of the set that are complete; at first, those that were when this attempt began.

        Raises:
            ShardFormatError: as `StoreParts.read`.
        """
        numbers, first = self._others or self._begin_others(self._parts.numbers()[0])
        self._others = None
        yield from filter(None, self._parts.parsed(numbers[:1], first))
        for number in numbers[1:]:
            yield from filter(None, self._parts.read_all([number]))

    def _begin_others(self, complete: Iterable[PartNumber]) -> _Others:
        numbers = [number for number in complete if number != self.number]
        return _Others(numbers, self._parts.begin_reading(numbers[:1]))

    @property
    def scratch(self) -> Path:
        """The path of a file for rows that arrive in pieces."""
        return self.disk / "rows"

    def shard(self, number: int) -> Path:
        """Return the path of a shard of this attempt, until it is uploaded. Raises where the store refuses objects."""
        self._ticket_put.result()
        return self.disk / shard_name(self.number, self.key, number)

    def memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory for the next shard, which the next `add` takes; None if it is too large."""
        return self._uploads.memory(nbytes)

    def add(self, shard: ShardRecord) -> None:
        """Upload a shard that is complete, while the next ones are written.

        Raises:
            PermissionError, FileNotFoundError, ShardWriteError: a shard before it cannot be uploaded.
            FileNotFoundError: the job has ended.
        """
        self._parts.check_job()
        self._uploads.add(shard.file, shard.nbytes)

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the one that made this."""
        if os.getpid() != self._process:
            raise forked(self._parts.target, self.number, self._process, "in a process that was spawned")

    def publish(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Complete the part, and return what counts: this attempt, or the one that the set was sealed with meanwhile.

        Whatever it raises, from the request that completes the part on no shard of this attempt is removed, unless the
        set has an index that does not list it, or will never have one.

        Raises:
            FileNotFoundError: the job has ended.
        """
        self.check_process()
        self._ticket_put.result()
        self._uploads.finish()
        self._may_count = True  # also where the request raises: its answer alone may be lost
        self._parts.objects.put(self._parts.index_name(part.number), part.dump())
        removal = self._parts.objects.begin_delete([self._ticket])
        has_ended = self._parts.has_ended  # asked first: a job that seals ends afterwards
        if self._parts.is_sealed:
            part = self._part_of_sealed(part, progress)
        elif has_ended:
            self._remove(self._parts.index_name(part.number))
            raise job_ended(self._parts.target)
        self._end_removal(removal, progress)
        self._end()
        return part

    def _part_of_sealed(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Return the part in the set that was sealed meanwhile, and remove this attempt if it is another one."""
        counts = part_in(self._parts.index(), part.number)
        left = [self._parts.index_name(part.number)]
        if counts.files != part.files:
            note(f"{self._parts.target}: sealed meanwhile, with {self.number} by another writer", progress)
            left += self._uploads.names
        self._end_removal(self._parts.objects.begin_delete(left), progress)
        return counts

    def _end_removal(self, removal: Future[None], progress: bool | None) -> None:
        """Wait until objects are removed that nobody reads; where the store refuses that, or fails, a line says so."""
        try:
            removal.result()
        except OSError as error:
            note(f"{self.number} is complete, but what it left could not be removed: {error}", progress)

    def discard(self) -> None:
        """Remove the objects of this attempt, and its folder. May be called again, also after `publish`.

        Once the part may be complete, only the folder is removed: a sealer may just list the shards.
        """
        if not self._open:
            return
        if os.getpid() != self._process:
            self._uploads.folder.close()
            self._open = False
            return
        self._uploads.cancel(self._ticket_put)
        try:
            if not self._may_count:
                self._remove()
        finally:
            self._end()

    def _remove(self, *names: str) -> None:
        with contextlib.suppress(OSError):  # the error that ended the attempt says more; sealing removes the rest
            self._parts.objects.delete([*names, self._ticket, *self._uploads.names])

    def _end(self) -> None:
        self._uploads.close()
        self._open = False
