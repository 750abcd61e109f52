"""What a plan predicted beside what a pass took: private memory of all processes at its peak, shared memory once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from memload.commands.measure import peak_memory, private_bytes
from memload.planning.result import Plan
from memload.sizes import format_size

_PAUSE = 0.01  # seconds that the loop computes on a batch
_LONG_EVERY = 6  # batches, one of which it keeps until all that is made ahead of it is there
_LOOK, _LONGEST = 0.15, 5.0  # seconds between two looks at whether memory still grows, and in all


@dataclass(frozen=True)
class Prediction:
    """One pass, in bytes.

    Attributes:
        predicted: of RAM, what the process had before included.
        measured: the peak.
        start: what the process had before.
        batches: that were loaded.
    """

    predicted: int
    measured: int
    start: int
    batches: int

    @property
    def error(self) -> float:
        """How far the prediction is off: above 0, it says too much."""
        return self.predicted / self.measured - 1

    @property
    def own_error(self) -> float:
        """The same of the memory that the pass itself took, what the process had before left out."""
        return (self.predicted - self.start) / max(1, self.measured - self.start) - 1

    def __str__(self) -> str:
        return (
            f"RAM over {self.batches} batches: predicted {format_size(self.predicted)}, measured "
            f"{format_size(self.measured)} ({self.error:+.1%})"
        )


def measured(plan: Plan, loader: Callable[[], Iterable[Any]], batches: int | None = None) -> Prediction:
    """Run one pass of at most so many batches, and return its peak beside what was predicted.

    Args:
        plan: of this pass, made in this process before it.
        loader: opens the data and makes the loader; what that takes counts.
        batches: how many; None: all.
    """
    count = 0
    start = private_bytes()
    with peak_memory() as peak:
        for _ in islice(loader(), batches):  # holds a batch while it asks for the next, as loops do
            count += 1
            time.sleep(_PAUSE)
            if count % _LONG_EVERY == 0:
                _wait_while_memory_grows()
        return Prediction(plan.ram.predicted, start + peak(), start, count)


def _wait_while_memory_grows() -> None:
    until, before, now = time.monotonic() + _LONGEST, 0, private_bytes()
    while now > before and time.monotonic() < until:
        time.sleep(_LOOK)
        before, now = now, private_bytes()
