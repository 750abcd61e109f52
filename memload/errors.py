"""The exceptions and warnings of memload, and the tree of their classes.

MemloadError
├── FormatError (ValueError)            a path does not hold the expected format
│   ├── ShardFormatError                a shard, its header or index.json is malformed
│   └── DecodeError                     compressed bytes are not what their codec writes
├── ChecksumError (ValueError)          bytes differ from those that were written
├── ShardReadError (OSError)            a file became unreadable while it was in use
├── ShardWriteError (OSError)           a store does not take what is written to it
├── DiskSpaceError (OSError)            the target's file system is full, or would be
├── MemorySpaceError (MemoryError)      what is asked for does not fit into memory
├── ThreadLimitError (RuntimeError)     the system refuses a thread that the work needs
├── WriterBusyError (OSError)           another writer is at work on the same target
├── MemoryStopError (MemoryError)       memory is as full as a monitor's stop_at allows
└── DeviceError (RuntimeError)          a GPU is not there, is too small, or cannot be used any more

LayoutWarning (UserWarning)             reading a row costs many times its bytes
MemoryWarning (UserWarning)             a monitor sees memory grow, or become short

Misuse raises Python's own: TypeError, ValueError, IndexError, KeyError, FileNotFoundError, FileExistsError.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass


class LayoutWarning(UserWarning):
    """Reading a row of a file costs many times its bytes; the message says how many, and how to convert the file."""


class MemoryWarning(UserWarning):
    """A monitor sees memory grow or become short; the message says where, why, and what to do."""


class MemloadError(Exception):
    """The base of all errors that memload raises, except those of misuse, for which it raises Python's own types."""


class FormatError(MemloadError, ValueError):
    """A file or directory is not in the expected format, or is in no format that memload knows."""


class ShardFormatError(FormatError):
    """A shard, the header of a safetensors file or an index.json is malformed, cut short or from a newer version."""


class DecodeError(FormatError):
    """Compressed bytes cannot be decoded: damaged, or written by a filter with other parameters."""


@dataclass(frozen=True)
class Damage:
    """A single finding of `memload.verify`: the file, the fault and, where they are known, the field and its rows.

    `field` and `rows` are None if the finding concerns the whole shard. `rows` are row numbers of the whole set.
    """

    shard: str
    reason: str
    field: str | None = None
    rows: range | None = None

    def __str__(self) -> str:
        where = self.shard
        if self.field is not None:
            where += f", field {self.field!r}"
        if self.rows is not None:
            where += f", rows {self.rows.start} to {self.rows.stop - 1}"
        return f"{where}: {self.reason}"


class ChecksumError(MemloadError, ValueError):
    """Bytes differ from those that were written; `damages` lists each place, `nbytes` is how many bytes were read."""

    def __init__(self, message: str, damages: Sequence[Damage] = (), *, nbytes: int = 0) -> None:
        super().__init__(message)
        self.damages = tuple(damages)
        self.nbytes = nbytes


class ShardReadError(MemloadError, OSError):
    """A file could not be read while it was in use: cut short by another process, or on a failing device.

    `file` is its path, `row` the row of that file (-1: not in a row), `offset` the byte in it.
    """

    def __init__(self, message: str, *, file: str = "", row: int = -1, offset: int = 0) -> None:
        super().__init__(message)
        self.errno = errno.EIO
        self.file = file
        self.row = row
        self.offset = offset


class ShardWriteError(MemloadError, OSError):
    """A store failed again and again while shards were written to it; `file` is the object's address."""

    def __init__(self, message: str, *, file: str = "") -> None:
        super().__init__(message)
        self.errno = errno.EIO
        self.file = file


class DiskSpaceError(MemloadError, OSError):
    """The file system of the target is full, or would become full; partly written files have been removed.

    `need` and `free` are bytes; `need` is 0 if it was not known beforehand.
    """

    def __init__(self, message: str, *, need: int = 0, free: int = 0) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC
        self.need = need
        self.free = free


class MemorySpaceError(MemloadError, MemoryError):
    """A request does not fit into memory, may not be locked there, or was refused by the system.

    `need` and `free` are bytes; `need` is 0 if it is not known.
    """

    def __init__(self, message: str, *, need: int = 0, free: int = 0) -> None:
        super().__init__(message)
        self.need = need
        self.free = free


class ThreadLimitError(MemloadError, RuntimeError):
    """The system refuses this process another thread; the message names the limits on processes and on memory."""


class WriterBusyError(MemloadError, OSError):
    """Another writer, in this process or another, is at work on the same target."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EAGAIN


class MemoryStopError(MemloadError, MemoryError):
    """Memory is as full as a monitor's `stop_at` allows; the loader raises this between two batches and loses none."""


class DeviceError(MemloadError, RuntimeError):
    """A GPU is missing, has too little free memory, or cannot be used any more; the message says why."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
