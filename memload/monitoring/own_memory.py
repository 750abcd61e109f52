"""Memory of the process that is memload's own: what it is, and how it is given back when memory becomes short."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterable
from typing import Any

from memload._core import RowCache
from memload.engine.tiers.pressure import caches_of
from memload.engine.tiers.tier import LEAST_CACHE_BYTES
from memload.memory.arenas import private_bytes


class OwnMemory:
    """Counts it: caches of the hybrid tier and rows of the RAM tier."""

    def __init__(self) -> None:
        self.caches = KnownCaches()

    @property
    def nbytes(self) -> int:
        """Bytes of it now; some microseconds. May be asked from any thread."""
        return self.caches.nbytes + private_bytes()


class KnownCaches:
    """The caches before the datasets of loaders, as long as these live. May be asked from any thread."""

    def __init__(self) -> None:
        self._known: tuple[tuple[weakref.ref[Any], list[RowCache]], ...] = ()

    def know(self, loader: Any) -> None:
        """Record the caches of a loader's dataset; called in the loader's thread, since this calls into the dataset."""
        found = _caches_before(loader)
        others = (one for one in self._known if one[0]() is not None and one[0]() is not loader)
        self._known = (*others, (weakref.ref(loader), found)) if found else tuple(others)

    def all(self) -> list[RowCache]:
        """Return them, each once."""
        return list({cache: None for loader, caches in self._known if loader() is not None for cache in caches})

    @property
    def nbytes(self) -> int:
        """Bytes that they hold now."""
        return sum(int(cache.stats()["bytes"]) for cache in self.all())


def _caches_before(loader: Any) -> list[RowCache]:
    source = loader.__memload_loader__().source
    if isinstance(source, str):
        return []
    return caches_of(field for one in getattr(source, "sources", [source]) for field in one.fields.values())


def shrink(loaders: Iterable[Any], caches: Iterable[RowCache]) -> None:
    """Release what caches and loaders can do without; batches stay the same, and come more slowly.

    Caches give half of what they hold back at once, and hold no more from then on; loaders gather one batch ahead from
    their next pass on, and give memory of transforms back at once that is not in use; what Python and the C library
    keep though nobody uses it goes back to the system. May be called from any thread.
    """
    for cache in caches:
        cache.set_budget(max(LEAST_CACHE_BYTES, int(cache.stats()["bytes"]) // 2))
    for loader in loaders:
        loader.__memload_loader__().history.shrink()
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return free memory that the C library keeps to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
