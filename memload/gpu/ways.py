"""How batches of rows in pinned memory get to their GPU: gathered by it, or through the loader's ring. Measured.

the GPU gathers    its kernels read rows across the bus; the CPU does nothing
the ring           native threads gather into pinned slots, the copy engine copies; the bus is better used
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_WARM, _TIMED = 2, 6
TRIED = _WARM + _TIMED
"""Batches of a trial."""

_BUSY = 0.8  # of the CPUs that a process may use: above, they are what limits
_MOST_SLOWER = 1.5


@dataclass(frozen=True)
class Way:
    """What was chosen, and why.

    Attributes:
        gathers: the device gathers by itself.
        reason: a clause with the figures that decided.
    """

    gathers: bool
    reason: str


@dataclass(frozen=True)
class Pace:
    """What was measured of one way: seconds of a batch, and CPUs that were busy meanwhile."""

    seconds: float
    cpus: float


def paced(begin: Callable[[], Callable[[], object]], finish: Callable[[], None]) -> Pace:
    """Measure a few batches.

    Args:
        begin: returns what gives the next batch.
        finish: waits until the device has done what it was given.
    """
    advance = begin()
    for _ in range(_WARM):
        advance()
    finish()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(_TIMED):
        advance()
    finish()
    seconds = max(time.perf_counter() - wall, 1e-9)
    return Pace(seconds / _TIMED, (time.process_time() - cpu) / seconds)


def choose(gathered: Pace, ring: Pace, cpus: int) -> Way:
    """Return the faster way; the device's own, too, where the ring keeps the CPUs busy and is little faster.

    Example:
        >>> choose(Pace(0.002, 0.1), Pace(0.001, 3.9), cpus=4).gathers
        False
        >>> choose(Pace(0.0014, 0.1), Pace(0.001, 3.9), cpus=4).reason
        'the GPU gathers them itself: 1.4 ms a batch; the ring takes 1 ms and 3.9 of 4 CPUs'
    """
    figures = f"{gathered.seconds * 1e3:.3g} ms a batch"
    others = f"{ring.seconds * 1e3:.3g} ms and {ring.cpus:.2g} of {cpus} CPUs"
    busy = ring.cpus > _BUSY * cpus and gathered.seconds <= _MOST_SLOWER * ring.seconds
    if gathered.seconds <= ring.seconds or busy:
        return Way(True, f"the GPU gathers them itself: {figures}; the ring takes {others}")
    return Way(False, f"they go through the ring: {others} a batch; gathered by the GPU itself they take {figures}")
