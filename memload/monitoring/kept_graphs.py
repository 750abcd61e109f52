"""Counts what a loop still holds of earlier steps: batches, results with their autograd graph, other tensors."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import torch

from memload.nested import tensors_of

_MOST_BATCHES = 64  # of which weak references are kept
LOOKS = 4  # counts of results in a series
_APART, _LATER = 64, 4  # steps between two counts; the next series begins at so many times the step of the last count
_STEPS_OVER = 3  # ticks after which a step, and the one after it, are over


@dataclass(frozen=True)
class KeptGraphs:
    """Counts of tensors that a loop keeps. A result is a tensor with a `grad_fn`.

    Attributes:
        results: all results that exist.
        losses: the results of a single element.
        lasting: the results that one step made and that existed two steps later.
        batches: the batches of `seen` that still exist.
        seen: the batches that were remembered at least two steps ago.
        others: the tensors without a graph that one step made and that existed two steps later.
    """

    results: int = 0
    losses: int = 0
    lasting: int = 0
    batches: int = 0
    seen: int = 0
    others: int = 0

    @property
    def keeps_batches(self) -> bool:
        """Whether most of the batches still exist."""
        return self.seen > 0 and 2 * self.batches > self.seen


def kept_graphs() -> KeptGraphs:
    """Count the results that exist.

    This visits all objects of the process, some ten milliseconds for a million, so it is not done for every sample.
    Subclasses of tensors are skipped, since their attributes may run code of users.
    """
    results = _results()
    return KeptGraphs(len(results), sum(result.numel() == 1 for result in results))


def _tensors() -> list[torch.Tensor]:
    return [item for item in gc.get_objects() if type(item) is torch.Tensor]


def _results() -> list[torch.Tensor]:
    return [tensor for tensor in _tensors() if tensor.grad_fn is not None]


class BatchesOverSteps:
    """Counts which batches a loop still holds, by weak references to the storages of some batches.

    Storages count rather than tensors, since a view keeps the storage, too.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, list[weakref.ref[Any]]]] = deque(maxlen=_MOST_BATCHES)

    def look(self, batch: Any, tick: int) -> None:
        """Remember the storages of a batch that the loop gets in this tick."""
        storages = [weakref.ref(tensor.untyped_storage()) for tensor in tensors_of(batch) if _has_memory(tensor)]
        if storages:
            self._seen.append((tick, storages))

    def count(self, tick: int) -> tuple[int, int]:
        """Return how many of the batches of earlier steps still exist, and how many of these were remembered."""
        old = [storages for begun, storages in list(self._seen) if begun <= tick - _STEPS_OVER]
        return sum(any(ref() is not None for ref in storages) for storages in old), len(old)


def _has_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 0


class GraphsOverSteps:
    """Finds the results that outlast their step: a loop may hold those of its last step, but no older ones.

    The monitor's thread calls `get`. The loop's thread, which knows where a step ends, then counts in three ticks, once
    in a run.
    """

    def __init__(self) -> None:
        self._requested = False
        self._ticks = 0
        self._before: list[weakref.ref[torch.Tensor]] = []
        self._new: list[weakref.ref[torch.Tensor]] = []
        self._found: KeptGraphs | None = None
        self._steps = 0
        self.batches = BatchesOverSteps()

    def look(self, batch: Any) -> None:
        """Remember a batch that the loop gets now."""
        self.batches.look(batch, self._steps)

    def get(self, ended: bool = False) -> KeptGraphs | None:
        """Request the counts and return them; None: some further steps are needed.

        Args:
            ended: whether no step will follow, so that only the present can be counted.
        """
        self._requested = True
        if self._found is None and ended:
            self._found = kept_graphs()
        if self._found is None:
            return None
        existing, seen = self.batches.count(self._steps)
        return replace(self._found, batches=existing, seen=seen)

    def tick(self) -> None:
        """Count, if requested; called between two steps."""
        self._steps += 1
        if not self._requested or self._found is not None:
            return
        self._ticks += 1
        if self._ticks == 1:
            self._before = [weakref.ref(tensor) for tensor in _tensors()]
        elif self._ticks == 2:
            before = {id(tensor) for ref in self._before if (tensor := ref()) is not None}
            self._new = [weakref.ref(tensor) for tensor in _tensors() if id(tensor) not in before]
        elif self._ticks == 4:
            existing = [tensor for ref in self._new if (tensor := ref()) is not None]
            lasting = sum(tensor.grad_fn is not None for tensor in existing)
            self._found = replace(kept_graphs(), lasting=lasting, others=len(existing) - lasting)
            self._before, self._new = [], []


class ResultsBySteps:
    """Counts results between steps, so that kept results are found however small they are.

    A series has four counts, 64 steps apart; the next series begins at four times the step of the last count. Each
    count visits all objects of the process; a long run has a few dozen. Only the loop's thread calls `tick`.
    """

    def __init__(self) -> None:
        self._ticks = 0
        self._begin = _APART
        self._now: list[tuple[int, int]] = []
        self.counts: tuple[tuple[int, int], ...] = ()
        """(step, results) of the latest complete series; empty before."""

    def tick(self) -> None:
        """Count, if a count is due; called between two steps."""
        self._ticks += 1
        if self._ticks != self._begin + len(self._now) * _APART:
            return
        self._now.append((self._ticks, len(_results())))
        if len(self._now) == LOOKS:
            self.counts, self._now = tuple(self._now), []
            self._begin = _LATER * self._ticks
