"""Gathers batches of rows on their device: those of a pass when the loop asks for them, and those of a dataset.

plan of row indices -> numbers, to the device -> gather (+ cast) there -> batch
sampling/row_plan.py   frames.py                 resident.py                  the loop
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.device.devices import raise_device_error
from memload.device.resident import batch_maker, resident_device
from memload.engine.batch_fetcher import BatchFetcher
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.gatherer import BatchResult, Gatherer, capture
from memload.engine.mutation_guards import MutationGuard
from memload.engine.on_cpu import ON_CPU
from memload.engine.request import Destination, PassRequest
from memload.engine.settings import BatchSizes
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import transformed_here
from memload.nested import tensors_of
from memload.sampling.draws import Indices
from memload.stats import LoaderStats

_DEPTH = 2  # batches of row numbers that are planned ahead; nothing is gathered ahead


def is_resident(source: GatherSpec) -> bool:
    """Return whether a source's rows are on a device, or in memory that a device gathers from.

    Raises:
        ValueError: some of its fields are there, and others elsewhere.
    """
    return resident_device(source.fields) is not None


@dataclass(frozen=True)
class ResidentSettings:
    """The settings of a pass over rows on a device.

    Attributes:
        source: the gather specification of the dataset.
        sizes: the sizes of its batches.
        drop_last: whether an incomplete last batch is left out.
        destination: the destination of batches.
        transform: the last function of a batch; None: no function.
        depth: batches of row numbers planned ahead.
    """

    source: GatherSpec
    sizes: BatchSizes
    drop_last: bool
    destination: Destination = ON_CPU
    transform: Callable[..., Any] | None = None
    depth: int = _DEPTH

    around: ClassVar[None] = None
    """No layers are around the gatherer."""
    guards: ClassVar[Sequence[MutationGuard]] = ()
    """No writes to device memory are detected."""

    @classmethod
    def of(cls, request: PassRequest, source: GatherSpec) -> ResidentSettings:
        """Return the settings for a request.

        Raises:
            ValueError: the loader's batches are to be on another device, or the dataset maps samples by functions,
                which run on the CPU.
        """
        _check_destination(request.destination, source)
        if source.maps:
            raise ValueError(
                "ds.map(fn) calls a function for each sample on the CPU, and these rows are on "
                f"{resident_device(source.fields)}: give batch_transform=, whose function gets whole batches there"
            )
        drop_last = bool(getattr(request.batches, "drop_last", False))
        destination = ON_CPU if request.destination.transforms else request.destination  # batches are there already
        return cls(source, BatchSizes.of(request.batches, source), drop_last, destination, request.transform)

    @property
    def slot_rows(self) -> int:
        """Rows of the largest batch, as far as it is known beforehand."""
        return self.sizes.slot_rows

    @property
    def ring_bytes(self) -> int:
        """The bytes of RAM of a pass: the row numbers planned ahead."""
        return (self.depth + 1) * self.slot_rows * 8

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch, as far as it is known beforehand, as the loop gets it."""
        return self.slot_rows * sum(_made_bytes(self.source, key) for key in self.source.fields)

    def gatherer(self, kept: object) -> ResidentBatches:  # noqa: ARG002 - there are no slots
        """Return the gatherer of one pass."""
        return ResidentBatches(self)


def _made_bytes(source: GatherSpec, key: Key) -> int:
    """Bytes of a row of a field after its casts."""
    field, cast = source.fields[key], (source.late_casts or {}).get(key) or source.casts.get(key)
    return field.row_bytes if cast is None else math.prod(cast.row_shape(field.shape)) * cast.dtype.itemsize


def _check_destination(destination: Destination, source: GatherSpec) -> None:
    there, wanted = resident_device(source.fields), destination.device
    if wanted is not None and there is not None and wanted not in (there, torch.device(there.type)):
        raise ValueError(
            f"device={str(wanted)!r}, but the rows are on {there}: leave device= out, or load the dataset to {wanted} "
            "by memload.to_device"
        )


class ResidentBatches(Gatherer):
    """Gathers each batch on the device of its rows when the loop asks for it; a `Gatherer`.

    A kernel gathers a batch faster than any loop uses it, and the loop's own work is queued behind it on the device. So
    nothing is gathered ahead, and only one batch takes memory.
    """

    def __init__(self, settings: ResidentSettings) -> None:
        self.rows, self.depth = settings.source.rows, settings.depth
        self._plan = _core.PlanQueue(settings.sizes.batch_rows, settings.drop_last)
        self._make = batch_maker(settings.source)
        self._row_bytes = sum(field.row_bytes for field in settings.source.fields.values())
        self._device = resident_device(settings.source.fields) or torch.device("cpu")
        self._collate, self._transform = settings.source.collate, settings.transform
        self._stats = LoaderStats()

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
        if not self._plan.ready:
            return None
        rows = self._plan.take()
        begun = time.perf_counter()
        try:
            batch = self._make(rows, self._seed)
        except RuntimeError as error:
            raise_device_error(error, "gathering a batch", self._device)
        self._count(len(rows), batch, time.perf_counter() - begun)
        return capture(self._finished, batch, rows) if self._collate or self._transform else batch

    def _count(self, rows: int, batch: Any, seconds: float) -> None:
        read, written = rows * self._row_bytes, sum(tensor.nbytes for tensor in tensors_of(batch))
        self._stats += LoaderStats(
            batches=1, rows=rows, bytes_in=read, bytes_out=written, consumer_wait_seconds=seconds
        )

    def _finished(self, batch: Any, rows: Indices) -> BatchResult:
        """Return the result of the user's functions for a batch."""
        begun = time.perf_counter()
        try:
            if self._collate is not None:
                batch = self._collate(batch)
            if self._transform is not None and not isinstance(batch, BatchResult):
                batch = transformed_here(self._transform, batch, self._seed, rows)
            return batch if isinstance(batch, BatchResult) else BatchResult(batch)
        finally:
            self._stats += LoaderStats(transform_seconds=time.perf_counter() - begun)

    def check_files(self) -> None:
        """Do nothing: rows come from memory of the device."""

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        return self._stats

    def close(self, keep_slots: bool, at_once: bool = False) -> None:  # noqa: ARG002 - there is nothing to keep
        """Drop the plan."""
        self._plan = _core.PlanQueue(1, drop_last=False)


class ResidentFetcher(BatchFetcher):
    """A `BatchFetcher`, with the same arguments, that gathers batches on the device of the rows."""

    def __init__(self, source: GatherSpec, *, tensors: bool = False, tag: str | None = None) -> None:
        super().__init__(source, tensors=tensors, tag=tag)
        self._make = batch_maker(source)
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
