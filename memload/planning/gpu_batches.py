"""The lines of batches on a GPU, of which `memload.plan` and `memload.fit` make their accounts."""

from __future__ import annotations

from memload.device.copied_rows import batches_ahead
from memload.planning.account import Line


def loop_batches(nbytes: int) -> tuple[Line, ...]:
    """Return the line of batches of so many bytes that the loop itself copies to the GPU."""
    return (Line("batches", 2 * nbytes, "the one in use, and the next that the loop copies"),)


def far_batches(nbytes: int, stored: int) -> Line:
    """Return the line of batches that the GPU gathers from memory beyond its own.

    Args:
        nbytes: the bytes of a batch.
        stored: the bytes of its rows as they are stored.
    """
    note = "two that the GPU works on, the one in use, and the next, before and after its cast"
    return Line("batches", 4 * nbytes + stored, note)


def arriving_rows(stored: int) -> Line:
    """Return the line of the memory to which the copy engine brings rows out of pinned RAM: a buffer for each batch."""
    buffers = batches_ahead(stored)
    return Line("arriving rows", buffers * stored, f"{buffers} buffers, while the copy engine is tried or used")
