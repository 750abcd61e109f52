"""What glibc's heap takes in steps with whole batches of graphs, which a plan makes where a run would.

    the loader's first batches and its largest -> series of steps -> the process's memory -> times what is alive

Small batches do not tell: steps of 256 graphs took 1.7 times (GAT) and 2.3 times (GCN) what was alive, and those of a
GAT with 48 MB alive 1.2 times. The batches of the steps are outside of the heap, as those of a run are, which lie in
the slots of its loader: with batches in the heap, eight steps of a GCN took 2.0 to 3.3 times, without 1.8 to 2.6 times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from memload.planning.allocations import HEAP, nbytes_of
from memload.planning.curves import Each
from memload.planning.heap import Surplus, free_to_take
from memload.planning.heap_surplus import LEAST, growths, if_there_is_room, times_of
from memload.planning.measuring import SHARE
from memload.planning.model_bytes import trained_parameters
from memload.progress import bar

SERIES, STEPS = 2, 10
"""Series, and the steps of each. The step before a series leaves holes in the heap, so that series take more than runs
in a fresh process; the lesser of two is the nearer. Of a GAT, six first series took 355 to 437 MB, the second ones 378
to 478 MB, and runs 356 to 418 MB; of a GATv2 the lesser of two took 650 to 777 MB, the greater 684 to 916 MB, and runs
605 to 806 MB."""

SECONDS = 120.0
"""Steps that would take longer in all are given up, the second at the earliest: a first one may compile."""


class _TooSlowError(Exception):
    """The steps would take longer than `SECONDS`."""


def surplus_of(
    step: Each,
    bound: Surplus,
    each_bytes: int,
    batches: Callable[[], Sequence[Any]],
    loss: Callable[[Any], Any],
    models: Sequence[torch.nn.Module],
    *,
    accumulating: bool,
    renews: bool = False,
) -> Surplus:
    """Return how many times bytes in the heap count, as steps take it here; `bound` where they cannot be made.

    Args:
        step: the allocations of the step with the largest batch.
        bound: counts where too little is in the heap to tell, or memory for these steps is not free.
        each_bytes: the bytes of the largest batch.
        batches: reads batches of the loader, the largest last, outside of the heap.
        loss: a function of a batch that returns the loss.
        models: all models of a step, which are afterwards as before.
        accumulating: whether gradients exist before the step.
        renews: whether each step needs a copy of its batch, which is in the heap, since it changes it in place.
    """
    alive, twice, most = (int(step.peak(np.ones(1), times)) for times in (1.0, HEAP, bound.times))
    gradients = nbytes_of(trained_parameters(models)) if accumulating else 0  # there in all steps, not among `step`'s
    if twice - alive < LEAST or most + gradients + STEPS * each_bytes > SHARE * free_to_take():
        return bound

    def seen() -> list[int]:
        given, made = batches(), (SERIES, STEPS)
        with bar("steps that show what the heap takes", SERIES * STEPS, None, unit=" steps") as shown:
            told = _within_time(lambda: shown.update(1))
            return growths(given, [loss], models, told, made, renews=renews, accumulating=accumulating)

    try:
        found = if_there_is_room(seen)
    except _TooSlowError as slow:
        return replace(bound, why=str(slow))
    return bound if not found else Surplus(times_of(min(found), alive, twice), SERIES * STEPS)


def _within_time(told: Callable[[], object]) -> Callable[[], None]:
    """Return a function that is told of each step, as `told` is, and ends steps that would take longer than `SECONDS`.

    Raises:
        _TooSlowError: they would.
    """
    begin, done, made = time.monotonic(), 0, SERIES * STEPS

    def step() -> None:
        nonlocal done
        done += 1
        told()
        if done > 1 and (time.monotonic() - begin) / done * made > SECONDS:
            raise _TooSlowError(
                f"{made} steps that show what it keeps would take longer than {SECONDS:.0f} seconds here."
            )

    return step
