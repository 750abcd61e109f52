"""What is taken of a GPU: batches, models, optimizers, activations, and what CUDA and the allocator take themselves.

    at the start of a step   context | data | batches | weights | optimizer states
    in the backward pass     ... and activations, which go while gradients come
    in the optimizer's step  ... and gradients, and temporaries of the step

The last two are not at one time: the larger counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memload.gpu.memory import CONTEXT
from memload.memory.account import Line
from memload.memory.allocations import nbytes_of
from memload.memory.model_bytes import ModelBytes, Modules, activation_bytes, model_bytes, modules_of
from memload.memory.request import Request
from memload.memory.weightless import Weightless
from memload.sizes import format_size

FRAGMENTATION = 0.15
"""The share that the caching allocator loses of what comes and goes: the mean over eight language models on an A100.

Source: Guo et al., "GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training with
Virtual Memory Stitching", ASPLOS 2024, https://arxiv.org/abs/2401.08156, abstract: 15 % on average, up to 33 %.
"""

MOVING = ("batches", "transformed batches", "activations", "optimizer's step")
"""The lines of what comes and goes."""

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


@dataclass(frozen=True)
class Counted:
    """What training takes, in bytes.

    Attributes:
        kept: by models and optimizers, from step to step.
        moving: the most that comes and goes in forward and backward pass, beside gradients.
    """

    kept: ModelBytes
    moving: int


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        models: one module, or several.
        optimizers: for them: instances, or classes that are given the trained parameters of all models, or of each
            its own where there are as many as models.
        loss: the loss of a batch; None: activations are not counted.
        sample: a batch, whose tensors need no memory.
        precision: one of `memload.memory.weightless.PRECISIONS`.
        accumulate: batches whose gradients are added up before the optimizer's step.
        offload: whether models that train nothing stay in pinned RAM, and come layer by layer.
    """

    models: Modules
    optimizers: Any
    loss: Callable[[Any], torch.Tensor] | None
    sample: Any
    precision: str
    accumulate: int
    offload: bool

    @classmethod
    def of(cls, request: Request, sample: Any) -> Training | None:
        """Return what a request trains; None if nothing."""
        if request.model is None:
            return None
        return cls(
            request.model,
            request.optimizer,
            request.loss,
            sample,
            request.precision,
            request.accumulate,
            request.offload,
        )

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of models that stay in pinned RAM."""
        return sum(map(_weights, filter(trains_nothing, modules_of(self.models)))) if self.offload else 0

    def counted(self) -> Counted:
        """Return what is kept and what comes and goes, wherever frozen models are.

        Raises:
            ValueError: the loss cannot be run without numbers, or is none; or of an optimizer what it keeps is unknown.
        """
        modules = modules_of(self.models)
        with Weightless(modules, self.precision) as light:
            kept = model_bytes(modules, self._optimizers(light, modules))
            return Counted(kept, self._moving(light, modules, kept.gradients))

    def lines(self, counted: Counted) -> tuple[Line, ...]:
        """Return what it takes of a GPU."""
        kept, moving = counted.kept, counted.moving
        beyond = kept.optimizer_temporary - moving
        return (
            *self._weight_lines(modules_of(self.models), kept.weights),
            Line("gradients", kept.gradients),
            Line("optimizer states", kept.optimizer),
            Line("activations", moving, "" if self.loss else "not counted: loss= is not given"),
            *([Line("optimizer's step", beyond, "beyond what activations had")] if beyond > 0 else []),
        )

    def _weight_lines(self, modules: list[torch.nn.Module], weights: int) -> list[Line]:
        frozen = list(filter(trains_nothing, modules))
        whole = sum(map(_weights, frozen))
        if not self.offload or not frozen:
            return [Line("parameters", weights, f"{format_size(whole)} of them of frozen models" if whole else "")]
        layers = max(2 * max(map(_weights, _layers(module))) for module in frozen)
        return [
            Line("parameters", weights - whole),
            Line("offloaded layers", layers, "the largest of a frozen model, and the next that comes"),
        ]

    def _moving(self, light: Weightless, modules: list[torch.nn.Module], gradients: int) -> int:
        """The most that comes and goes in the forward and backward pass, beside gradients."""
        if self.loss is None:
            return 0
        accumulating = self.accumulate > 1
        try:
            with light.tensors():
                run = light.running(self.loss, self.sample)
                found = activation_bytes(run, modules, accumulating=accumulating)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise ValueError(
                f"the loss cannot be run on tensors without numbers ({type(error).__name__}: {error}): leave loss= "
                "out, and count what activations take by a step on the real batch"
            ) from error
        return max(0, found.peak_with_gradients - (0 if accumulating else gradients))

    def _optimizers(self, light: Weightless, modules: list[torch.nn.Module]) -> list[torch.optim.Optimizer]:
        given = self.optimizers
        if isinstance(given, Mapping):
            given = list(given.values())
        several = list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
        each_its_own = len(several) == len(modules)
        return [
            light.optimizer(one)
            if isinstance(one, torch.optim.Optimizer)
            else one(light.trained([modules[k]] if each_its_own else modules))
            for k, one in enumerate(several)
        ]


def context_lines() -> tuple[Line, ...]:
    """Return what CUDA takes for a process."""
    return (Line("CUDA context", CONTEXT, "kernels and libraries of the process"),)


def fragmentation_line(lines: tuple[Line, ...]) -> Line:
    """Return what the allocator loses between what comes and goes."""
    moving = sum(line.predicted for line in lines if line.name in MOVING)
    return Line("fragmentation", round(moving * FRAGMENTATION), f"{FRAGMENTATION:.0%} of what comes and goes")


def trains_nothing(module: torch.nn.Module) -> bool:
    """Whether all parameters of a model are frozen."""
    return not any(p.requires_grad for p in module.parameters())


def _layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that come to the GPU one after the other: children, those of containers and of the whole."""
    parts = list(module.children())
    if not parts:
        return [module]
    return [layer for part in parts for layer in (_layers(part) if isinstance(part, _CONTAINERS) else [part])]


def _weights(module: torch.nn.Module) -> int:
    return nbytes_of([*module.parameters(), *module.buffers()])
