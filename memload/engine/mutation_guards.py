"""Whether what a pass reads is still what it was when the pass began.

Torch counts what is written to a tensor, and an object's attributes can be looked at; so both are looked at before each
batch, at a third of a microsecond each. What nobody counts goes unnoticed: writes through a numpy array, through
``tensor.data``, to a file, and to the elements of a list of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class MutationGuard(Protocol):
    """Something that a user may change while it is read."""

    def state(self) -> Any:
        """Return what differs from what it was before once the thing was changed."""


@dataclass(frozen=True, eq=False)
class TensorGuard:
    """The values of a tensor: how often it, or what shares its memory as a view, was written to, and where it lies."""

    tensor: torch.Tensor

    def state(self) -> tuple[int, int]:
        """Return the count and the address."""
        return self.tensor._version, self.tensor.data_ptr()


@dataclass(frozen=True, eq=False)
class PartsGuard:
    """The identity of some objects: which datasets or tensors a dataset has.

    Attributes:
        parts: gives the objects that are there now.
        held: those that were there when this was made. Kept, since the place of one that is gone can be taken.
    """

    parts: Callable[[], Iterable[Any]]
    held: list[Any]

    @classmethod
    def of(cls, parts: Callable[[], Iterable[Any]]) -> PartsGuard:
        """Watch what `parts` gives now."""
        return cls(parts, list(parts()))

    def state(self) -> list[int]:
        """Return who they are."""
        return [*map(id, self.parts())]


def guarded_tensors(tensors: Iterable[Any]) -> tuple[MutationGuard, ...]:
    """Return a guard for each of these that is a tensor whose changes are counted."""
    return tuple(TensorGuard(t) for t in tensors if isinstance(t, torch.Tensor) and not t.is_inference())
