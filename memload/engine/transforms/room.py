"""Whether memory can hold what functions make of batches: the first that is made tells how large they are.

Nobody knows that before a function was called. So while one thread makes the first batch of a pass of large ones, no
other begins; then as many may be made ahead of the loop as memory holds, and if that is none, the pass ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memload.memory.budget import memory_to_take, process_is_limited
from memload.memory.guards import MARGIN, check_memory
from memload.nested import leaves
from memload.sizes import counted, format_size

FIRST_ALONE = 16 << 20
"""Bytes of a gathered batch, from which on the first is made alone."""
_ASKED = 256 << 20  # bytes of all batches from which on it is asked what is free, which takes a part of a millisecond


def storages(batch: Any) -> dict[int, int]:
    """Return the bytes of each memory on the CPU that the arrays of a batch lie on, by its place."""
    found: dict[int, int] = {}
    for leaf in leaves(batch):
        if isinstance(leaf, np.ndarray):
            found[leaf.ctypes.data] = leaf.nbytes
        elif isinstance(leaf, torch.Tensor):
            tensor = leaf.values() if leaf.layout is torch.jagged else leaf
            if tensor.device.type == "cpu" and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return found


def new_bytes(batch: Any, before: dict[int, int]) -> int:
    """Return the bytes of a batch that lie on no memory of those before."""
    return sum(nbytes for place, nbytes in storages(batch).items() if place not in before)


@dataclass
class Room:
    """How many batches of one pass may be made ahead of its loop.

    Args:
        depth: how many are made ahead where memory is ample.
        threads: that make them, each with memory of a batch's size beside the one that it makes.
    """

    depth: int
    threads: int
    ahead: int | None = None
    """At most so many, as soon as one is made: 0 where memory had no room for a second while nobody had the first."""
    to_say: str = ""
    """A warning for the loop; empty if there is none."""
    made: int = 0
    gathered: int = 0

    def find(self, batch: Any, gathered: dict[int, int]) -> None:
        """Find it out from the first batch, and the memory that it was gathered into."""
        self.made, self.gathered = new_bytes(batch, gathered), sum(gathered.values())
        ample = self.made * (self.depth + 1) < _ASKED and not process_is_limited()
        self.ahead = self.depth if ample else self._that_fit()

    @property
    def is_scarce(self) -> bool:
        """Whether memory has no room for as many as were asked for."""
        return self.ahead is not None and self.ahead < self.depth

    def check(self) -> None:
        """Once the loop has the first batch, let a second be made.

        Raises:
            MemorySpaceError: there is no room for it.
        """
        check_memory(
            self.made,
            "a second batch of what your functions make, beside that of the loop,",
            "give a smaller batch_size=, or functions that make less; memload.plan says beforehand what fits",
        )
        self.ahead = max(1, self._that_fit())

    def _that_fit(self) -> int:
        later = self.depth * self.gathered  # as much may yet be gathered
        most = later + (self.depth + min(self.depth, self.threads)) * self.made
        free = memory_to_take(most / (1 - MARGIN)).free * (1 - MARGIN)
        left = free - later
        fits = (n for n in range(self.depth, 1, -1) if (n + min(n, self.threads)) * self.made <= left)
        found = next(fits, 1 if self.made <= free else 0)
        if 0 < found < self.depth:
            self.to_say = (
                f"memory has no room for {counted(self.depth, 'batch', 'batches')} ahead of the loop: each takes "
                f"{format_size(self.made)} as your functions make it, and about as much while they work. At most "
                f"{found} will be made ahead; a "
                "smaller batch_size= takes less, and memload.plan says beforehand what fits"
            )
        return found
