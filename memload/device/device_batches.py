"""Delivers batches on the device to the loop: the last layer of a native pass, and of a pass of torch's machinery.

gatherer -> placed on the device, cast (stream `work`), one batch ahead -> the loop's stream -> transformed there
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload import _core
from memload.casts.rule import Cast
from memload.device.casting import cast_on_device
from memload.device.destination_buffers import OnDevice
from memload.device.placing import Placer
from memload.engine.cast_batches import Casting, cast_batch
from memload.engine.gatherer import AroundGatherer, BatchResult, Gatherer
from memload.engine.iterators import AroundBatches
from memload.engine.transforms.seeding import PassSeed
from memload.engine.transforms.transform_pipeline import transformed_here, with_calls_here
from memload.kept_errors import without_frames
from memload.sampling.draws import Indices
from memload.stats import LoaderStats

Transform = Callable[..., Any]


class _CastingThere(Casting):
    """Casts the fields of a batch on the device."""

    def _made(self, cast: Cast, values: torch.Tensor, seeds: Sequence[int] | None, _: int, /) -> torch.Tensor:
        return cast_on_device(values, cast, seeds=seeds)  # by one kernel, if there is one


@dataclass(frozen=True)
class Casts:
    """The casts of whole batches on the device.

    Attributes:
        casts, names, grouped: as `memload.engine.cast_batches.cast_batch` takes them.
        batched: see `Casting`.
    """

    casts: Mapping[Any, Cast]
    names: Sequence[Any] = ()
    grouped: bool = False
    batched: bool | None = None

    def apply(self, batch: Any, seed: PassSeed | None, rows: Indices | int) -> Any:
        """Return a batch with its fields cast; random numbers follow from its rows, or from its number."""
        return cast_batch(batch, self.casts, self.names, self.grouped, _CastingThere(seed, rows, batched=self.batched))


class DeviceBatches(AroundGatherer):
    """A `Gatherer` around another one, which delivers its batches on the device.

    While the loop works on a batch, the next one is cast, if it is gathered by then. It is transformed when the loop
    asks for it, in the loop's current stream: so the function sees what the loop has written and queued before. The
    consumer does not wait for the device; its stream does.

    Args:
        gatherer: gathers batches that are `OnDevice`, or on the CPU.
        placer: puts batches on the device.
        casts: the casts of batches that are `OnDevice`.
        transform: the last function of a batch on the device; None: no function.
    """

    def __init__(self, gatherer: Gatherer, placer: Placer, casts: Casts, transform: Transform | None) -> None:
        super().__init__(gatherer)
        self._placer, self._casts, self._transform = placer, casts, transform
        self._prepared: deque[BatchResult] = deque()  # each with an `OnDevice`, or an error
        self._called = 0.0  # seconds that the function took

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass."""
        self._seed = seed
        self.gatherer.begin(seed)

    def next(self, timeout: float) -> Any:
        """Return the next batch as a `BatchResult`; None at the end."""
        try:
            return self._next(timeout)
        except RuntimeError:
            with self._placer.in_words():  # entered here alone, since it costs as much as to hand over a batch
                raise

    def _next(self, timeout: float) -> BatchResult | None:
        loop = self._placer.pace()
        found = self._prepared.popleft() if self._prepared else self._prepare(timeout)
        if isinstance(found, _Raised):
            found.result()
        if found is None or found.error is not None:
            return found
        batch, memory = found.batch
        result = self._transformed(self._placer.hand_over(batch, loop, memory))
        self._prepare_another()
        return result

    def cancel(self) -> _core.PlanQueue:
        """Stop gathering, and return the plan of the batches that were not delivered, with the prepared one."""
        prepared = self._prepared.popleft() if self._prepared else None
        if isinstance(prepared, _Raised):
            prepared.result()
        plan = self.gatherer.cancel()
        if prepared is not None:
            plan.put_back(self.gatherer.row_numbers())
        return plan

    def placed(self, batch: Any, about: Indices | int) -> Any:
        """Return a batch that the dataset itself made, on the device and transformed."""
        with self._placer.in_words():
            self._placer.pace()
            handed = self._placer.hand_over(self._placer.place(batch))
        if self._transform is None:
            return handed
        return self._call(self._transform, handed, about)

    def stats(self) -> LoaderStats:
        """Return the gatherer's counters, with the bytes that were copied and the functions that were called here."""
        gathered = with_calls_here(self.gatherer.stats(), self._called)
        here = LoaderStats(copied_bytes=self._placer.copied_bytes, device_wait_seconds=self._placer.waited_seconds)
        return gathered + here

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and free memory and threads, or keep the slots for a later pass."""
        self._prepared.clear()
        self.gatherer.close(keep_slots, at_once)

    def _prepare_another(self) -> None:
        try:
            if self.gatherer.is_ready() and (prepared := self._prepare(0.0)) is not None:
                if prepared.error is not None:
                    without_frames(prepared.error)
                self._prepared.append(prepared)
        except Exception as error:  # raised after the batch that is delivered now
            self._prepared.append(_Raised(error=without_frames(error), may_stop=True))

    def _prepare(self, timeout: float) -> BatchResult | None:
        """Return the next batch, as an `OnDevice` in a result; None at the end."""
        gathered = self.gatherer.next(timeout)
        if gathered is None:
            return None
        if isinstance(gathered, BatchResult):
            if gathered.error is not None:
                return gathered
            gathered = gathered.batch
        if not isinstance(gathered, OnDevice):
            gathered = OnDevice(self._placer.place(gathered))
        elif self._casts.casts:
            rows = self.gatherer.row_numbers()  # random numbers follow from the rows
            gathered = OnDevice(self._placer.launch(self._casts.apply, gathered.batch, self._seed, rows))
        return BatchResult(gathered)

    def _transformed(self, batch: Any) -> BatchResult:
        """Return the result of the user's function for the batch that the gatherer gave last."""
        if self._transform is None:
            return BatchResult(batch)
        try:
            return BatchResult(self._call(self._transform, batch, self.gatherer.row_numbers()))
        except BaseException as error:  # the loop raises it at this batch
            return BatchResult(error=error)

    def _call(self, transform: Transform, batch: Any, about: Indices | int) -> Any:
        begun = time.perf_counter()
        try:
            return self._placer.call(transformed_here, transform, batch, self._seed, about)
        finally:
            self._called += time.perf_counter() - begun


class _Raised(BatchResult):
    """An error of the gatherer while a batch was prepared ahead; it ends the pass."""


class MovedBatches(AroundBatches):
    """The batches of torch's machinery, moved to the device, cast and transformed there.

    Args:
        batches: an iterator with a length.
        placer: puts batches on the device.
        casts: the casts of batches.
        transform: the last function of a batch; None: no function.
        seed: the seed of the pass, from which random numbers follow with the number of the batch; None: no seed.
        number: the number of the first of these batches, counted from the beginning of the pass.
    """

    def __init__(
        self,
        batches: Any,
        placer: Placer,
        casts: Casts,
        transform: Transform | None,
        seed: PassSeed | None,
        number: int,
    ) -> None:
        super().__init__(batches)
        self._placer, self._casts, self._transform = placer, casts, transform
        self._seed, self._number = seed, number

    def __next__(self) -> Any:
        with self._placer.in_words():
            self._placer.pace()
        batch = next(self._batches)
        number, self._number = self._number, self._number + 1
        with self._placer.in_words():
            batch = self._placer.place(batch)
            if self._casts.casts:
                batch = self._placer.launch(self._casts.apply, batch, self._seed, number)
            batch = self._placer.hand_over(batch)
        if self._transform is None or self._seed is None:
            return batch
        return self._placer.call(transformed_here, self._transform, batch, self._seed, number)
