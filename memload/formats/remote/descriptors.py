"""Descriptors of mirror files: the last used ones stay open, as many as any process may have."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

_MOST_OPEN = 128


class Descriptor:
    """A descriptor that is open until nobody has this object any more; so nobody closes what another one uses."""

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def of_memory(cls, name: str, nbytes: int) -> Descriptor:
        """Return a file of so many bytes in memory. Raises OSError."""
        made = cls(os.memfd_create(name, os.MFD_CLOEXEC))
        os.ftruncate(made.number, nbytes)
        return made

    def __del__(self) -> None:
        os.close(self.number)


Identity = tuple[int, int]


def identity_of(found: os.stat_result) -> Identity:
    """Return what tells a file from one that has its name later."""
    return found.st_dev, found.st_ino


class Descriptors:
    """Files of a folder, by name; any thread may ask. Who has a descriptor may use it, whatever others ask for.

    Args:
        folder: the folder.
        known: which files are meant, by name; others that have their names now are not opened.
    """

    def __init__(self, folder: Path, known: Mapping[str, Identity] | None = None) -> None:
        self._folder, self._known = folder, known or {}
        self._open: OrderedDict[str, Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str) -> Descriptor:
        """Return the descriptor of a file.

        Raises:
            FileNotFoundError: it was removed, or another one lies in its place.
            OSError: it cannot be opened.
        """
        with self._lock:
            if name not in self._open:
                self._open[name] = self._opened(name)
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(name)
            return self._open[name]

    def _opened(self, name: str) -> Descriptor:
        path = self._folder / name
        try:
            opened = Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            opened = None
        if opened is None or self._known.get(name) not in (None, identity_of(os.fstat(opened.number))):
            raise FileNotFoundError(
                errno.ENOENT,
                "this file of the cache was removed or replaced while a process reads through it; open the set again",
                str(path),
            )
        return opened

    def close(self) -> None:
        """Forget all descriptors."""
        with self._lock:
            self._open.clear()
