"""The caches of the hybrid tier that stand before the datasets of loaders."""

from __future__ import annotations

import weakref
from typing import Any

from memload._core import RowCache
from memload.tiers.placing import caches_of


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
    source = loader._resolved()
    if isinstance(source, str):
        return []
    return caches_of(field for one in getattr(source, "sources", [source]) for field in one.fields.values())
