"""Figures that cost something, taken only as often as they may."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Credit:
    """What a figure may cost at first: a larger share of one core, until so many seconds have gone into it."""

    share: float
    seconds: float


class Paced(Generic[T]):
    """A figure that is taken anew so rarely that this takes at most a given share of one core.

    Args:
        take: takes it; a method is not kept alive, so that its object may own this.
        share: of the time that passes, the part that may be spent on it; 0.001: one that costs 10 ms is taken every
            10 seconds.
        credit: what it may cost at first; None: no more than later.
        now: tells the time in seconds.
        worked: tells the seconds of processor time that this thread has had.
    """

    def __init__(
        self,
        take: Callable[[], T],
        share: float,
        credit: Credit | None = None,
        now: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._take: Callable[[], Callable[[], T] | None]
        self._take = weakref.WeakMethod(take) if isinstance(take, MethodType) else lambda: take
        self._share, self._now, self._worked = share, now, worked
        self._credit, self._spent = credit, 0.0
        self._due = float("-inf")
        self._held: T

    def get(self, at_once: bool = False) -> T:
        """Return the figure as it was when it was last taken; `at_once`: as it is now."""
        now = self._now()
        if at_once or now >= self._due:
            begun = self._worked()
            take = self._take()
            assert take is not None, "asked by the object that owns this"
            self._held = take()
            took = self._worked() - begun
            self._spent += took
            self._due = now + took / self._allowed
        return self._held

    @property
    def _allowed(self) -> float:
        """The share of one core that it may take now."""
        if self._credit is None or self._spent >= self._credit.seconds:
            return self._share
        return self._credit.share
