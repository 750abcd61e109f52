"""memload's own memory: its bytes, and how it is freed when memory becomes short."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

from memload._core import RowCache, free_spares
from memload.engine.tiers.pressure import caches_of
from memload.engine.tiers.tier import LEAST_CACHE_BYTES
from memload.memory.arenas import private_bytes
from memload.memory.c_heap import trim_heap


class OwnMemory:
    """Counts memload's own memory: caches of the hybrid tier and rows of the RAM tier."""

    def __init__(self) -> None:
        self.caches = KnownCaches()

    @property
    def nbytes(self) -> int:
        """The bytes of it now; takes some microseconds, in any thread."""
        return self.caches.nbytes + private_bytes()


class KnownCaches:
    """The caches of the hybrid tier that loaders read through, as long as the loaders live. Any thread may use it."""

    def __init__(self) -> None:
        self._known: tuple[tuple[weakref.ref[Any], list[RowCache]], ...] = ()

    def know(self, loader: Any) -> None:
        """Record the caches of a loader's dataset; called in the loader's thread, since this calls into the dataset."""
        found = _caches_of_loader(loader)
        others = (entry for entry in self._known if entry[0]() is not None and entry[0]() is not loader)
        self._known = (*others, (weakref.ref(loader), found)) if found else tuple(others)

    def all(self) -> list[RowCache]:
        """Return the caches, each once."""
        return list({cache: None for loader, caches in self._known if loader() is not None for cache in caches})

    @property
    def nbytes(self) -> int:
        """The bytes that the caches hold now."""
        return sum(int(cache.stats()["bytes"]) for cache in self.all())


def _caches_of_loader(loader: Any) -> list[RowCache]:
    source = loader.__memload_loader__().source
    if isinstance(source, str):
        return []
    return caches_of(field for part in getattr(source, "sources", [source]) for field in part.fields.values())


def shrink(loaders: Iterable[Any], caches: Iterable[RowCache]) -> None:
    """Free memory of caches and loaders; batches stay the same, and come more slowly.

    Caches free half of their bytes at once, and hold no more from then on. Loaders gather one batch ahead from their
    next pass on, and free unused memory of transforms at once. Memory that ended passes left for later ones, and unused
    memory that Python and the C library keep, go back to the system. Any thread may call this.
    """
    for cache in caches:
        cache.set_budget(max(LEAST_CACHE_BYTES, int(cache.stats()["bytes"]) // 2))
    for loader in loaders:
        loader.__memload_loader__().history.shrink()
    free_spares()
    gc.collect()
    trim_heap()
