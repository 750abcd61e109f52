"""What the C library's heap keeps of freed tensors from one step of an epoch to the next."""

from __future__ import annotations

import itertools
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memload.memory.budget import local_processes, memory_to_take
from memload.memory.c_heap import trim_heap
from memload.planning.allocations import HEAP, Timeline
from memload.planning.curves import MAPPED, Curve, Each

HEAP_OF_VARYING = 2.5
"""`HEAP` where batches differ in size, so that the holes of one batch are too small or too large for the next: ten
steps of 256 graphs took 2.3 times what was alive at most with a GCN (236 of 101 MB), 1.7 times with a GAT."""

HOLES = 14
"""Holes of one size that find no use, at most, by which few tensors that are alive are more than `HEAP` times as many:
what is cut off their ends stays in the cache of the thread, which has room for 7 pieces of each size. With 2, 7, 8 and
10 tensors alive, series of a distillation, a VAE, a contrastive model and a CNN took up to 4.2, 2.9, 2.5 and 2.4 times
these, or 1.5, 1.9 and 1.5 times with 22, 27 and 25 of transformers and an MLP. Distances of all pairs are beyond: 3.4
times, with 6 alive.

Source: https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html, tcache_count."""

ALIVE = 48 << 20
"""The most bytes that are alive in steps which show what the heap keeps: ten of them take a second or a few."""


@dataclass(frozen=True)
class Surplus:
    """How much more the C library's heap takes than what is alive in it.

    Attributes:
        times: how many times bytes count that it keeps.
        steps: the number of steps that showed this; 0: it is a bound.
        why: a sentence on the steps that were given up; empty if none were.
    """

    times: float
    steps: int = 0
    why: str = ""

    @property
    def is_bound(self) -> bool:
        """Whether it is a bound, rather than what steps took."""
        return self.times > 1 and not self.steps

    @property
    def words(self) -> str:
        """What steps showed; empty without them."""
        return f"{self.times:.1f} times what is alive, as {self.steps} steps took" if self.steps else ""


ONCE = Surplus(1.0)
"""It takes what is alive in it."""


def free_to_take() -> int:
    """Return the bytes that this process may still take, after what its heap and ended passes keep has gone back.

    Steps of training use what the heap keeps, so it is free for them; `HEAP` counts what stays unused.
    """
    trim_heap()
    return memory_to_take().free_for(local_processes())


def heap_keeps_tensors(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the C library's heap keeps freed tensors: glibc's does below 32 MB, unless a threshold is set."""
    return platform.libc_ver()[0] == "glibc" and not heap_threshold(environment)


def heap_threshold(environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes from which on glibc gives freed memory back at once, as the environment sets them; 0 if not.

    glibc takes no threshold above `MAPPED`.
    """
    tunable = re.search(r"glibc\.malloc\.mmap_threshold=(\w+)", environment.get("GLIBC_TUNABLES", ""))
    text = tunable[1] if tunable else environment.get("MALLOC_MMAP_THRESHOLD_", "")
    try:
        threshold = int(text, 0)
    except ValueError:
        return 0
    return threshold if 0 < threshold <= MAPPED else 0


def heap_bound(*, counts: bool, varies: bool = False) -> float:
    """Return how many times bytes count that the heap keeps, where a plan runs no steps; 1 if not `counts`.

    Where training is spread over ranks, they count once, as `memload.planning.planner` says in a note.

    Args:
        counts: whether they count.
        varies: whether batches differ in size, as those of graphs do.
    """
    if not counts or not heap_keeps_tensors():
        return 1.0
    return HEAP_OF_VARYING if varies else HEAP


def bound_of_step(each: Each | None, terms: NDArray[np.float64], bound: float) -> float:
    """Return how many times bytes in the heap count for a step, at least `bound` times: more where few are alive.

    In one step the heap has at most all that is made, and as many holes as `HOLES` beside what is alive.
    """
    alive = np.zeros(0) if each is None else each.alive_in_heap(terms)
    if each is None or not len(alive):
        return bound
    total = float(alive.sum())
    as_many = total * total / float((alive * alive).sum())  # their number, if all had one size; small ones hardly count
    return max(bound, min(each.made_in_heap(terms) / total, 1 + HOLES / as_many))


def bound_of_curve(curve: Curve, counts: Sequence[float], bound: float) -> float:
    """Return the most of `bound_of_step` over batches of `counts`, and four times those, with up to `ALIVE` bytes."""
    sizes = (curve.terms([4**power * count for count in counts]) for power in range(10))
    small = itertools.takewhile(lambda terms: float((curve.lines @ terms).max(initial=0)) <= ALIVE, sizes)
    return max((bound_of_step(curve.each, terms, bound) for terms in small), default=bound)


def peak_on_cpu(step: Timeline, times: float) -> int:
    """Return the most bytes at one time of a step on the CPU, where what the heap keeps counts so many times.

    Where it counts more than once, the result is a bound: larger tensors find no use for what the heap keeps, and it
    counts more where few tensors are alive.
    """
    if times == 1:
        return step.peak_in_heap(heap_threshold())
    each, terms = Each.of_step(step, varies=True), np.ones(1)
    return math.ceil(each.peak(terms, bound_of_step(each, terms, times)))
