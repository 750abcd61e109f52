"""Measures how much more glibc's heap takes than what is alive in it, by steps of the model at hand.

    a small batch -> steps without pause -> the process's memory every millisecond -> its greatest growth

The surplus is holes between tensors that are alive. The hole of a freed tensor takes no tensor of its own size again:
torch asks for memory by ``posix_memalign`` with 64 bytes, for which glibc takes a piece 96 bytes larger and cuts off
its ends, and these short ends stay in the cache of the thread (tcache), where they join no neighbour. So a hole waits
until a neighbour is freed, too. Allocations that were recorded from a ViT and an MLP and made again took 1.41 and 1.56
times what was alive; as plain ``malloc``, 1.09 and 1.06 times. Those of a CNN took 1.43 times both ways. If all tensors
have one size, and neighbouring holes join, a hole lies between two tensors, and the heap has at most twice what is
alive: `HEAP`. Where small objects keep the ends, holes do not join either. So it is where a step makes and frees many
tensors of one size while few are alive: a frozen teacher's pass, with two tensors alive at a time, took 2.9 to 4.2
times these, a VAE 2.1 to 2.9 times, distances of all pairs in a loss 2.2 to 3.4 times; a CNN took up to 2.1 times.
It is as if about `HOLES` of one size found no use, and depends on a model's order of allocations. It hardly depends on
the batch while all tensors are small (1.77 and 1.65 times with 25 and 50 rows of a U-Net, 1.19 and 1.20 with 48 and
128 graphs of a GAT) nor on the number of steps (`LONGER`). It falls with the batch where a step has thousands of small
tensors, as that of a GRU: it is measured with larger ones there (`ALIVE_FINE`).

Steps run as in a loop. A dispatch mode that looks at each operation would keep tensors longer and put its own objects
between them: ten steps of an LSTM with 44 MB alive took 61 to 80 MB under one, and 54 MB without. Where the heap has
batches, too, each step has a new one, with which the LSTM took 63 MB.

Sources: ``_int_memalign`` and ``_int_free`` in glibc 2.36's malloc/malloc.c;
https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html, ``glibc.malloc.tcache_count``.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from memload.errors import ThreadLimitError
from memload.memory.budget import process_bytes
from memload.memory.c_heap import trim_heap
from memload.memory.threads import started
from memload.planning.allocations import HEAP, Told, is_out_of_memory
from memload.planning.batch_parts import parts_of_kind
from memload.planning.curves import Curve
from memload.planning.heap import ALIVE, bound_of_curve, heap_bound
from memload.planning.model_bytes import checked_loss, gradients_set_aside
from memload.planning.steps import LossOf, left_as_they_were
from memload.planning.variants import Kind, PlainBatches, changed_in_place, converted, with_own_attributes

ALIVE_FINE = 384 << 20
"""The same where most blocks are fine (`Curve.is_fine`), and there is room for more than twice `ALIVE`. The surplus of
such steps falls with the batch, so small ones do not tell: ten of a GRU took 1.7, 1.6, 1.6, 1.6 and 1.2 times what was
alive, with 21, 42, 84, 168 and 336 MB of it. Coarse blocks have no such fall: a ViT with 180 MB alive took 1.67 times
that, and 1.95 times with 420 MB. With less room, larger steps tell little more: at 0.5 GB, 84 MB instead of 42 MB
gave five runs of the GRU 0.85 to 0.96 of their limit with a loader, instead of 0.82 to 0.85, and no more without."""
LEAST = 8 << 20
"""Bytes alive, and in the heap, below which the rest of the process would decide what is measured."""
STEPS, SERIES = 10, 4
"""Steps in a row with `ALIVE` bytes, and how often they are made anew. Series of one model differ: an MLP took 1.4 to
1.8 times, a CNN 1.75 to 2.12 times what was alive, each in four processes. With the greatest of two, one of nine runs
of the CNN was killed at its limit of 500 MB."""
LONGER = 1.15
"""How many times as much longer runs take: 200 or 400 steps took 1.02, 1.05, 1.10 and 1.14 times what 20 did. With 1.1,
two of nine runs of an MLP were killed at their limit of 500 MB, and others took up to 1.06 times what was stated."""
LONGER_FINE, LONGER_DRAWN = 1.1, 1.0
"""The same where most blocks are fine: larger batches have less surplus than the steps that were made. With 1.15, a GRU
used 0.81 to 0.86 of its limits in 20 steps, and up to 0.89 in 200. Where the heap has the batches, too, series take as
much as long runs do: with 1.1, a GRU used 0.79 to 0.88 of 500 MB in 400 steps, and with none at most 0.92."""
FEWER, MADE = 2, 3 << 30
"""The series of steps with more than twice `ALIVE`, and the sum of the bytes alive in all of them: 1.6 times that of
the others. Of a GRU, two series of four steps took at most 1.18 times what was alive, series of ten 1.18 to 1.23."""
T = TypeVar("T")

_EVERY = 0.001  # seconds between two readings of the process's memory
_ROWS = (2, 3, *(quarters << power for power in range(18) for quarters in (4, 5, 6, 7)))
_BOUNDS = (1.1, 5.0)
_MOST_TAKEN, _MOST_TAKEN_FINE = 4.0, 2.5  # times what is alive: 4.2 were seen, and 1.7 where most blocks are fine


def heap_times(
    kind: Kind,
    losses: Sequence[LossOf],
    models: Sequence[torch.nn.Module],
    teachers: Sequence[torch.nn.Module],
    step: Curve,
    inputs: Curve,
    *,
    room: int,
    batches_in_heap: bool = False,
    told: Told | None = None,
) -> float:
    """Return how many times bytes in the heap count for `Curve.in_heap`, so that it gives what steps take here.

    Models are afterwards as before. Where steps of a suitable size cannot be made, it is that of `bound_of_curve`.

    Args:
        kind: makes the batches.
        losses, models, teachers: the parts of a step.
        step: the bytes of a step, by the counts of its batch; with `batches_in_heap`, the batch is among them.
        inputs: the bytes of the batch itself.
        room: the bytes that the steps may take.
        batches_in_heap: whether the loop's batches are in the heap, rather than in a loader's slots.
        told: is called after each step.
    """

    def together(*counts: Any) -> int:
        return int(step.at(*counts) + inputs.at(*counts))

    def seen() -> float | None:
        batches = _batches(kind, together, min(ALIVE, int(room / _MOST_TAKEN)))
        fine = any(step.is_fine(*counts) for counts, _ in batches)
        most = int(room / _MOST_TAKEN_FINE)
        if fine and most > 2 * ALIVE:
            batches = _batches(kind, together, min(ALIVE_FINE, most))
        alive, bound = (max((step.in_heap(times, *counts) for counts, _ in batches), default=0) for times in (1, HEAP))
        if bound - alive < LEAST:
            return None
        made = series_of(max(together(*counts) for counts, _ in batches))
        given = [batch for _, batch in batches]
        taken = max(
            growths(given, losses, [*models, *teachers], told, made, renews=batches_in_heap, warms_up=True), default=0
        )
        of_fine = LONGER_DRAWN if batches_in_heap else LONGER_FINE
        return times_of((of_fine if fine else LONGER) * taken, alive, bound)

    bound = heap_bound(counts=True, varies=kind.varies)
    return if_there_is_room(seen) or bound_of_curve(step, kind.counts, bound)


def if_there_is_room(make: Callable[[], T]) -> T | None:
    """Return what a function returns; None if it runs out of memory, or the system refuses its thread."""
    try:
        return make()
    except ThreadLimitError:
        return None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def times_of(taken: float, alive: int, bound: int) -> float:
    """Return how many times bytes count where a step takes `taken` bytes, between `alive` at 1 and `bound` at `HEAP`.

    Other threads that take or free memory meanwhile do not make it less than 1.1 or more than 5.
    """
    least, most = _BOUNDS
    return min(most, max(least, 1 + (HEAP - 1) * (taken - alive) / (bound - alive)))


def series_of(alive: int) -> tuple[int, int]:
    """Return how many series of steps with so many bytes alive are made, and the steps of each."""
    if alive <= 2 * ALIVE:
        return SERIES, STEPS
    return FEWER, max(4, min(STEPS, MADE // (FEWER * alive)))


def _batches(kind: Kind, nbytes: Callable[..., int], most: int) -> list[tuple[tuple[int, ...], Any]]:
    """Return batches with their counts, as large as steps that have up to `most` bytes alive; none if none are so.

    Args:
        nbytes: returns those of a batch and its step from its counts.
    """
    if isinstance(kind, PlainBatches):
        rows = max((size for size in _ROWS if nbytes(size) <= most), default=0)
        return [((rows,), kind.resized(rows))] if rows else []
    small = itertools.takewhile(lambda part: nbytes(*part.counts) <= most, parts_of_kind(kind))
    largest = collections.deque(small, maxlen=1)
    return [variant for part in largest for variant in part.variants() if nbytes(*variant[0]) <= most]


def growths(
    batches: Sequence[Any],
    losses: Sequence[LossOf],
    models: Sequence[torch.nn.Module],
    told: Told | None,
    made: tuple[int, int],
    *,
    renews: bool = False,
    warms_up: bool = False,
    accumulating: bool = False,
) -> list[int]:
    """Return the most bytes that this process has, while it makes steps with batches in turn, beyond those before.

    There is one figure for each of several series, which begin with a heap that holds nothing back. What steps left in
    it has gone back to the system afterwards.

    Args:
        batches: the batches.
        losses: the parts of a step.
        models: all models of a step, which are afterwards as before.
        told: is called after each step.
        made: the number of series, and the steps of each.
        renews: whether each step has a new copy of the batch's tensors. The attributes are its own in any case.
        warms_up: whether a step with each batch is made before anything is read, since libraries keep memory for each
            shape that is new to them. If one changes its tensors in place, all have new copies.
        accumulating: whether gradients exist before each step, and are not among these bytes.
    """
    series, steps = made
    parameters = [p for model in models for p in model.parameters()]

    def step(batch: Any) -> None:
        for loss in losses:
            checked_loss(loss(batch)).backward()  # type: ignore[no-untyped-call]
        for p in () if accumulating else parameters:  # as zero_grad does
            p.grad = None
        if told:
            told()

    found = []
    with left_as_they_were(models), gradients_set_aside(parameters, zeros=accumulating), torch.enable_grad():
        if warms_up:
            renews = _changes_batches(step, batches) or renews
        trim_heap()
        for _ in range(series):
            before = process_bytes()
            with _highest() as highest:
                for number in range(steps):
                    given = batches[number % len(batches)]
                    batch = converted(given, torch.Tensor.clone) if renews else with_own_attributes(given)
                    step(batch)
            batch = None
            found.append(highest() - before)
            trim_heap()  # the holes that are left, of up to 70 MB, have no room for the larger tensors of the loop
    return found


def _changes_batches(step: Callable[[Any], None], batches: Sequence[Any]) -> bool:
    """Make a step with a copy of each batch; return whether one changed its tensors in place."""
    found = False
    for given in batches:
        batch = converted(given, torch.Tensor.clone)
        changed = changed_in_place(batch)
        step(batch)
        found = changed() or found
    return found


@contextlib.contextmanager
def _highest() -> Iterator[Callable[[], int]]:
    """Read the memory of this process all the time; yields a function that returns the most that it was.

    Raises:
        ThreadLimitError: the system refuses the thread that reads.
    """
    most = process_bytes()
    stop = threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.wait(_EVERY):
            most = max(most, process_bytes())

    (thread,) = started([threading.Thread(target=watch, name="memload-heap", daemon=True)])
    try:
        yield lambda: most
    finally:
        stop.set()
        thread.join()
