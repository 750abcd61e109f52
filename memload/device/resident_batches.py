"""Gathers the batches of a pass on the device of their rows, when the loop asks for them or ahead of it.

plan of row indices -> numbers, to the device -> gather (+ cast) there -> batch
sampling/row_plan.py   row_numbers.py            batch_maker.py               the loop

Rows that cross a bus are gathered one batch ahead, in the stream `work`; those that the copy engine moves out of pinned
RAM (`split_transfer`) begin to move two batches before.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.device.batch_maker import BatchMaker
from memload.device.copied_rows import AHEAD, ArrivedNumbers, CopiedRows, CopyOptions
from memload.device.destinations import ToDevice
from memload.device.devices import Target, raise_device_error
from memload.device.placing import AHEAD_OF_DEVICE, Placer, plain_members
from memload.device.resident import ResidentField, resident_device
from memload.device.row_numbers import Arrived, HostNumbers, RowNumbers
from memload.device.split_tier import SplitColumn
from memload.device.split_transfer import BegunTransfer, SplitTransfer, TransferPlan
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.gatherer import BatchResult, Gatherer, capture
from memload.engine.mutation_guards import MutationGuard
from memload.engine.on_cpu import ON_CPU
from memload.engine.request import Destination, PassRequest
from memload.engine.settings import BatchSizes, gathering_threads
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import transformed_here, with_calls_here
from memload.kept_errors import without_frames
from memload.sampling.draws import Indices
from memload.stats import LoaderStats

T = TypeVar("T")

_DEPTH = 2  # batches of row numbers that are planned ahead; nothing is gathered ahead


def how_gathered(request: PassRequest, source: GatherSpec) -> str:
    """Return a clause that says how batches of a source on a device are gathered."""
    bound, here = request.destination.bound(source, request), "its rows lie on a device, where batches are gathered"
    ahead = _gathers_ahead(request.destination, bound) is not None
    transfer = _transfer(request, bound, BatchSizes.of(request.batches, bound)) if ahead else None
    return here if transfer is None else f"{here}, and {transfer.choice}"


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
        transfer: how rows come out of pinned RAM; None: the kernel alone can read them, or none lie there.
    """

    source: GatherSpec
    sizes: BatchSizes
    drop_last: bool
    destination: Destination = ON_CPU
    transform: Callable[..., Any] | None = None
    depth: int = _DEPTH
    target: Target | None = None
    transfer: TransferPlan | None = None

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
        transfer = None if target is None else _transfer(request, source, sizes)
        depth = _DEPTH if transfer is None else transfer.most_ahead + 1
        return cls(source, sizes, drop_last, destination, request.transform, depth, target, transfer)

    @property
    def slot_rows(self) -> int:
        """Rows of the largest batch, as far as it is known beforehand."""
        return self.sizes.slot_rows

    @property
    def ring_bytes(self) -> int:
        """The bytes of RAM of a pass: row numbers planned ahead, and pinned slots if the copy engine may be used."""
        slots = 0 if self.transfer is None else self.transfer.ring_bytes
        return slots + (self.depth + 1) * self.slot_rows * 8

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch, as far as it is known beforehand, as the loop gets it."""
        return self.slot_rows * sum(_made_bytes(self.source, key) for key in self.source.fields)

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's memory of batches that are gathered ahead, and of rows that arrive for them.

        One batch is ahead, one is used by the loop, and further ones wait for the device. 0: nothing is gathered ahead.
        """
        arriving = 0 if self.transfer is None else self.transfer.device_bytes
        return 0 if self.target is None else arriving + (2 + AHEAD_OF_DEVICE) * self.batch_bytes

    def gatherer(self, kept: object) -> ResidentBatches:
        """Return the gatherer of one pass, with the slots that an earlier one kept."""
        if self.target is None:
            return ResidentBatches(self)
        return GatheredAhead(self, Placer(self.target.open()), kept.kept if isinstance(kept, GatheredAhead) else None)


def _transfer(request: PassRequest, source: GatherSpec, sizes: BatchSizes) -> TransferPlan | None:
    options = CopyOptions(sizes.slot_rows, gathering_threads(request), request.options.pinned_bytes)
    return TransferPlan.of(source, options, -(-sizes.planned_rows // sizes.batch_rows))


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
        seconds: what its gather took the calling thread.
    """

    batch: Any
    rows: NDArray[np.int64]
    seconds: float


class ResidentBatches(Gatherer):
    """Gathers each batch on the device of its rows when the loop asks for it; a `Gatherer`.

    Out of the device's own memory, a kernel gathers a batch faster than any loop uses it, and the loop's own work is
    queued behind it on the device. So nothing is gathered ahead, and only one batch takes memory.
    """

    def __init__(self, settings: ResidentSettings) -> None:
        self.rows, self.depth = settings.source.rows, settings.depth
        self._plan = _core.PlanQueue(settings.sizes.batch_rows, settings.drop_last)
        self._maker = BatchMaker(settings.source)
        fields = settings.source.fields
        self._bytes_in = sum(field.row_bytes for field in fields.values())  # of each row, as it is stored
        self._bytes_out = sum(_made_bytes(settings.source, key) for key in fields)  # of each row of a batch
        self._device = resident_device(settings.source.fields) or torch.device("cpu")
        self._collate, self._transform = settings.source.collate, settings.transform
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
        self._waited += made.seconds
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
        return Made(batch, rows, time.perf_counter() - begun)

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


class GatheredAhead(ResidentBatches):
    """Gathers the next batch while the loop works on one; a `Gatherer`.

    A kernel that reads across a bus takes as long as the bus does. In the loop's own stream, the loop's kernels would
    wait for it; here it runs beside them. The loop's stream waits for the batch that it gets, and for no other.

    Args:
        settings: the settings of the pass.
        placer: launches in the stream `work`, and hands batches over to the loop's stream.
    """

    def __init__(self, settings: ResidentSettings, placer: Placer, kept: CopiedRows | None = None) -> None:
        super().__init__(settings)
        self._placer = placer
        plan = settings.transfer
        self._transfer = None if plan is None else SplitTransfer(plan, placer.interface, kept)
        self._numbers = HostNumbers(self._maker.indices)
        self._begun: deque[_Begun | BatchResult] = deque()
        self._ahead: deque[Made | BatchResult] = deque()
        self.kept: CopiedRows | None = None  # what the next pass may have, once this one is closed

    def _next_made(self) -> Made | None:
        try:
            loop = self._placer.pace()
        except RuntimeError:
            with self._placer.in_words():
                raise
        if not self._ahead:
            self._launch_another(wait=True)
        found = self._ahead.popleft() if self._ahead else None
        if isinstance(found, BatchResult):
            found.result()  # raises the error of this batch
        if not isinstance(found, Made):
            return None
        batch = self._handed_over(found.batch, loop)
        self._launch_another(wait=False)
        return found._replace(batch=batch)

    def _handed_over(self, batch: Any, loop: Any) -> Any:
        try:
            return self._placer.hand_over(batch, loop, plain_members(batch) or None)  # each has memory of its own
        except RuntimeError:
            with self._placer.in_words():
                raise

    def _launch_another(self, *, wait: bool) -> None:
        """Launch the kernel of the next batch of the plan, if there is one that need not be waited for, or `wait`."""
        self._begin_more()
        if not self._begun:
            return
        begun = self._begun[0]
        made = begun if isinstance(begun, BatchResult) else self._captured(self._launched, begun, wait)
        if made is not None:
            self._begun.popleft()
            self._ahead.append(made)
            self._begin_more()

    def _begin_more(self) -> None:
        most = AHEAD if self._transfer is None else self._transfer.ahead
        while len(self._begun) < most and self._plan.ready:
            self._begun.append(self._captured(self._begin, self._plan.take()))

    def _begin(self, rows: NDArray[np.int64]) -> _Begun:
        began = time.perf_counter()
        self._maker.check_here()
        own = self._transfer
        transfer = BegunTransfer(self._numbers.of(rows)) if own is None else own.begin(rows)
        return _Begun(rows, transfer, time.perf_counter() - began)

    def _launched(self, begun: _Begun, wait: bool) -> Made | None:
        """Return a batch whose kernel is launched; None: its rows are late, and without `wait` not waited for."""
        began = time.perf_counter()
        own, transfer, arrived = self._transfer, begun.transfer, None
        if own is not None:
            if not wait and not own.is_ready(transfer):
                return None
            arrived = own.arrived(transfer)
        batch = self._placer.launch(self._make_of, begun.rows, transfer, arrived)
        if own is not None:
            own.launched(transfer)
        return Made(batch, begun.rows, begun.seconds + time.perf_counter() - began)

    def _make_of(
        self, rows: NDArray[np.int64], transfer: BegunTransfer, arrived: Mapping[SplitColumn, Arrived] | None
    ) -> Any:
        """Return a batch, in the stream that is the current one."""
        device = self._maker.device
        if arrived is None or transfer.copied is None:
            numbers = self._numbers.of(rows) if transfer.numbers is None else transfer.numbers
            return self._maker(rows, self._seed, RowNumbers.over(numbers, device))
        return self._maker(rows, self._seed, ArrivedNumbers(transfer.copied, arrived, device))

    def _captured(self, step: Callable[..., T], *given: Any) -> T | BatchResult:
        """Return the result of a step of a batch, or the error that its `next` has to raise."""
        try:
            return step(*given)
        except RuntimeError as error:
            return _raised(error, self._device)
        except Exception as error:
            return BatchResult(error=without_frames(error), may_stop=True)

    def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self._placer.call(fn, *args)

    def stats(self) -> LoaderStats:
        """Return the counters of this pass, with those of native threads and copies."""
        counted = super().stats()
        return counted if self._transfer is None else counted + self._transfer.stats()

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Drop the plan and the batches that were begun ahead; free slots, or keep them for a later pass."""
        self._ahead.clear()
        self._begun.clear()
        if self._transfer is not None:
            self.kept = self._transfer.close(keep_slots, at_once)
        super().close(keep_slots, at_once)


class _Begun(NamedTuple):
    """A batch of the plan whose kernel was not launched yet.

    Attributes:
        rows: its row numbers.
        transfer: how its rows come out of pinned RAM.
        seconds: what that took the calling thread.
    """

    rows: NDArray[np.int64]
    transfer: BegunTransfer
    seconds: float


def _raised(error: RuntimeError, device: torch.device) -> BatchResult:
    """Return an error of the device with its meaning."""
    try:
        raise_device_error(error, "gathering a batch", device)
    except Exception as meant:
        return BatchResult(error=without_frames(meant), may_stop=True)
