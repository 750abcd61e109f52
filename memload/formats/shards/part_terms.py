"""Parts of a set that many writers make: their numbers, their indices, and what a place for them has to do.

`parts.py` keeps them in a directory, and `formats/remote/store_parts.py` in a store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from memload.columns.numbers import is_whole
from memload.errors import ShardFormatError
from memload.formats.shards.index import PARTS_HERE, ShardIndex, ShardRecord, dump_index, parse_index
from memload.sizes import counted

_COMPLETE = re.compile(r"(\d{5,})(?:-of-(\d{5,}))?\.json")
_TICKET = re.compile(r"(\d{5,})(?:-of-(\d{5,}))?\.([0-9a-f]{8})")
_NUMBERLESS = ", or all be written without that number"
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
            allowed = (
                "0 or more" if self.parts is None else f"from 0 to {self.parts - 1} for {counted(self.parts, 'part')}"
            )
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

    @property
    def files(self) -> list[str]:
        """The names of its shards."""
        return [shard.file for shard in self.index.shards]

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


class PartAttempt(Protocol):
    """One writer of one part, from its construction to `publish` or `discard`. It belongs to the process that made it.

    Attributes:
        disk: a path on the disk that its shards are written to.
        durable: whether a shard has to be on that disk, beyond a failure of the machine, once it is complete.
    """

    disk: Path
    durable: bool

    def most_on_disk(self, shard_bytes: int) -> int | None:
        """Return the most bytes that lie on that disk at once, for shards of a size; None: all of the part."""

    def others(self) -> Iterator[CompletePart]:
        """Yield the other parts of the set that are complete. Raises ShardFormatError as `Parts.read`."""

    @property
    def scratch(self) -> Path:
        """The path of a file for rows that arrive in pieces."""

    def shard(self, number: int) -> Path:
        """Return the path of a shard of this attempt."""

    def memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory of at least `nbytes` bytes, for the next shard in place of its file; None: it needs a file."""

    def add(self, shard: ShardRecord) -> None:
        """Take a shard that is complete, in its file or in what `memory` returned."""

    def check_process(self) -> None:
        """Raise RuntimeError in a process other than the one that made this."""

    def publish(self, part: CompletePart, progress: bool | None) -> CompletePart:
        """Complete the part, and return what counts: this attempt, or another one that took its place meanwhile."""

    def discard(self) -> None:
        """Remove what this attempt made, and nothing else. May be called again, also after `publish`."""


class Parts(Protocol):
    """The parts of one set, while they are written and until they are sealed: those of one job, or of no job."""

    @property
    def target(self) -> Any:
        """Where the set is, for messages."""

    @property
    def is_sealed(self) -> bool:
        """Whether the set is complete."""

    def reserve(self) -> None:
        """Take the place for the parts of this job; shards that belong to no part may be there.

        Raises:
            FileExistsError: something else is there, such as what another job took or wrote.
            WriterBusyError: the set is being sealed.
        """

    def complete(self, number: PartNumber, same: Callable[[CompletePart], bool]) -> CompletePart | None:
        """Return a part that is complete, and of which `same` is true; otherwise None, also if the set is sealed.

        Raises:
            ShardFormatError: its index is damaged, or that of another part, or a shard is missing or damaged.
        """

    def attempt(self, number: PartNumber) -> PartAttempt:
        """Begin an attempt at a part. It may rely on what `complete` saw, if that was called just before.

        Raises:
            FileExistsError: the set is sealed, something else is at its path, or a job has taken the place, and this
                writer is of none.
            WriterBusyError: the set is being sealed.
            FileNotFoundError: the job of this writer has ended.
            ValueError: parts of another division of the set are there.
        """

    def numbers(self) -> tuple[list[PartNumber], list[PartNumber]]:
        """Return the parts that are complete, and those that were begun, in their order.

        Raises:
            FileExistsError: a job has taken the place, and this is of none.
        """

    def there(self) -> tuple[list[PartNumber], list[PartNumber]] | None:
        """Return what `numbers` does; None if the set is sealed."""

    def read(self, number: PartNumber) -> CompletePart | None:
        """Return a part, or None if it is not complete.

        Raises:
            ShardFormatError: its index is damaged, or is that of another part.
        """

    def read_all(self, numbers: Sequence[PartNumber]) -> list[CompletePart | None]:
        """Return parts as `read` does."""

    def check(self, index: ShardIndex) -> None:
        """Raise ShardFormatError unless all shards of an index are there, as it states them."""

    def index(self) -> ShardIndex:
        """Return the index of the sealed set."""

    def claim(self) -> bool:
        """Keep writers from completing or replacing a part, and return whether that was necessary.

        May be called again, by anybody.
        """

    def release(self) -> bool:
        """Let writers complete parts again, because the set cannot be sealed yet.

        Returns:
            False if another process has done so: what it met is no reason for this one to give up.
        """

    def publish(self, index: bytes) -> None:
        """Give the set its index; it exists from then on. Raises FileExistsError where it has one by now."""

    def clear(self, index: ShardIndex) -> None:
        """Remove what no index lists: what attempts left that were killed or replaced."""

    def abandon(self) -> None:
        """Remove all parts of a set that is not sealed, if its place was taken by this job."""


def taken_by_job(target: Any) -> FileExistsError:
    """Return the error of who belongs to no job, and meets the parts of one."""
    return FileExistsError(
        f"{target}: a job of Ray has taken this place, and seals its parts itself; if the job was killed, remove what "
        "is there, or else write to another place"
    )


def job_ended(target: Any) -> FileNotFoundError:
    """Return the error of a writer whose job has ended before it."""
    return FileNotFoundError(f"{target}: the job that this writer belongs to has ended; nothing of its part is kept")


def forked(target: Any, number: PartNumber, process: int, instead: str) -> RuntimeError:
    """Return the error of a writer that another process than its own, `process`, uses."""
    return RuntimeError(
        f"{target}: this writer of {number} belongs to process {process}, and this is process {os.getpid()}, forked "
        f"from it; call memload.write_part {instead}"
    )


def check_division(target: Any, complete: Iterable[PartNumber], number: PartNumber) -> None:
    """Raise ValueError if parts of another number of parts are complete."""
    other = next((other for other in complete if other.parts != number.parts), None)
    if other is None:
        return
    if number == PartNumber(0, 1):
        raise ValueError(
            f"{target}: {PARTS_HERE}: {other} is complete, and this is a whole set, part 0 of 1. Write it to another "
            f"place, or remove {target} first"
        )
    raise ValueError(
        f"{target}: {other} is complete, and this is {number}; all parts must be of the same number of "
        f"parts{_NUMBERLESS if None in (other.parts, number.parts) else ''}. To divide the rows anew, remove {target} "
        "first"
    )


def numbers_of(names: Iterable[str]) -> tuple[list[PartNumber], list[PartNumber]]:
    """Return the parts that names of files say to be complete, and the others that were begun, in their order."""
    complete, begun = set(), set()
    for name in names:
        if found := _COMPLETE.fullmatch(name):
            complete.add(_number_of(found))
        elif found := _TICKET.fullmatch(name):
            begun.add(_number_of(found))
    return sorted(complete, key=_order), sorted(begun - complete, key=_order)


def ticket_of(name: str) -> tuple[PartNumber, str] | None:
    """Return the part and the key of an attempt whose ticket has this name; None if it is no ticket."""
    found = _TICKET.fullmatch(name)
    return None if found is None else (_number_of(found), found[3])


def shard_name(number: PartNumber, key: str, shard: int) -> str:
    """Return the name of a shard of an attempt."""
    return f"shard-{number.part:05d}-{key}-{shard:05d}.safetensors"


def is_shard_of_part(name: str) -> bool:
    """Return whether a name is one that `shard_name` returns."""
    return _SHARD.fullmatch(name) is not None


def part_in(index: ShardIndex, number: PartNumber) -> CompletePart:
    """Return a part as a sealed set has it, by the names of its shards; its options and source are not known."""
    shards = tuple(shard for shard in index.shards if shard.file.startswith(f"shard-{number.part:05d}-"))
    return CompletePart(number, ShardIndex(index.fields if shards else {}, shards), {}, None)


def parsed_part(raw: bytes, number: PartNumber, where: Any) -> CompletePart:
    """Return a part from the bytes of its index. Raises ShardFormatError if they are damaged, or of another part."""
    try:
        part = CompletePart.parse(raw)
    except ShardFormatError as error:
        raise ShardFormatError(f"{where}: {error}") from error.__cause__
    if part.number != number:
        raise ShardFormatError(f"{where}: it is of {part.number}; write {number} again")
    return part


def _number_of(found: re.Match[str]) -> PartNumber:
    return PartNumber(int(found[1]), None if found[2] is None else int(found[2]))


def _order(number: PartNumber) -> tuple[int, int]:
    return number.part, number.parts or 0
