"""The parts of a set that many writers make straight in a store of objects, and their sealing.

    NAME/shard-00003-9f2c61aa-00000.safetensors    a shard of part 3, where it stays
    NAME/.parts/00003-of-00016.9f2c61aa            an attempt is under way, or its writer was killed
    NAME/.parts/00003-of-00016.json                part 3 is complete: the index of its shards
    NAME/.parts/job                                one job has taken the place, whose text this is
    NAME/index.json                                the set is sealed, and opens; .parts is gone

A store has no renames and no locks, but each object appears as a whole. So:

- A part is complete, or replaced as a whole, when its .json is written.
- The set exists when its index is written, on the condition that there is none: the first of two sealers counts.
- Before the set exists nobody removes a shard of an attempt that may have completed: whoever seals may just list it.
  Afterwards all shards that the index does not list are removed, by the sealer and by writers that come too late.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from memload.errors import ShardFormatError
from memload.formats.remote.link import link
from memload.formats.remote.objects import Address, Objects
from memload.formats.remote.upload_folder import UploadFolder
from memload.formats.shards.index import INDEX_NAME, PARTS_FOLDER, ShardIndex, ShardRecord, parse_index
from memload.formats.shards.part_terms import (
    CompletePart,
    PartNumber,
    check_division,
    is_shard_of_part,
    numbers_of,
    parsed_part,
    part_in,
    shard_name,
)
from memload.progress import note

_FOLDER = f"{PARTS_FOLDER}/"
_JOB = f"{_FOLDER}job"


class StoreParts:
    """The parts of one set in a store, while they are written and until they are sealed.

    Args:
        address: where the set lies.

    Raises:
        ImportError, ValueError: as `Address.objects`; or the address is that of a web server.
    """

    def __init__(self, address: Address) -> None:
        self.target = address.url
        self.objects: Objects = address.objects(writing=True)
        if type(self.objects.store).__name__ == "HTTPStore":
            raise ValueError(
                f"{self.target}: sets are read from web servers, and not written to them; give the address of a store, "
                "such as s3://bucket/folder, or write to a folder that the server shows"
            )

    @property
    def is_sealed(self) -> bool:
        """Whether the set is complete."""
        return self.objects.exists(INDEX_NAME)

    def begin(self) -> bool:
        """Return whether nothing is there yet.

        Raises:
            FileExistsError: the set is sealed, or other objects are at its address.
        """
        names = self.objects.sizes(below=False)
        if INDEX_NAME in names:
            raise FileExistsError(f"{self.target}: this set is complete; write to another address, or remove it first")
        if foreign := [name for name in names if name != _FOLDER and not is_shard_of_part(name)]:
            raise FileExistsError(
                f"{self.target}: other objects are there, such as {foreign[0]!r}; write to another address"
            )
        return not names or (list(names) == [_FOLDER] and not self.objects.sizes(_FOLDER))  # LocalStore keeps folders

    def reserve(self, job: str) -> None:
        """Put an object that says whose this place is, on the condition that there is none; `clear` removes it.

        Raises:
            FileExistsError: something is there. In a store without conditions two jobs at once may both take the place.
        """
        taken = FileExistsError(
            f"{self.target}: something is there already, of another job or other writers; write to another address, or "
            "remove it first"
        )
        if not self.begin():
            raise taken
        try:
            self.objects.put(_JOB, job.encode(), create=True)
        except FileExistsError:
            if self.objects.read(_JOB) != job.encode():  # else an answer to this very request was lost
                raise taken from None

    def attempt(self, number: PartNumber) -> StoreAttempt:
        """Begin an attempt at a part; raises as `StoreAttempt`."""
        return StoreAttempt(self, number)

    def numbers(self) -> tuple[list[PartNumber], list[PartNumber]]:
        """Return the parts that are complete, and those that were begun, in their order."""
        return numbers_of(name.removeprefix(_FOLDER) for name in self.objects.sizes(_FOLDER))

    def read(self, number: PartNumber) -> CompletePart | None:
        """Return a part, or None if it is not complete. Raises ShardFormatError as `parsed_part`."""
        return self.read_all([number])[0]

    def read_all(self, numbers: Sequence[PartNumber]) -> list[CompletePart | None]:
        """Return parts as `read` does, with many requests at once."""
        names = [_index_name(number) for number in numbers]
        found = zip(numbers, names, self.objects.read_whole(names), strict=True)
        return [None if raw is None else parsed_part(raw, one, self.objects.url_of(name)) for one, name, raw in found]

    def check(self, index: ShardIndex) -> None:
        """Raise ShardFormatError unless all shards of an index are there, with the bytes that it states."""
        there = self.objects.sizes(below=False)
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

    def claim(self) -> None:
        """Do nothing: a part that completes while the set is sealed does no harm, see the head of this file."""

    release = claim

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

    def abandon(self, job: str) -> None:
        """Remove all parts of a set that is not sealed, if this job took the place with `reserve`."""
        if not self.is_sealed and self.objects.read_whole([_JOB]) == [job.encode()]:
            self._clear(set())

    def _clear(self, listed: set[str]) -> None:
        shards = [name for name in self.objects.sizes(below=False) if is_shard_of_part(name) and name not in listed]
        parts = self.objects.sizes(_FOLDER)
        self.objects.delete([*(name for name in parts if name != _JOB), *shards])
        self.objects.delete([_JOB] if _JOB in parts else [])  # the last: then another job may take the place


class StoreAttempt:
    """One writer of one part in a store, from its construction to `publish` or `discard`.

    Shards are written to a folder of this machine, and uploaded one by one while the next one is written: two of them
    lie there at the most. It belongs to the process that made it.

    Args:
        parts: the parts of the set.
        number: which part.

    Raises:
        FileExistsError: the set is sealed, or other objects are at its address.
        ValueError: parts of another division of the set are there.
        FileNotFoundError, PermissionError, ShardReadError, ShardWriteError: the store refuses it, or fails.
    """

    shards_on_disk: int | None = 3
    """One that is written, its compressed fields beside it, and one that is uploaded."""

    def __init__(self, parts: StoreParts, number: PartNumber) -> None:
        self._parts, self.number, self.key, self._process = parts, number, uuid.uuid4().hex[:8], os.getpid()
        self._uploaded: list[str] = []
        self._may_count = False  # whether the part may be complete with the shards of this attempt
        self._upload: tuple[Future[None], Path] | None = None
        parts.begin()
        check_division(parts, number)
        self._ticket = f"{_FOLDER}{number.name}.{self.key}"
        parts.objects.put(self._ticket, b"")
        self._folder = UploadFolder()
        self.disk = self._folder.path
        self._open = True

    @property
    def scratch(self) -> Path:
        """The path of a file for rows that arrive in pieces."""
        return self.disk / "rows"

    def shard(self, number: int) -> Path:
        """Return the path of a shard of this attempt, until it is uploaded."""
        return self.disk / shard_name(self.number, self.key, number)

    def add(self, shard: ShardRecord) -> None:
        """Upload a shard that is complete on the disk, while the next one is written.

        Raises:
            PermissionError, FileNotFoundError, ShardWriteError: the shard before it cannot be uploaded.
        """
        self._end_upload()
        path = self.disk / shard.file
        self._uploaded.append(shard.file)
        self._upload = link().submit(self._parts.objects.upload(shard.file, path)), path

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the one that made this."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self._parts.target}: this writer of {self.number} belongs to process {self._process}, and this is "
                f"process {os.getpid()}, forked from it; call memload.write_part in a process that was spawned"
            )

    def publish(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Complete the part, and return what counts: this attempt, or the one that the set was sealed with meanwhile.

        Whatever it raises, from the request that completes the part on no shard of this attempt is removed, unless the
        set has an index that does not list it.
        """
        self.check_process()
        self._end_upload()
        self._may_count = True  # also where the request raises: its answer alone may be lost
        self._parts.objects.put(_index_name(part.number), part.dump())
        if self._parts.is_sealed:
            part = self._part_of_sealed(part, progress)
        self._remove_after_success([self._ticket], progress)
        self._end()
        return part

    def _part_of_sealed(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Return the part in the set that was sealed meanwhile, and remove this attempt if it is another one."""
        counts = part_in(self._parts.index(), part.number)
        left = [_index_name(part.number)]
        if counts.files != part.files:
            note(f"{self._parts.target}: sealed meanwhile, with {self.number} by another writer", progress)
            left += self._uploaded
        self._remove_after_success(left, progress)
        return counts

    def _remove_after_success(self, names: Sequence[str], progress: bool | None) -> None:
        """Remove objects that nobody reads; where the store refuses that, or fails, a line says so."""
        try:
            self._parts.objects.delete(names)
        except OSError as error:
            note(f"{self.number} is complete, but what it left could not be removed: {error}", progress)

    def discard(self) -> None:
        """Remove the objects of this attempt, and its folder. May be called again, also after `publish`.

        Once the part may be complete, only the folder is removed: a sealer may just list the shards.
        """
        if not self._open:
            return
        if os.getpid() != self._process:
            self._folder.close()
            self._open = False
            return
        if self._upload is not None:
            self._upload[0].cancel()
        try:
            if not self._may_count:
                self._remove()
        finally:
            self._end()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):  # the error that ended the attempt says more; sealing removes the rest
            self._parts.objects.delete([self._ticket, *self._uploaded])

    def _end_upload(self) -> None:
        """Wait for the upload that is under way, and remove its file."""
        if self._upload is not None:
            upload, path = self._upload
            self._upload = None
            upload.result()
            path.unlink()

    def _end(self) -> None:
        self._folder.remove()
        self._open = False


def _index_name(number: PartNumber) -> str:
    """Return the name of the index of a part, which is there once the part is complete."""
    return f"{_FOLDER}{number.name}.json"
