"""Gathers batches of rows on their device: those of a pass when the loop asks for them, and those of a dataset.

plan of row indices -> numbers, to the device -> gather (+ cast) there -> batch
sampling/row_plan.py   frames.py                 resident.py                  the loop

Rows that cross a bus are gathered one batch ahead, in the stream `work`.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.device.destinations import ToDevice
from memload.device.devices import Target, raise_device_error
from memload.device.placing import Placer
from memload.device.resident import ResidentField, batch_maker, resident_device
from memload.engine.batch_fetcher import BatchFetcher
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.gatherer import BatchResult, Gatherer, capture
from memload.engine.mutation_guards import MutationGuard
from memload.engine.on_cpu import ON_CPU
from memload.engine.request import Destination, PassRequest
from memload.engine.settings import BatchSizes
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import transformed_here, with_calls_here
from memload.kept_errors import without_frames
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
        target: the device that gathers a batch ahead of the loop; None: batches are gathered in the loop's stream.
    """

    source: GatherSpec
    sizes: BatchSizes
    drop_last: bool
    destination: Destination = ON_CPU
    transform: Callable[..., Any] | None = None
    depth: int = _DEPTH
    target: Target | None = None

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
        sizes, target = BatchSizes.of(request.batches, source), _gathers_ahead(request.destination, source)
        return cls(source, sizes, drop_last, destination, request.transform, target=target)

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
        if self.target is None:
            return ResidentBatches(self)
        return GatheredAhead(self, Placer(self.target.open()))


def _gathers_ahead(destination: Destination, source: GatherSpec) -> Target | None:
    """Return the device that gathers ahead of the loop; None: rows do not cross a bus, or there is no device."""
    if not any(isinstance(field, ResidentField) and field.column.is_far for field in source.fields.values()):
        return None
    if isinstance(destination, ToDevice):
        return destination.target
    device = resident_device(source.fields)
    return Target(device) if device is not None and device.type == "cuda" else None


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


class Made(NamedTuple):
    """A batch that was gathered, before the user's functions.

    Attributes:
        batch: the batch on its device.
        rows: its row numbers.
        stats: the counters of its gather.
    """

    batch: Any
    rows: NDArray[np.int64]
    stats: LoaderStats


class ResidentBatches(Gatherer):
    """Gathers each batch on the device of its rows when the loop asks for it; a `Gatherer`.

    Out of the device's own memory, a kernel gathers a batch faster than any loop uses it, and the loop's own work is
    queued behind it on the device. So nothing is gathered ahead, and only one batch takes memory.
    """

    def __init__(self, settings: ResidentSettings) -> None:
        self.rows, self.depth = settings.source.rows, settings.depth
        self._plan = _core.PlanQueue(settings.sizes.batch_rows, settings.drop_last)
        self._make = batch_maker(settings.source)
        self._row_bytes = sum(field.row_bytes for field in settings.source.fields.values())
        self._device = resident_device(settings.source.fields) or torch.device("cpu")
        self._collate, self._transform = settings.source.collate, settings.transform
        self._stats = LoaderStats()
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
        self._stats += made.stats
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
            batch = self._make(rows, self._seed)
        except RuntimeError as error:
            raise_device_error(error, "gathering a batch", self._device)
        return Made(batch, rows, self._counted(len(rows), batch, time.perf_counter() - begun))

    def _counted(self, rows: int, batch: Any, seconds: float) -> LoaderStats:
        read, written = rows * self._row_bytes, sum(tensor.nbytes for tensor in tensors_of(batch))
        return LoaderStats(batches=1, rows=rows, bytes_in=read, bytes_out=written, consumer_wait_seconds=seconds)

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
        return with_calls_here(self._stats, self._called)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:  # noqa: ARG002 - there is nothing to keep
        """Drop the plan."""
        self._plan = _core.PlanQueue(1, drop_last=False)


class GatheredAhead(ResidentBatches):
    """Gathers the next batch while the loop works on one; a `Gatherer`.

    A kernel that reads across a bus takes as long as the bus does. In the loop's own stream, the loop's kernels would
    wait for it; here it runs beside them. The loop's stream waits for the batch that it gets, and for no other.

    Args:
        settings: the settings of the pass.
        placer: launches in the stream `work`, and hands batches over to the loop's stream.
    """

    def __init__(self, settings: ResidentSettings, placer: Placer) -> None:
        super().__init__(settings)
        self._placer = placer
        self._make = functools.partial(placer.launch, self._make)
        self._ahead: deque[Made | BatchResult] = deque()

    def _next_made(self) -> Made | None:
        with self._placer.in_words():
            self._placer.pace()
        found = self._ahead.popleft() if self._ahead else super()._next_made()
        if isinstance(found, BatchResult):
            found.result()  # raises the error of this batch
        if not isinstance(found, Made):
            return None
        with self._placer.in_words():
            batch = self._placer.hand_over(found.batch)
        if self._plan.ready:
            self._ahead.append(self._prepared())
        return found._replace(batch=batch)

    def _prepared(self) -> Made | BatchResult:
        """Return the next batch, or the error that its `next` has to raise."""
        try:
            made = super()._next_made()
            assert made is not None
            return made
        except Exception as error:
            return BatchResult(error=without_frames(error), may_stop=True)

    def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self._placer.call(fn, *args)

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Drop the plan, and the batch that was gathered ahead."""
        self._ahead.clear()
        super().close(keep_slots, at_once)


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
