"""Gathers single batches of a dataset on the device of its rows, for loaders that are not memload's."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.device.batch_maker import BatchMaker
from memload.engine.batch_fetcher import BatchFetcher
from memload.engine.gather_spec import GatherSpec
from memload.stats import LoaderStats


class ResidentFetcher(BatchFetcher):
    """A `BatchFetcher`, with the same arguments, that gathers batches on the device of the rows."""

    def __init__(self, source: GatherSpec, *, tensors: bool = False, tag: str | None = None) -> None:
        super().__init__(source, tensors=tensors, tag=tag)
        self._make = BatchMaker(source)
        self._counted = LoaderStats()
        self._lock = threading.Lock()

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return the batch of these rows, as default_collate would shape it."""
        begun = time.perf_counter()
        batch = self._make(rows)
        nbytes = len(rows) * sum(field.row_bytes for field in self.source.fields.values())
        with self._lock:
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
        return sum((fetcher.stats() for fetcher in self._casting.values()), self._counted)
