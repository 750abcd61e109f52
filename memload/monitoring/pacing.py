"""Expensive figures, taken only as often as a share of one core allows."""

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
    """The cost allowed at first: a larger `share` of one core, until it has taken so many `seconds` of CPU time."""

    share: float
    seconds: float


class Paced(Generic[T]):
    """A figure that is taken so rarely that this uses at most a given share of one core.

    Args:
        take: returns the figure as it is now; a method is held by a weak reference, so that its object may own this.
        share: the share of one core that `take` may use; at 0.001 a figure that costs 10 ms is taken every 10 seconds.
        credit: what it may cost at first; None: no more than later.
        now: returns the time in seconds.
        worked: returns the seconds of processor time that this thread has used.
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
        self._value: T

    def get(self, at_once: bool = False) -> T:
        """Return the figure as it was last taken; with `at_once`, take it now."""
        now = self._now()
        if at_once or now >= self._due:
            begun = self._worked()
            take = self._take()
            assert take is not None, "the object of a method owns this, and calls it"
            self._value = take()
            took = self._worked() - begun
            self._spent += took
            self._due = now + took / self._allowed
        return self._value

    @property
    def _allowed(self) -> float:
        """The share of one core that it may use now."""
        if self._credit is None or self._spent >= self._credit.seconds:
            return self._share
        return self._credit.share
