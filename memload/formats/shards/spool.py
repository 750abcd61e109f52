"""Store bytes of a shard whose final place is not known yet, in a file without a name on the same disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_COPY_BYTES = 2**24


class Spool:
    """A run of bytes in a file that several runs share, because a process can open only so many files.

    Args:
        file: stores the bytes. No run may be appended to after one of them is read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.nbytes = 0
        self._file = file
        self._extents: list[tuple[int, int]] = []  # where in the file they begin and end

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        begin = self._file.tell()
        view = memoryview(data)
        while len(view):
            view = view[self._file.write(view) :]
        if self._extents and self._extents[-1][1] == begin:
            begin = self._extents.pop()[0]
        self._extents.append((begin, self._file.tell()))
        self.nbytes += memoryview(data).nbytes

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes in order, some megabytes at a time."""
        for begin, end in self._extents:
            self._file.seek(begin)
            while begin < end and (piece := self._file.read(min(_COPY_BYTES, end - begin))):
                begin += len(piece)
                yield piece

    def close(self) -> None:
        """Free the disk space of the file, including that of other spools in it. May be called again."""
        self._file.close()


def spools(directory: Path, count: int = 1) -> list[Spool]:
    """Return `count` runs in one new file without a name in the directory."""
    file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - closed by Spool.close()
    return [Spool(file) for _ in range(count)]
