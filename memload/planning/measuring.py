"""Steps with a few small batches, run for real or on tensors without memory, and the curve through what they took."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memload.planning.allocations import nbytes_of
from memload.planning.curves import Curve, curve_of, through
from memload.planning.model_bytes import ActivationBytes, Loss, observed
from memload.planning.steps import LossOf, SampleDtypeError, each_rank_by_itself, left_as_they_were
from memload.planning.variants import Kind, converted, tensors_of


@dataclass(frozen=True)
class Measured:
    """What a step takes as a function of its batch, beside weights and optimizers.

    Attributes:
        step: activations and gradients together, at each moment.
        accumulating: the same where gradients are there from before, which do not count then.
        activations: without gradients.
        inputs: the tensors of the batch.
        saved: by the forward pass for the backward one.
        held: what the loop holds beside them while optimizers make their step.
        gradients: of parameters, once there are all.
    """

    step: Curve
    accumulating: Curve
    activations: Curve
    inputs: Curve
    saved: Curve
    held: Curve
    gradients: int


def measured(
    kind: Kind,
    losses: Sequence[LossOf],
    models: Sequence[torch.nn.Module],
    teachers: Sequence[torch.nn.Module] = (),
) -> Measured:
    """Run steps with a few small batches where the models are, and leave all as it was."""
    modules = [*models, *teachers]
    weights = [*_parameters(models), *_others(models, teachers)]

    def run(batch: Any) -> ActivationBytes:
        given = [*weights, *tensors_of(batch)]
        return observed(_bound(losses, batch), _parameters(models), given)

    with left_as_they_were(modules):
        return _through(kind, lambda batch: batch, run)


def without_memory(
    kind: Kind,
    losses: Sequence[LossOf],
    models: Sequence[torch.nn.Module],
    teachers: Sequence[torch.nn.Module] = (),
) -> Measured:
    """Run steps on tensors that have shapes and no memory, so that nothing is computed either.

    Raises:
        ValueError: the step looks at values, or has an operation that only runs on real tensors.
    """
    holder = _Holder([*models, *teachers])
    mode = FakeTensorMode()
    with mode:
        fakes = {
            name: _fake(mode, tensor)
            for name, tensor in [*holder.named_parameters(), *holder.named_buffers()]  # what is shared comes once
        }
    own = {id(tensor): fakes[name] for name, tensor in [*holder.named_parameters(), *holder.named_buffers()]}
    parameters = [own[id(p)] for p in _parameters(models)]

    def run(batch: Any) -> ActivationBytes:
        given = [*fakes.values(), *tensors_of(batch)]
        step = _bound(losses, batch)

        def within() -> ActivationBytes:
            with mode:
                return observed(step, parameters, given)

        found: ActivationBytes = torch.func.functional_call(holder, fakes, (within,))
        return found

    try:
        with left_as_they_were([]), each_rank_by_itself([*models, *teachers]):
            return _through(kind, lambda batch: converted(batch, lambda tensor: _fake(mode, tensor)), run)
    except SampleDtypeError:
        raise
    except Exception as error:
        raise ValueError(
            f"the step does not run on tensors without values ({type(error).__name__}: {error}): it looks at values, "
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
            steps[0] = run(first)  # again: a very first step may make what later ones find
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
    return [functools.partial(one, batch) for one in losses]


class _Holder(torch.nn.Module):
    """Modules under one roof, whose tensors `functional_call` exchanges while a function runs."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)

    def forward(self, run: Callable[[], Any]) -> Any:
        """Return what the function returns."""
        return run()


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like this one without memory; what lies on "meta" is taken to be on the CPU."""
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake


def _parameters(models: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    return list({id(p): p for model in models for p in model.parameters()}.values())


def _others(models: Sequence[torch.nn.Module], teachers: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    buffers = [b for module in models for b in module.buffers()]
    return [*buffers, *(t for teacher in teachers for t in (*teacher.parameters(), *teacher.buffers()))]
