"""Gathers the batches of a pass on the device of their rows, when the loop asks for them.

plan of row indices -> numbers, to the device -> gather (+ cast) there -> batch
sampling/row_plan.py   row_numbers.py            batch_maker.py               the loop
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.device.batch_maker import BatchMaker
from memload.device.devices import raise_device_error
from memload.device.resident import resident_device
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.gatherer import BatchResult, Gatherer, capture
from memload.engine.settings import BatchSizes
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import transformed_here, with_calls_here
from memload.sampling.draws import Indices
from memload.stats import LoaderStats

DEPTH = 2
"""Batches of row numbers that are planned ahead where nothing is gathered ahead."""


def made_bytes(source: GatherSpec, key: Key) -> int:
    """Return the bytes of a row of a field after its casts."""
    field, cast = source.fields[key], (source.late_casts or {}).get(key) or source.casts.get(key)
    return field.row_bytes if cast is None else math.prod(cast.row_shape(field.shape)) * cast.dtype.itemsize


class Made(NamedTuple):
    """A batch that was gathered, before the user's functions.

    Attributes:
        batch: the batch on its device.
        rows: its row numbers.
    """

    batch: Any
    rows: NDArray[np.int64]


class ResidentBatches(Gatherer):
    """Gathers each batch on the device of its rows when the loop asks for it; a `Gatherer`.

    Out of the device's own memory, a kernel gathers a batch faster than any loop uses it, and the loop's own work is
    queued behind it on the device. So nothing is gathered ahead, and only one batch takes memory.

    Args:
        source: the gather specification of the dataset.
        sizes: the sizes of its batches.
        drop_last: whether an incomplete last batch is left out.
        transform: the last function of a batch; None: no function.
        depth: batches of row numbers planned ahead.
    """

    def __init__(
        self,
        source: GatherSpec,
        sizes: BatchSizes,
        *,
        drop_last: bool = False,
        transform: Callable[..., Any] | None = None,
        depth: int = DEPTH,
    ) -> None:
        self.rows, self.depth = source.rows, depth
        self._plan = _core.PlanQueue(sizes.batch_rows, drop_last)
        self._maker = BatchMaker(source)
        self._bytes_in = sum(field.row_bytes for field in source.fields.values())  # of each row, as it is stored
        self._bytes_out = sum(made_bytes(source, key) for key in source.fields)  # of each row of a batch
        self._device = resident_device(source.fields) or torch.device("cpu")
        self._collate, self._transform = source.collate, transform
        self._batches = self._gathered = 0
        self._waited = 0.0  # seconds in which batches were gathered
        self._called = 0.0  # seconds that functions took

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass with the seed of its random numbers."""
        self._seed = seed

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._plan.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._plan.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._plan.finish()

    def next(self, timeout: float) -> Any:  # noqa: ARG002 - nothing is waited for
        """Return the next batch, or a `BatchResult`; None at the end."""
        made = self._next_made()
        if made is None:
            return None
        self._batches, self._gathered = self._batches + 1, self._gathered + len(made.rows)
        if self._collate or self._transform:
            return capture(self._finished, made.batch, made.rows)
        return made.batch

    def _next_made(self) -> Made | None:
        """Return the next batch of the plan; None at its end."""
        if not self._plan.ready:
            return None
        rows = self._plan.take()
        begun = time.perf_counter()
        try:
            batch = self._maker(rows, self._seed)
        except RuntimeError as error:
            raise_device_error(error, "gathering a batch", self._device)
        self._waited += time.perf_counter() - begun
        return Made(batch, rows)

    def _finished(self, batch: Any, rows: Indices) -> BatchResult:
        """Return the result of the user's functions for a batch."""
        begun = time.perf_counter()
        try:
            if self._collate is not None:
                batch = self._call(self._collate, batch)
            if self._transform is not None and not isinstance(batch, BatchResult):
                batch = self._call(transformed_here, self._transform, batch, self._seed, rows)
            return batch if isinstance(batch, BatchResult) else BatchResult(batch)
        finally:
            self._called += time.perf_counter() - begun

    def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function of the user's, run in the loop's current stream."""
        return fn(*args)

    def check_files(self) -> None:
        """Do nothing: rows come from memory of the device."""

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        counted = LoaderStats(
            batches=self._batches,
            rows=self._gathered,
            bytes_in=self._gathered * self._bytes_in,
            bytes_out=self._gathered * self._bytes_out,
            consumer_wait_seconds=self._waited,
        )
        return with_calls_here(counted, self._called)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:  # noqa: ARG002 - there is nothing to keep
        """Drop the plan."""
        self._plan = _core.PlanQueue(1, drop_last=False)
