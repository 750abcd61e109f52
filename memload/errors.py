"""The faults of the world that memload reports.

MemloadError
├── FormatError (ValueError)            a path holds something else than it should
│   ├── ShardFormatError                a shard, its header or index.json is malformed
│   └── DecodeError                     compressed bytes are not what their codec writes
├── ChecksumError (ValueError)          bytes differ from those that were written
├── ShardReadError (OSError)            a file became unreadable while it was in use
├── DiskSpaceError (OSError)            the target's file system is full, or would be
├── MemorySpaceError (MemoryError)      what is asked for does not fit into memory; nothing was begun
├── WriterBusyError (OSError)           another writer is at work on the same target
├── MemoryStopError (MemoryError)       memory is as full as a monitor's stop_at allows
└── DeviceError (RuntimeError)          a GPU is not there, is too small, or cannot be used any more

LayoutWarning (UserWarning)             rows can be read, but cost many times their bytes
MemoryWarning (UserWarning)             a monitor sees memory grow, or become short

Misuse raises Python's own: TypeError, ValueError, IndexError, KeyError, FileNotFoundError, FileExistsError.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass


class LayoutWarning(UserWarning):
    """Rows of a file cost many times their bytes to be read; the message says how many, and how to convert them."""


class MemoryWarning(UserWarning):
    """A monitor sees memory grow or become short; the message says where, why, and what to do."""


class MemloadError(Exception):
    """Any fault that memload reports and that is not the caller's misuse."""


class FormatError(MemloadError, ValueError):
    """A file or directory is not in the format it should be in, or in none that memload knows."""


class ShardFormatError(FormatError):
    """A shard, the header of a safetensors file or an index.json is malformed, cut short or from a newer version."""


class DecodeError(FormatError):
    """Compressed bytes cannot be decoded: damaged, or written by a filter with other parameters."""


@dataclass(frozen=True)
class Damage:
    """One finding of a verification: what is wrong, and where.

    `field` and `rows` are None where the whole shard is meant. `rows` counts within the whole set.
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
    """Bytes differ from those that were written; `damages` lists each place."""

    def __init__(self, message: str, damages: Sequence[Damage] = ()) -> None:
        super().__init__(message)
        self.damages = tuple(damages)


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


class DiskSpaceError(MemloadError, OSError):
    """The file system of the target is full, or would be; nothing of the attempt is left on it.

    `need` and `free` are bytes; `need` is 0 where it was not known beforehand.
    """

    def __init__(self, message: str, *, need: int = 0, free: int = 0) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC
        self.need = need
        self.free = free


class MemorySpaceError(MemloadError, MemoryError):
    """What is asked for does not fit into memory, or may not be locked there; nothing of it was begun.

    `need` and `free` are bytes.
    """

    def __init__(self, message: str, *, need: int = 0, free: int = 0) -> None:
        super().__init__(message)
        self.need = need
        self.free = free


class WriterBusyError(MemloadError, OSError):
    """Another writer, in this process or another, is at work on the same target."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EAGAIN


class MemoryStopError(MemloadError, MemoryError):
    """Memory is as full as a monitor's `stop_at` allows; raised between two batches, so that none is lost."""


class DeviceError(MemloadError, RuntimeError):
    """A GPU is not there, has no room for what is asked of it, or cannot be used any more; the message says why."""


def first_line(error: BaseException) -> str:
    """Return what another library says of an error, or its type if it says nothing, as part of a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
