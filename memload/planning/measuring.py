"""Runs steps with a few small batches, for real or on tensors without memory, and fits curves to their bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memload.device.memory import OperationPeaks, gpu_memory
from memload.planning.allocations import Told, is_out_of_memory, nbytes_of
from memload.planning.batch_parts import parts_of_kind
from memload.planning.curves import Curve, curve_of, through
from memload.planning.gpu_libraries import kernels_of
from memload.planning.heap import free_to_take
from memload.planning.model_bytes import ActivationBytes, Loss, observed
from memload.planning.steps import LossOf, SampleDtypeError, each_rank_by_itself, left_as_they_were
from memload.planning.variants import Kind, converted, tensors_of, with_own_attributes
from memload.planning.weightless import UnknownTensorsError, WeightlessMode

SHARE = 0.9
"""Of the free bytes, the share that steps may take which are run to be measured."""


@dataclass(frozen=True)
class Measured:
    """The bytes of a step as functions of its batch, without weights and optimizers.

    Attributes:
        step: activations and gradients together, at each moment.
        accumulating: the same for a step whose gradients exist already; these do not count.
        activations: activations alone.
        inputs: the tensors of the batch.
        saved: tensors that the forward pass saves for the backward pass.
        held: further tensors that the loop holds while optimizers make their step.
        gradients: the gradients of all parameters.
    """

    step: Curve
    accumulating: Curve
    activations: Curve
    inputs: Curve
    saved: Curve
    held: Curve
    gradients: int

    def peak_of_variants(self, kind: Kind, times: float) -> int:
        """Return the most bytes that a step with a variant of a sample takes, with the variant itself.

        Args:
            kind: whose variants have at most twice the counts of the sample.
            times: how many times bytes count that the C library's heap keeps.
        """
        twice = [2 * count for count in kind.counts]
        return self.step.in_heap(times, *twice) + math.ceil(times * self.inputs.at(*twice))


def measured(
    kind: Kind,
    losses: Sequence[LossOf],
    models: Sequence[torch.nn.Module],
    teachers: Sequence[torch.nn.Module] = (),
    *,
    on_cpu: bool = False,
    room: int = 0,
    times: float = 1.0,
    told: Told | None = None,
) -> Measured:
    """Run steps with a few small batches on the models' device; afterwards models and generators are as before.

    Of graphs and ragged rows, the first steps are with a few of the sample, and larger ones are run only where they fit
    by what smaller ones took. So the result may be that of a part of the sample.

    Args:
        kind: makes the batches.
        losses: functions of a batch, each with a backward pass of its own.
        models: the models that train.
        teachers: models that only run forward.
        on_cpu: whether training will run on a CPU.
        room: the bytes that a step with a part of the sample may take by that prediction; 0: `SHARE` of what is free
            where the models are, which is the bound in any case.
        times: how many times bytes count that the C library's heap keeps.
        told: is called after each operation, for a progress bar.

    Raises:
        MemoryError: a step with the least part takes more than is free.
    """
    modules = [*models, *teachers]
    weights = [*_parameters(models), *_other_weights(models, teachers)]
    limit: int | None = None

    def run(batch: Any) -> ActivationBytes:
        given = [*weights, *tensors_of(batch)]
        return observed(
            _bound(losses, batch),
            _parameters(models),
            given,
            on_cpu=on_cpu,
            limit=limit,
            peaks=_peaks_of(modules),
            told=told,
        )

    found: Measured | None = None
    with left_as_they_were(modules):
        for part in parts_of_kind(kind):
            if kind.runs_sample:  # asked again for each part, since the heap may keep what the last one took
                free = int(SHARE * free_where(modules))
                limit = int(free / times)
                if found is not None and found.peak_of_variants(part, times) > min(free, room or free):
                    break
            try:
                found = _of_part(part, run, is_whole=part is kind) or found
            except MemoryError:
                if found is None:
                    raise
                break
    assert found is not None  # steps with the whole sample ran or raised
    return found


def _of_part(part: Kind, run: Callable[[Any], ActivationBytes], *, is_whole: bool) -> Measured | None:
    """Return the bytes of steps with a part of a sample; None if they fail, as norms over few graphs do.

    Raises:
        MemoryError: they take more than is free.
    """
    try:
        return _through(part, lambda batch: batch, run)
    except Exception as error:
        if is_out_of_memory(error) and part.runs_sample:
            counts = ", ".join(f"{count:,} {unit}" for count, unit in zip(part.counts, part.units, strict=True))
            raise MemoryError(f"a step with {counts} takes more than is free: {error}") from error
        if is_whole:
            raise
    return None


def _peaks_of(modules: Sequence[torch.nn.Module]) -> OperationPeaks | None:
    """Return what reads the allocator of the models' GPU; None on a CPU."""
    device = _device_of(modules)
    return OperationPeaks(device) if device.type == "cuda" else None


def _device_of(modules: Sequence[torch.nn.Module]) -> torch.device:
    return next((p.device for module in modules for p in module.parameters()), torch.device("cpu"))


def free_where(modules: Sequence[torch.nn.Module]) -> int:
    """Return the bytes that this process can still take on the device of its models."""
    device = _device_of(modules)
    gpu = gpu_memory(device) if device.type == "cuda" else None
    return gpu.available if gpu else free_to_take()


def without_memory(
    kind: Kind,
    losses: Sequence[LossOf],
    models: Sequence[torch.nn.Module],
    teachers: Sequence[torch.nn.Module] = (),
    *,
    on_cpu: bool = False,
    told: Told | None = None,
) -> Measured:
    """Run steps on tensors that have shapes but no memory or values, so nothing is computed; see `measured`.

    Raises:
        ValueError: the step reads values, or has an operation that only runs on real tensors.
    """
    holder = _Holder([*models, *teachers])
    mode = WeightlessMode()
    with mode:
        fakes = {
            name: _fake(mode, tensor)
            for name, tensor in [*holder.named_parameters(), *holder.named_buffers()]  # each shared tensor once
        }
    own = {id(tensor): fakes[name] for name, tensor in [*holder.named_parameters(), *holder.named_buffers()]}
    parameters = [own[id(p)] for p in _parameters(models)]

    def run(batch: Any) -> ActivationBytes:
        given = [*fakes.values(), *tensors_of(batch)]
        step = _bound(losses, batch)

        def within() -> ActivationBytes:
            with mode, kernels_of("cpu" if on_cpu else "cuda"):
                return observed(step, parameters, given, on_cpu=on_cpu, told=told)

        found: ActivationBytes = torch.func.functional_call(holder, fakes, (within,))
        return found

    try:
        with left_as_they_were([]), each_rank_by_itself([*models, *teachers]):
            return _through(kind, lambda batch: converted(batch, lambda tensor: _fake(mode, tensor)), run)
    except (SampleDtypeError, UnknownTensorsError):
        raise
    except Exception as error:
        raise ValueError(
            f"the step does not run on tensors without values ({type(error).__name__}: {error}): it reads values, "
            'or holds tensors that are neither parameters nor buffers. Give mode="measured", which runs it for real on '
            "a few rows"
        ) from error


def _through(kind: Kind, convert: Callable[[Any], Any], run: Callable[[Any], ActivationBytes]) -> Measured:
    counts, steps, inputs = [], [], []
    first: Any = None
    for count, batch in kind.variants():
        batch = convert(batch)
        counts.append(count)
        inputs.append(nbytes_of(tensors_of(batch)))
        steps.append(run(batch))
        if len(steps) == 2 and steps[0].timeline.operations != steps[1].timeline.operations:
            steps[0] = run(first)  # a first step may allocate memory that later steps reuse, so it is repeated
        first = batch if first is None else first
    timelines = [step.timeline for step in steps]
    return Measured(
        curve_of(kind, counts, timelines, gradients=True),
        curve_of(kind, counts, [timeline.accumulating() for timeline in timelines], gradients=True),
        curve_of(kind, counts, timelines, gradients=False),
        _through_sizes(kind, counts, inputs),
        _through_sizes(kind, counts, [step.saved for step in steps]),
        _through_sizes(kind, counts, [step.held for step in steps]),
        steps[-1].gradients,
    )


def _through_sizes(kind: Kind, counts: Sequence[tuple[int, ...]], nbytes: Sequence[int]) -> Curve:
    return through(kind, counts, np.array([[n] for n in nbytes], dtype=np.float64), exact=True)


def _bound(losses: Sequence[LossOf], batch: Any) -> list[Loss]:
    given = with_own_attributes(batch)
    return [functools.partial(loss, given) for loss in losses]


class _Holder(torch.nn.Module):
    """One module that contains all modules, so that `functional_call` exchanges all their tensors for a call."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)

    def forward(self, run: Callable[[], Any]) -> Any:
        """Return the result of the function."""
        return run()


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like this one without memory; a tensor on "meta" is treated as one on the CPU."""
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake


def _parameters(models: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    return list({id(p): p for model in models for p in model.parameters()}.values())


def _other_weights(models: Sequence[torch.nn.Module], teachers: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    buffers = [b for module in models for b in module.buffers()]
    return [*buffers, *(t for teacher in teachers for t in (*teacher.parameters(), *teacher.buffers()))]
