"""The bytes of one way to train, at any batch size: those of the account of `memload.plan`.

batch without memory, resized -> Training -> lines of the GPU -> bytes
bytes at two sizes            -> the next size to try         -> the largest batch
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from memload.planning.account import Line
from memload.planning.allocations import nbytes_of
from memload.planning.batch_size_request import BatchSizeRequest
from memload.planning.gpu_account import Counted, Training, gpu_lines
from memload.planning.gpu_batches import arriving_rows, far_batches, loop_batches
from memload.planning.measuring import Measured, measured, without_memory
from memload.planning.recomputing import checkpointed
from memload.planning.steps import LossOf, left_as_they_were
from memload.planning.variants import GraphBatches, PlainBatches, converted, tensors_of


class Way:
    """A precision with or without checkpointing, and its bytes, which are computed when they are asked for.

    Args:
        setting: the checked models, losses and sample, in that precision.
        precision: its name.
        checkpointing: whether blocks are computed again in the backward pass.
        losses: the losses as the user gave them; None: the model's own.
        may_run: whether steps of a few rows may run for real, where a step needs values.
        told: is called after each step, for a progress bar.
        device_bytes: bytes of rows that lie on the GPU; if there are any, the others are taken to lie in pinned RAM.
    """

    def __init__(
        self,
        setting: BatchSizeRequest,
        precision: str,
        losses: list[LossOf] | None,
        *,
        checkpointing: bool,
        may_run: bool,
        told: Callable[[], object],
        device_bytes: int = 0,
    ) -> None:
        self.device_bytes = device_bytes
        self.setting, self.precision, self.checkpointing = setting, precision, checkpointing
        self._losses, self._may_run, self._told = losses, may_run, told
        self._counted: dict[tuple[int, bool], Counted] = {}

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply checkpointing inside ``with``, if this way has it."""
        with checkpointed(self.setting.models) if self.checkpointing else contextlib.nullcontext():
            yield

    def lines(
        self, rows: int, accumulate: int, *, offload: bool, capability: tuple[int, int] | None = None
    ) -> tuple[Line, ...]:
        """Return the lines of the device for batches of so many rows; on a CPU those of training and of batches."""
        training = replace(self._training(rows, accumulate), offload=offload)
        batch = round(self._batch_bytes * rows / max(1, self.setting.kind.counts[0]))
        batches = (far_batches(batch, batch), arriving_rows(batch)) if self.device_bytes else loop_batches(batch)
        lines = training.lines(self.counted(rows, accumulating=accumulate > 1))
        return (*batches, *lines) if training.on_cpu else gpu_lines(self.device_bytes, batches, lines, capability)

    def counted(self, rows: int, *, accumulating: bool) -> Counted:
        """Return the bytes of training with batches of so many rows.

        Raises:
            ValueError: the step does not run without values, and must not run with them.
        """
        key = (rows, accumulating)
        if key not in self._counted:
            self._counted[key] = self._count(rows, accumulating)
            self._told()
        return self._counted[key]

    def _count(self, rows: int, accumulating: bool) -> Counted:
        training = self._training(rows, 2 if accumulating else 1)
        before = next(iter(self._counted.values()), None)
        if self._is_exact:
            try:
                with self.applied(), left_as_they_were([]):
                    found = training.counted(before)
                if not found.no_temporary:
                    return found
            except ValueError:
                if not self._may_run:
                    raise
        curve = self._found.accumulating if accumulating else self._found.step
        counts = [rows * count / max(1, self.setting.kind.counts[0]) for count in self.setting.kind.counts]
        kept = (before or replace(training, loss=None, sample="not run here").counted()).kept
        return Counted(kept, max(0, curve.at(*counts) - (0 if accumulating else kept.gradients)))

    @functools.cached_property
    def _is_exact(self) -> bool:
        """Whether a batch of each size can be run; otherwise a curve through steps with a few sizes counts."""
        kind = self.setting.kind
        return isinstance(kind, PlainBatches) or (isinstance(kind, GraphBatches) and len(self.setting.losses) == 1)

    @functools.cached_property
    def _found(self) -> Measured:
        run = measured if self._may_run else without_memory
        with self.applied():
            setting, on_cpu = self.setting, self.setting.device.type == "cpu"
            return run(setting.kind, setting.losses, setting.models, setting.teachers, on_cpu=on_cpu)

    @functools.cached_property
    def _batch_bytes(self) -> int:
        return nbytes_of(tensors_of(self.setting.kind.sample))

    @functools.cached_property
    def _rows(self) -> PlainBatches | None:
        """Batches of any size without memory; None for batches that are not counted in rows."""
        kind = self.setting.kind
        return replace(kind, sample=converted(kind.sample, _on_meta)) if isinstance(kind, PlainBatches) else None

    def _training(self, rows: int, accumulate: int) -> Training:
        setting = self.setting
        return Training(
            list(setting.models),
            list(setting.optimizers),
            self._losses[0] if self._losses and len(self._losses) == 1 else self._losses,
            self._rows.resized(rows) if self._rows else setting.kind.sample,
            self.precision,
            accumulate,
            offload=False,
            on_cpu=setting.device.type == "cpu",
            graphs=None if self._rows else rows,
            teachers=tuple(setting.teachers),
        )


def largest_within(nbytes: Callable[[int], int], room: int, least: int, most: int) -> int:
    """Return the largest size from `least` to `most` that takes no more than `room`; 0 if `least` takes more.

    Each size to try is where the line through two sizes meets `room`, since steps grow with their batch nearly in
    proportion. It ends where that line says that one more row does not fit.
    """
    if nbytes(least) > room:
        return 0
    if nbytes(most) <= room:
        return most
    good, bad = least, most
    while bad - good > 1:
        line = (room - nbytes(good)) * (bad - good) // max(1, nbytes(bad) - nbytes(good))
        if not line:
            break
        size = min(good + line, bad - 1)
        good, bad = (size, bad) if nbytes(size) <= room else (good, size)
    return good


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")
