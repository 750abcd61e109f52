"""What a loop still holds of steps that are over: its batches, results with their graph, other tensors."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.nested import tensors_of

_MOST_BATCHES = 64  # that are looked at
LOOKS = 4  # at how many results there are, one behind the other
_APART, _LATER = 64, 4  # steps between two of them; and how many times as late the next four begin
_STEPS_OVER = 3  # ticks after which a step, and the one that follows it, are over


@dataclass(frozen=True)
class KeptGraphs:
    """How many tensors there are that a backward pass could begin at.

    Attributes:
        results: all of them.
        losses: those of a single element.
        lasting: of those that one step of a loop made, how many were still there two steps later.
        batches: of batches that were looked at when the loop got them, how many were there two steps later, or more.
        seen: how many were looked at so long ago.
        others: of tensors without a graph that one step made, how many were still there two steps later.
    """

    results: int = 0
    losses: int = 0
    lasting: int = 0
    batches: int = 0
    seen: int = 0
    others: int = 0

    @property
    def keeps_batches(self) -> bool:
        """Whether most batches were still there."""
        return self.seen > 0 and 2 * self.batches > self.seen


def kept_graphs() -> KeptGraphs:
    """Return how many there are.

    A look at all objects of the process, of which a million take some ten milliseconds: for once, not for every look.
    What is not of torch's own class is passed over, since asking it anything may run anybody's code.
    """
    found = _results()
    return KeptGraphs(len(found), sum(one.numel() == 1 for one in found))


def _tensors() -> list[torch.Tensor]:
    return [one for one in gc.get_objects() if type(one) is torch.Tensor]


def _results() -> list[torch.Tensor]:
    return [one for one in _tensors() if one.grad_fn is not None]


class BatchesOverSteps:
    """Sees which batches a loop still holds: weak references to the memory of some of those that it got.

    Memory counts rather than tensors, since a view keeps it, too.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, list[weakref.ref[Any]]]] = deque(maxlen=_MOST_BATCHES)

    def look(self, batch: Any, tick: int) -> None:
        """Remember the memory of a batch that the loop gets in this tick."""
        memory = [weakref.ref(one.untyped_storage()) for one in tensors_of(batch) if _has_memory(one)]
        if memory:
            self._seen.append((tick, memory))

    def count(self, tick: int) -> tuple[int, int]:
        """Return how many batches of two ticks ago, or more, are still there, and how many were looked at."""
        old = [memory for begun, memory in list(self._seen) if begun <= tick - _STEPS_OVER]
        return sum(any(ref() is not None for ref in memory) for memory in old), len(old)


def _has_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 0


class GraphsOverSteps:
    """Sees over some steps of a loop which results last: a loop may hold those of its last step, but no older ones.

    One thread asks; the loop's thread, which alone knows where a step ends, looks three times, and then never again.
    """

    def __init__(self) -> None:
        self._asked = False
        self._turns = 0
        self._before: list[weakref.ref[torch.Tensor]] = []
        self._new: list[weakref.ref[torch.Tensor]] = []
        self._found: KeptGraphs | None = None
        self._steps = 0
        self.batches = BatchesOverSteps()

    def look(self, batch: Any) -> None:
        """Remember a batch that the loop gets now."""
        self.batches.look(batch, self._steps)

    def get(self, ended: bool = False) -> KeptGraphs | None:
        """Return what there is; None: it is not known before some steps more.

        Args:
            ended: whether no step will follow, so that only what is there now can be counted.
        """
        self._asked = True
        if self._found is None and ended:
            self._found = kept_graphs()
        if self._found is None:
            return None
        there, seen = self.batches.count(self._steps)
        return replace(self._found, batches=there, seen=seen)

    def tick(self) -> None:
        """Look, if somebody asked, between two steps."""
        self._steps += 1
        if not self._asked or self._found is not None:
            return
        self._turns += 1
        if self._turns == 1:
            self._before = [weakref.ref(one) for one in _tensors()]
        elif self._turns == 2:
            before = {id(one) for ref in self._before if (one := ref()) is not None}
            self._new = [weakref.ref(one) for one in _tensors() if id(one) not in before]
        elif self._turns == 4:
            there = [one for ref in self._new if (one := ref()) is not None]
            lasting = sum(one.grad_fn is not None for one in there)
            self._found = replace(kept_graphs(), lasting=lasting, others=len(there) - lasting)
            self._before, self._new = [], []


class ResultsBySteps:
    """Counts results with their graph between steps, so that those are seen which are kept, however small.

    Four times, each 64 steps after the one before; and again from four times as many steps on, and so on: a look at
    all objects of the process each time, which a long run has a few dozen of. Only the loop's thread ticks it.
    """

    def __init__(self) -> None:
        self._turns = 0
        self._begin = _APART
        self._now: list[tuple[int, int]] = []
        self.counts: tuple[tuple[int, int], ...] = ()
        """(step, results) of the latest four looks, empty before."""

    def tick(self) -> None:
        """Look, if it is time, between two steps."""
        self._turns += 1
        if self._turns != self._begin + len(self._now) * _APART:
            return
        self._now.append((self._turns, len(_results())))
        if len(self._now) == LOOKS:
            self.counts, self._now = tuple(self._now), []
            self._begin = _LATER * self._turns
