"""The observers of this process's loops: monitors, which act between two batches and see each batch.

A loader says when a pass begins, and before each batch gives every observer its turn, which may raise. Without an
observer that costs a look at an empty tuple. A forked child has the loops of its parent, but none of its observers:
their threads stayed behind.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

PASSES: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""How many passes each living loader has begun."""


class Observer(Protocol):
    """Something that has a turn before each batch, in the thread of the loop."""

    def pass_begins(self, loader: Any, number: int) -> None:
        """Record that a loader begins a pass, and how many it has begun so far."""

    def handed_out(self, batch: Any) -> None:
        """Look at a batch that a loop is given; nothing of it may be kept alive."""

    def between_batches(self) -> None:
        """Do what may only be done there; what it raises, the loop gets in place of a batch, and no batch is lost."""


class Observers:
    """The observers that run now; `now` is replaced as a whole, so that any thread may read it."""

    now: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Add an observer, which gets its turn between batches from now on."""
        self.now = (*self.now, observer)

    def remove(self, observer: Observer) -> None:
        """Remove an observer."""
        self.now = tuple(one for one in self.now if one is not observer)

    def clear(self) -> None:
        """Remove all."""
        self.now = ()


OBSERVERS = Observers()
"""Those of this process."""

os.register_at_fork(after_in_child=OBSERVERS.clear)


def observed(take: Callable[[], Any]) -> Any:
    """Return the batch that `take` gives a loop: every observer has its turn before, and sees the batch."""
    for observer in OBSERVERS.now:
        observer.between_batches()
    batch = take()
    for observer in OBSERVERS.now:
        observer.handed_out(batch)
    return batch


def known_passes() -> dict[Any, int]:
    """Return how many passes each living loader has begun. May be asked from any thread."""
    while True:
        try:
            return dict(PASSES.items())
        except RuntimeError:  # a loader came or went meanwhile
            continue
