"""The ETags of the objects of a set, as the first answers stated them: bytes with other ETags are never mixed.

In a cache folder they lie in a file, for all processes: a line of JSON, [number of the object, ETag], for each object,
with null for an object of which the store states neither an ETag nor when it was modified.
A line counts once its end is written, which is before the first block of its object counts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from memload.memory import file_locks


class Etags:
    """The ETags of objects by their numbers, as of `objects.etag_of`; any thread may ask.

    Args:
        path: the file that keeps them; None: they are kept for this process alone.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[int, str] = {}
        self._read = 0  # bytes of the file
        self._lock = threading.Lock()
        if path is not None and path.exists():
            with path.open("rb") as file:
                self._take_up(file.fileno())

    def of(self, number: int) -> str | None:
        """Return the ETag of an object; None if this process knows of no answer about it."""
        return self._known.get(number)

    def settle(self, found: Mapping[int, str]) -> dict[int, str]:
        """Keep the ETags of objects that have none yet; return those that these objects have from now on.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            if self._path is None:
                self._known = {**found, **self._known}
            elif new := {number: etag for number, etag in found.items() if number not in self._known}:
                self._keep(new, self._path)
            return {number: self._known[number] for number in found}

    def _keep(self, new: Mapping[int, str], path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            file_locks.lock(file, path)
            self._take_up(file)
            lines = [
                json.dumps([number, etag or None]) + "\n" for number, etag in new.items() if number not in self._known
            ]
            _write_at(file, "".join(lines).encode(), self._read)  # over what a killed writer left of a line
            self._take_up(file)
        finally:
            os.close(file)

    def _take_up(self, file: int) -> None:
        """Read the whole lines that were written since the last time."""
        os.lseek(file, self._read, os.SEEK_SET)
        data = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
        lines = data[: data.rfind(b"\n") + 1]
        for line in lines.splitlines():
            if (found := _parsed(line)) is not None:
                self._known.setdefault(*found)
        self._read += len(lines)


def _parsed(line: bytes) -> tuple[int, str] | None:
    """Return what a line says; None if it is damaged, so that its object has no ETag yet.

    So it is with "", which earlier versions wrote without a look at when the object was modified.
    """
    try:
        number, etag = json.loads(line)
    except (ValueError, TypeError):
        return None
    if not isinstance(number, int) or not (etag is None or (isinstance(etag, str) and etag)):
        return None
    return number, etag or ""


def _write_at(file: int, data: bytes, offset: int) -> None:
    """Write all bytes, behind which the file ends; or none of them. Raises OSError."""
    os.ftruncate(file, offset)
    left = memoryview(data)
    try:
        while len(left):
            left = left[os.pwrite(file, left, offset + len(data) - len(left)) :]
    except OSError:
        os.ftruncate(file, offset)
        raise
