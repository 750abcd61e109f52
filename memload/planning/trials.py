"""Runs real steps until memory runs out, and finds the batch size for all ranks of torch.distributed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from memload.device.memory import gpu_memory
from memload.planning.allocations import Allocations, Told, free_unused, is_out_of_memory, nbytes_of
from memload.planning.model_bytes import checked_loss
from memload.planning.steps import LossOf, left_as_they_were
from memload.planning.variants import PlainBatches

_WARM = 2  # rows: a norm over one raises an error


class Trials:
    """Runs whole steps of given sizes and returns whether they fit.

    Args:
        kind: makes batches of any size.
        losses, models, teachers, optimizers: the parts of a step.
        limit: returns the bytes that a step of so many rows may take, with optimizer states and without weights.
        optimizer_state: bytes of the optimizers' states after their first step.
        accumulating: whether a step has a second backward pass, over existing gradients.
        counts_inputs: whether the batch itself counts.
        told: is called after each operation of a step on the CPU, for a progress bar.

    Attributes:
        peaks: for each size that fitted, the most bytes alive at one time, with optimizer states and without weights.
    """

    def __init__(
        self,
        kind: PlainBatches,
        losses: Sequence[LossOf],
        models: Sequence[torch.nn.Module],
        teachers: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        limit: Callable[[int], int],
        optimizer_state: int,
        accumulating: bool,
        counts_inputs: bool,
        told: Told | None = None,
    ) -> None:
        self._kind, self._losses, self._optimizers = kind, losses, optimizers
        self._models, self._teachers = models, teachers
        self._state, self._told = optimizer_state, told
        self._limit, self._accumulating, self._counts_inputs = limit, accumulating, counts_inputs
        self.peaks: dict[int, int] = {}
        self._is_warm = False

    def fits(self, size: int) -> bool:
        """Run a step of so many rows and return whether it fits; all its memory is freed afterwards.

        Raises:
            ValueError: a model is on "meta".
        """
        modules = [*self._models, *self._teachers]
        if any(p.is_meta for module in modules for p in module.parameters()):
            raise ValueError('a model on "meta" has no values to run a step with: give mode="static"')
        try:
            with left_as_they_were(modules, self._optimizers, stepping=True):
                peak = self._peak(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            peak = None
        if peak is None:  # after the handler, whose error keeps the tensors of the step alive
            free_unused()
        if peak is None or peak > self._limit(size):
            return False
        self.peaks[size] = peak
        return True

    def _peak(self, size: int) -> int:
        device = next((p.device for model in self._models for p in model.parameters()), torch.device("cpu"))
        return self._peak_on_gpu(size, device) if device.type == "cuda" else self._peak_observed(size)

    def _peak_on_gpu(self, size: int, device: torch.device) -> int:
        self._warm_up()
        free_unused()
        torch.cuda.reset_peak_memory_stats(device)
        kept, before = nbytes_of(self._states()), _allocated(device)
        self._differentiate(self._kind.resized(size))
        passes = _peak_allocated(device) - before + self._state
        self._optimize()
        return max(passes, _peak_allocated(device) - before + kept)

    def _warm_up(self) -> None:
        """Run a small step once, after which libraries have the workspaces that they keep."""
        if not self._is_warm:
            self._differentiate(self._kind.resized(_WARM))
            for p in (p for model in self._models for p in model.parameters()):
                p.grad = None
        self._is_warm = True

    def _peak_observed(self, size: int) -> int:
        kept, limit = nbytes_of(self._states()), self._limit(size)
        with contextlib.ExitStack() as stack:
            # In a first step both passes run before the optimizers make their state, so room is left for it.
            seen = Allocations(max(0, limit - self._state), told=self._told)
            if self._counts_inputs:
                stack.enter_context(seen)
            batch = self._kind.resized(size)
            if not self._counts_inputs:
                stack.enter_context(seen)
            self._differentiate(batch)
            passes = seen.peak + self._state
            seen.limit = max(0, limit - kept)
            self._optimize()
        return max(passes, seen.peak + kept)

    def _states(self) -> list[torch.Tensor]:
        """Return the tensors of the optimizers' states."""
        states = (value for optimizer in self._optimizers for own in optimizer.state.values() for value in own.values())
        return [value for value in states if isinstance(value, torch.Tensor)]

    def _differentiate(self, batch: object) -> None:
        with torch.enable_grad():
            for _ in range(2 if self._accumulating else 1):
                for loss in self._losses:
                    result = loss(batch)
                    checked_loss(result).backward()  # type: ignore[no-untyped-call]
                    del result

    def _optimize(self) -> None:
        for optimizer in self._optimizers:
            type(optimizer).step(optimizer)  # the class's own, without the wrapper of a scheduler


def _allocated(device: torch.device) -> int:
    memory = gpu_memory(device)
    return memory.own.allocated if memory else 0


def _peak_allocated(device: torch.device) -> int:
    memory = gpu_memory(device)
    return memory.own.peak_allocated if memory else 0


def least_of_ranks(value: int) -> int:
    """Return the least value of all ranks; without torch.distributed, this one. Every rank must call it."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    backend = str(distributed.get_backend())
    on_gpu = "nccl" in backend and "gloo" not in backend
    least = torch.tensor(value, dtype=torch.int64, device=torch.cuda.current_device() if on_gpu else "cpu")
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least)
