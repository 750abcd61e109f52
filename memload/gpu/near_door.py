"""The second door of a dataset on a device: batches for whoever asks the dataset itself, gathered where rows lie."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.engine.door import Door
from memload.engine.source import Source
from memload.gpu.near_batches import batch_maker
from memload.stats import LoaderStats


class NearDoor(Door):
    """Gathers batches of a source on its device; otherwise as `Door`, whose arguments it takes."""

    def __init__(self, source: Source, *, tensors: bool = False, tag: str | None = None) -> None:
        super().__init__(source, tensors=tensors, tag=tag)
        self._make = batch_maker(source)
        self._counted = LoaderStats()
        self._turn = threading.Lock()

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return the batch of these rows, as default_collate would shape it."""
        begun = time.perf_counter()
        batch = self._make(rows)
        nbytes = len(rows) * sum(field.row_bytes for field in self.source.fields.values())
        with self._turn:
            self._counted += LoaderStats(
                batches=1,
                rows=len(rows),
                bytes_in=nbytes,
                bytes_out=nbytes,
                wall_seconds=time.perf_counter() - begun,
            )
        return batch

    def stats(self) -> LoaderStats:
        """Return the counters of all batches that were gathered here."""
        return sum((door.stats() for door in self._casting.values()), self._counted)
