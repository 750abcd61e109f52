"""Gathers rows that cross a bus one batch ahead of the loop, in the stream `work`.

plan of row indices -> begun: numbers, way of the rows -> launched: gather (+ cast) -> handed over to the loop's stream
sampling/row_plan.py   split_transfer.py                  batch_maker.py               placing.py

Rows that the copy engine moves out of pinned RAM begin to move some batches before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from memload.device.copied_rows import AHEAD, ArrivedNumbers, CopiedRows
from memload.device.devices import raise_device_error
from memload.device.placing import Placer, plain_members
from memload.device.resident_batches import Made, ResidentBatches
from memload.device.row_numbers import Arrived, HostNumbers, RowNumbers
from memload.device.split_tier import SplitColumn
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
