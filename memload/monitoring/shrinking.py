"""Giving memory back when it becomes short."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable
from typing import Any

from memload._core import RowCache
from memload.engine.passes import transforming
from memload.tiers.tier import LEAST_CACHE_BYTES


def shrink(loaders: Iterable[Any], caches: Iterable[RowCache]) -> None:
    """Release what caches and loaders can do without; batches stay the same, and come more slowly.

    Caches give half of what they hold back at once, and hold no more from then on; loaders gather one batch ahead from
    their next pass on, and give memory of transforms back at once that is not in use; what Python and the C library
    keep though nobody uses it goes back to the system. May be called from any thread.
    """
    for cache in caches:
        cache.set_budget(max(LEAST_CACHE_BYTES, int(cache.stats()["bytes"]) // 2))
    for loader in loaders:
        loader._most_ahead = 1
        for gatherer in [loader._kept, *(one._gatherer for one in list(loader._passes))]:
            transforms = transforming(gatherer)
            if transforms is not None:
                transforms.give_back()
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Return free memory that the C library keeps to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
