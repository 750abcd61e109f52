"""Gathers rows that cross a bus one batch ahead of the loop, in the stream `work`.

plan of row indices -> begun: numbers, way of the rows -> launched: gather (+ cast) -> handed over to the loop's stream
sampling/row_plan.py   split_transfer.py                  batch_maker.py               placing.py

Rows that the copy engine moves out of pinned RAM begin to move some batches before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from memload.device.copied_rows import AHEAD, ArrivedNumbers, ArrivedRows, CopiedRows
from memload.device.devices import raise_device_error
from memload.device.interface import Interface
from memload.device.placing import Placer, plain_members
from memload.device.resident_batches import Made, ResidentBatches
from memload.device.row_numbers import HostNumbers, RowNumbers
from memload.device.split_transfer import BegunTransfer, SplitTransfer
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import BatchResult
from memload.engine.settings import BatchSizes
from memload.kept_errors import without_frames
from memload.stats import LoaderStats

T = TypeVar("T")


class GatheredAhead(ResidentBatches):
    """Gathers the next batch while the loop works on one; a `Gatherer`.

    A kernel that reads across a bus takes as long as the bus does. In the loop's own stream, the loop's kernels would
    wait for it; here it runs beside them. The loop's stream waits for the batch that it gets, and for no other.

    Args:
        source, sizes: as of `ResidentBatches`.
        placer: launches in the stream `work`, and hands batches over to the loop's stream.
        transfer: brings rows out of pinned RAM; None: the kernel reads all rows.
        options: further arguments of `ResidentBatches`.
    """

    def __init__(
        self, source: GatherSpec, sizes: BatchSizes, placer: Placer, transfer: SplitTransfer | None, **options: Any
    ) -> None:
        super().__init__(source, sizes, **options)
        self._placer, self._transfer = placer, transfer
        self._numbers = HostNumbers(self._maker.indices)
        self._begun: deque[BegunTransfer | BatchResult] = deque()
        self._ahead: deque[Made | BatchResult] = deque()
        self.kept: CopiedRows | None = None  # what the next pass may have, once this one is closed

    @property
    def interface(self) -> Interface:
        """The device, with the streams of this pass."""
        return self._placer.interface

    def _next_made(self) -> Made | None:
        self._maker.check_here()
        try:
            loop = self._placer.pace()
        except RuntimeError:
            with self._placer.in_words():
                raise
        began = time.perf_counter()
        if not self._ahead:
            self._launch_another(wait=True)
        found = self._ahead.popleft() if self._ahead else None
        if isinstance(found, BatchResult):
            found.result()  # raises the error of this batch
        if not isinstance(found, Made):
            return None
        self._hand_over(found.batch, loop)
        self._launch_another(wait=False)
        self._waited += time.perf_counter() - began
        return found

    def _hand_over(self, batch: Any, loop: Any) -> None:
        try:
            self._placer.hand_over(batch, loop, plain_members(batch) or None)  # each has memory of its own
        except RuntimeError:
            with self._placer.in_words():
                raise

    def _launch_another(self, *, wait: bool) -> None:
        """Launch the kernel of the next batch of the plan, if there is one that need not be waited for, or `wait`."""
        if not self._begun:
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
        own = self._transfer
        most = AHEAD if own is None else own.ahead
        while len(self._begun) < most and self._plan.ready:
            if own is not None and self._begun and own.turns:
                return
            self._begun.append(self._captured(self._begin, self._plan.take()))

    def _begin(self, rows: NDArray[np.int64]) -> BegunTransfer:
        own = self._transfer
        return BegunTransfer(rows, self._numbers.of(rows)) if own is None else own.begin(rows)

    def _launched(self, begun: BegunTransfer, wait: bool) -> Made | None:
        """Return a batch whose kernel is launched; None: its rows are late, and without `wait` not waited for."""
        own, arrived = self._transfer, None
        if own is not None and (copied := own.still_copied(begun)) is not None:
            arrived = copied.take(wait=wait)
            if arrived is None:
                return None
        batch = self._placer.launch(self._make_of, begun, arrived)
        if own is not None:
            own.launched(begun)
        return Made(batch, begun.rows)

    def _make_of(self, begun: BegunTransfer, arrived: ArrivedRows | None) -> Any:
        """Return a batch, in the stream that is the current one."""
        maker, (rows, found, copied, _) = self._maker, begun
        if arrived is None or copied is None:
            numbers = RowNumbers.over(self._numbers.of(rows) if found is None else found, maker.device)
        else:
            numbers = ArrivedNumbers(copied, arrived, maker.device)
        return maker.make(rows, self._seed, numbers)

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
        counted = replace(super().stats(), device_wait_seconds=self._placer.waited_seconds)
        return counted if self._transfer is None else counted + self._transfer.stats()

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Drop the plan and the batches that were begun ahead; free slots, or keep them for a later pass."""
        self._ahead.clear()
        self._begun.clear()
        if self._transfer is not None:
            self.kept = self._transfer.close(keep_slots, at_once)
        super().close(keep_slots, at_once)


def _raised(error: RuntimeError, device: torch.device) -> BatchResult:
    """Return an error of the device with its meaning."""
    try:
        raise_device_error(error, "gathering a batch", device)
    except Exception as meant:
        return BatchResult(error=without_frames(meant), may_stop=True)
