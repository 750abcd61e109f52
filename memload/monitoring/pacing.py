"""Figures that cost something, taken only as often as they may."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """A figure that is taken anew so rarely that this takes at most a given share of one core.

    Args:
        take: takes it.
        share: of the time that passes, the part that may be spent on it; 0.001: one that costs 10 ms is taken every
            10 seconds.
    """

    def __init__(self, take: Callable[[], T], share: float) -> None:
        self._take, self._share = take, share
        self._due = float("-inf")
        self._held: T

    def get(self, at_once: bool = False) -> T:
        """Return the figure as it was when it was last taken; `at_once`: as it is now."""
        now = time.monotonic()
        if at_once or now >= self._due:
            begun = time.thread_time()
            self._held = self._take()
            self._due = now + (time.thread_time() - begun) / self._share
        return self._held
