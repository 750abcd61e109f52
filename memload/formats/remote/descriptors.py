"""Descriptors of mirror files: the last used ones stay open, as many as any process may have."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
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


class Descriptors:
    """Files of a folder, by name; any thread may ask. Who has a descriptor may use it, whatever others ask for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str) -> Descriptor:
        """Return the descriptor of a file. Raises OSError."""
        with self._lock:
            if name not in self._open:
                self._open[name] = Descriptor(os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC))
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(name)
            return self._open[name]

    def close(self) -> None:
        """Forget all descriptors."""
        with self._lock:
            self._open.clear()
