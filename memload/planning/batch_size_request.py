"""The checked arguments of `compute_batch_size`, and what of a device's memory does not depend on the batch size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload.device.memory import CONTEXT, gpu_memory
from memload.planning.allocations import nbytes_of
from memload.planning.gpu_libraries import cublas_workspaces
from memload.planning.gpus import capability_here, gpu_here_has_bf16, parse_gpu
from memload.planning.graph_spread import SURE, GraphMeans
from memload.planning.heap import free_to_take, heap_bound, heap_threshold
from memload.planning.loader_slots import last_batch_of, rows_of_epoch, slots_of
from memload.planning.memory_budget import StaticBytes
from memload.planning.model_bytes import ModelBytes, Modules, Optimizers, model_bytes, modules_of, optimizers_of
from memload.planning.steps import LossOf, autocast_dtype, losses_of
from memload.planning.variants import Kind, kind_of, tensors_of
from memload.sizes import parse_size

_MOST = 1 << 20  # rows, the bound where none is given


@dataclass(frozen=True)
class BatchSizeRequest:
    """The checked arguments of `compute_batch_size`, and the bytes that do not depend on the batch size.

    Attributes:
        models, optimizers, teachers: the models that train, their optimizers, and the models that only run forward.
        losses: functions of a batch, in turn.
        kind: the way in which batches are counted and resized.
        device: the device whose memory is planned.
        total: the bytes of its memory.
        is_free_here: whether `total` is the free RAM of this machine, rather than a given limit or a GPU's size.
        heap: how many times the bytes of a step count, for what the C library keeps of freed tensors.
        threshold: the bytes below which the heap keeps freed tensors though a threshold is set; 0: it keeps none.
        half: the precision of 16 bits that the device computes in.
        graphs: the mean graph, and how much graphs differ; None for other batches.
        own: weights, gradients and optimizers of the models.
        static: all bytes that do not depend on the batch size.
        target_utilization: the share of `total` to be used.
        accumulate: micro-batches of a step.
        slots: the loader's slots, as a curve.
        last_batch: returns the rows of the short batch that ends an epoch, 0 if there is none.
        counts_inputs: whether a batch takes memory beside the loader's slots.
        least, most: the bounds of the batch size.
    """

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    teachers: Sequence[torch.nn.Module]
    losses: Sequence[LossOf]
    kind: Kind
    device: torch.device
    total: int
    own: ModelBytes
    static: StaticBytes
    target_utilization: float
    accumulate: int
    slots: Callable[[int], int]
    counts_inputs: bool
    least: int
    most: int
    is_free_here: bool = False
    heap: float = 1.0
    threshold: int = 0
    half: str = "bf16-mixed"
    graphs: GraphMeans | None = None
    last_batch: Callable[[int], int] = lambda _: 0

    def counts(self, size: int, probability: float = SURE) -> tuple[float, ...]:
        """Return the counts of a batch of so many samples; see `GraphMeans.counts`."""
        if self.graphs is not None:
            return self.graphs.counts(size, probability)
        return tuple(size * count / max(1, self.kind.counts[0]) for count in self.kind.counts)

    @property
    def room(self) -> int:
        """Bytes for gradients, activations and the loader."""
        return int(self.total * self.target_utilization) - self.static.total + self.own.gradients


@dataclass(frozen=True)
class Trained:
    """What a step trains, as users give it; see `compute_batch_size`.

    Raises:
        ValueError: `accumulate` is below 1.
    """

    model: Modules
    loss: LossOf | Sequence[LossOf] | None = None
    optimizer: Optimizers = None
    teacher: Modules | None = None
    precision: torch.dtype | str | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ValueError(f"accumulate is the number of batches of a step: at least 1, got {self.accumulate}")


@dataclass(frozen=True)
class Target:
    """The memory to plan for, as users give it; see `compute_batch_size`.

    Raises:
        ValueError: `utilization` is no share.
    """

    device: torch.device | str | None = None
    limit: int | str | None = None
    utilization: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.utilization <= 1:
            raise ValueError(
                f"target_utilization is a share of the memory, above 0 and up to 1; got {self.utilization}"
            )


def setting_of(
    trained: Trained, sample: Any, memory: Target, bounds: tuple[int, int] = (1, _MOST), loader: Any = None
) -> BatchSizeRequest:
    """Return the checked arguments of `compute_batch_size`; `bounds` are those of `bounds_of`."""
    models, teachers = modules_of(trained.model), [] if trained.teacher is None else modules_of(trained.teacher)
    optimizers = optimizers_of(trained.optimizer, models)
    limit, here = memory.limit, device_of(models)
    target = torch.device(memory.device) if memory.device is not None else here
    losses = _losses_of(trained, models, teachers, here)
    if outside := _outside(optimizers, [*models, *teachers]):
        models = [*models, torch.nn.ParameterList(outside)]
    own = model_bytes(models, optimizers, device_type=target.type)
    teaching = model_bytes(teachers).weights if teachers else 0
    total, context = memory_of(target, here, limit, own.weights + teaching)
    static = StaticBytes(
        own.params,
        own.embeddings,
        own.buffers,
        own.gradients,
        own.buckets,
        own.optimizer,
        teaching,
        context,
        workspaces_of(target, limit),
    )
    kind = kind_of(sample)
    is_free_here = target.type == "cpu" and limit is None
    slots, in_slots = slots_of(loader, target, nbytes_of(tensors_of(sample)) / max(1, kind.counts[0]))
    return BatchSizeRequest(
        models=models,
        optimizers=optimizers,
        teachers=teachers,
        losses=losses,
        kind=kind,
        device=target,
        total=total,
        own=own,
        static=static,
        target_utilization=memory.utilization,
        accumulate=trained.accumulate,
        slots=slots,
        counts_inputs=not in_slots,
        least=bounds[0],
        most=bounds[1],
        is_free_here=is_free_here,
        heap=heap_bound(counts=is_free_here, varies=kind.varies),
        threshold=heap_threshold() if is_free_here else 0,
        half=_half_of(target, limit),
        graphs=GraphMeans.of(kind, loader),
        last_batch=functools.partial(last_batch_of, loader),
    )


def _losses_of(
    trained: Trained, models: Sequence[torch.nn.Module], teachers: Sequence[torch.nn.Module], here: torch.device
) -> Sequence[LossOf]:
    precision = autocast_dtype(trained.precision)
    return losses_of(models, trained.loss, teachers, precision, "cpu" if here.type == "meta" else here.type)


def bounds_of(least: int, most: int | None, loader: Any = None) -> tuple[int, int]:
    """Return the bounds of a batch size; that of a loader has at most the rows of its epoch.

    Raises:
        ValueError: one is no integer from 1 on, or they are in the wrong order.
    """
    for name, value in (("min_batch_size", least), ("max_batch_size", most)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be an integer from 1 on, got {value!r}")
    top = max(least, min(_MOST, rows_of_epoch(loader) or _MOST)) if most is None else most
    if least > top:
        raise ValueError(f"min_batch_size is {least}, above max_batch_size, {top}")
    return least, top


def _outside(optimizers: Sequence[torch.optim.Optimizer], models: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Return the parameters that optimizers train and that belong to no model, such as those of a loss."""
    known = {id(parameter) for model in models for parameter in model.parameters()}
    trained = (parameter for opt in optimizers for group in opt.param_groups for parameter in group["params"])
    return [parameter for parameter in trained if id(parameter) not in known]


def device_of(models: Sequence[torch.nn.Module]) -> torch.device:
    """Return the device on which models lie.

    Raises:
        ValueError: they lie on several.
    """
    devices = sorted({str(p.device) for model in models for p in model.parameters()})
    if len(devices) > 1:
        raise ValueError(f"the parameters lie on several devices, {', '.join(devices)}: give models that lie on one")
    return torch.device(devices[0]) if devices else torch.device("cpu")


def workspaces_of(target: torch.device, limit: int | str | None) -> int:
    """Return the bytes that torch keeps for cuBLAS on the GPU that is planned for; 0 on a CPU."""
    if target.type != "cuda":
        return 0
    named = None if limit is None else parse_gpu(limit)[1]
    return cublas_workspaces(named.capability if named else capability_here(target))


def _half_of(target: torch.device, limit: int | str | None) -> str:
    if target.type != "cuda":
        return "bf16-mixed"
    gpu = None if limit is None else parse_gpu(limit)[1]
    has_bf16 = gpu.has_bf16 if gpu else limit is not None or gpu_here_has_bf16(target)
    return "bf16-mixed" if has_bf16 else "fp16-mixed"


def memory_of(target: torch.device, here: torch.device, limit: int | str | None, weights: int) -> tuple[int, int]:
    """Return the bytes to plan for, and the part of them that contexts take."""
    if target.type == "cuda":
        if limit is not None:
            return parse_gpu(limit)[0], CONTEXT
        gpu = gpu_memory(target)
        if gpu is None:
            raise ValueError('there is no GPU here to ask for its memory: give limit=, such as "24GB"')
        return gpu.total, gpu.others
    if limit is not None:
        return parse_size(limit), 0
    return free_to_take() + (weights if here.type == "cpu" else 0), 0
