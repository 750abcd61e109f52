"""Giving memory back when it becomes short."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable
from typing import Any


def shrink(loaders: Iterable[Any]) -> None:
    """Let loaders give back what they can do without; batches stay the same, and may come more slowly.

    Loaders gather one batch ahead from their next pass on; what Python and the C library keep though nobody uses it
    goes back to the system. May be called from any thread.
    """
    for loader in loaders:
        loader._most_ahead = 1
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Give memory back that the C library keeps for allocations to come."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
