"""What loops tell the monitors of this process, and the place where monitors may act: between two batches.

A loader says when a pass begins, and before each batch lets every monitor that runs have its turn, which may raise.
Without a monitor that costs a look at an empty tuple. A forked child has the loops of its parent, but none of its
monitors: their threads stayed behind.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

_passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # begun so far, by living loaders
_attendants: tuple[Attendant, ...] = ()


class Attendant(Protocol):
    """Something that has a turn before each batch, in the thread of the loop."""

    def pass_begins(self, loader: Any, number: int) -> None:
        """Record that a loader begins a pass, and how many it has begun so far."""

    def handed_out(self, batch: Any) -> None:
        """Look at a batch that a loop is given; nothing of it may be kept alive."""

    def between_batches(self) -> None:
        """Do what may only be done there; what it raises, the loop gets in place of a batch, and no batch is lost."""


def pass_begins(loader: Any) -> None:
    """Record a pass and its loader, and tell all attendants."""
    number = _passes[loader] = _passes.get(loader, 0) + 1
    for attendant in _attendants:
        attendant.pass_begins(loader, number)


def between_batches() -> None:
    """Give every attendant its turn; called by loops between two batches."""
    for attendant in _attendants:
        attendant.between_batches()


def handed_out(batch: Any) -> Any:
    """Show every attendant a batch that a loop is given, and return it."""
    for attendant in _attendants:
        attendant.handed_out(batch)
    return batch


def attend(attendant: Attendant) -> None:
    """Add an attendant, which gets its turn between batches from now on."""
    global _attendants
    _attendants = (*_attendants, attendant)


def leave(attendant: Attendant) -> None:
    """Remove an attendant."""
    global _attendants
    _attendants = tuple(one for one in _attendants if one is not attendant)


def known_passes() -> dict[Any, int]:
    """Return how many passes each living loader has begun. May be asked from any thread."""
    while True:
        try:
            return dict(_passes.items())
        except RuntimeError:  # a loader came or went meanwhile
            continue


def _forget() -> None:
    global _attendants
    _attendants = ()


os.register_at_fork(after_in_child=_forget)
