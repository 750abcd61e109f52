"""The bytes of models: parameters, gradients and optimizers by arithmetic; activations by observing a step.

modules, optimizers -> ModelBytes          nothing is run or allocated; modules may be on "meta"
a loss of a batch   -> ActivationBytes     forward and backward pass run for real, on the models' device
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload.device.memory import OperationPeaks
from memload.planning.allocations import Allocations, Timeline, Told, nbytes_of, no_collection, storages
from memload.planning.optimizer_bytes import optimizer_bytes, optimizer_over
from memload.sizes import format_size

Modules = torch.nn.Module | Iterable[torch.nn.Module] | Mapping[Any, torch.nn.Module]
Loss = Callable[[], Any]
OneOptimizer = str | torch.optim.Optimizer | Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
Optimizers = OneOptimizer | Iterable[OneOptimizer] | Mapping[Any, OneOptimizer] | None


@dataclass(frozen=True)
class ModelBytes:
    """The bytes of models and their optimizers, which do not depend on the batch size. Shared tensors count once.

    Attributes:
        params: parameters, without embeddings.
        embeddings: weights of ``torch.nn.Embedding`` and ``EmbeddingBag``.
        buffers: buffers, such as running means.
        gradients: gradients of all trained parameters; none for embeddings with ``sparse=True``.
        buckets: buckets of DistributedDataParallel, as large as gradients unless gradients are views of them.
        optimizer: states of the optimizers.
        optimizer_temporary: the most temporary bytes of one optimizer's step.
    """

    params: int = 0
    embeddings: int = 0
    buffers: int = 0
    gradients: int = 0
    buckets: int = 0
    optimizer: int = 0
    optimizer_temporary: int = 0

    @property
    def weights(self) -> int:
        """Parameters, embeddings and buffers, which inference needs."""
        return self.params + self.embeddings + self.buffers

    @property
    def total(self) -> int:
        """The bytes that stay in memory from step to step, without `optimizer_temporary`."""
        return self.weights + self.gradients + self.buckets + self.optimizer

    def __str__(self) -> str:
        embeddings = f" (and embeddings {format_size(self.embeddings)})" if self.embeddings else ""
        return (
            f"{format_size(self.total)}: parameters {format_size(self.params)}{embeddings}, buffers "
            f"{format_size(self.buffers)}, gradients {format_size(self.gradients)}, optimizer "
            f"{format_size(self.optimizer)}"
        )


def model_bytes(models: Modules, optimizers: Optimizers = None, *, device_type: str = "cuda") -> ModelBytes:
    """Return the bytes of models and optimizers, by arithmetic; nothing is run.

    Args:
        models: one module, or several in a list or dict, on any device, "meta" included. Parameters without
            ``requires_grad`` have no gradients.
        optimizers: none, one or several: instances as `memload.planning.optimizer_bytes.optimizer_bytes` takes them,
            or what `optimizers_of` makes such of.
        device_type: the type of the device on which they will run.

    Raises:
        TypeError: an argument is neither a module nor an optimizer, nor a list or dict of such; or no optimizer can be
            made of a class or function.
        ValueError: the state of an optimizer cannot be computed beforehand.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 10)).to("meta")
        >>> print(model_bytes(model, torch.optim.Adam(model.parameters())))
        1.03 MB: parameters 2.6 kB (and embeddings 256 kB), buffers 0 B, gradients 259 kB, optimizer 517 kB
    """
    modules = modules_of(models)
    own = optimizers_of(optimizers, modules)
    steps = [optimizer_bytes(optimizer, device_type=device_type) for optimizer in own]
    tables = list(_embeddings(modules))
    parameters = nbytes_of(p for module in modules for p in module.parameters())
    embeddings = nbytes_of(table.weight for table in tables)
    return ModelBytes(
        params=parameters - embeddings,
        embeddings=embeddings,
        buffers=nbytes_of(b for module in modules for b in module.buffers()),
        gradients=_gradients(modules, {id(table.weight) for table in tables if table.sparse}),
        buckets=_buckets(modules),
        optimizer=sum(step.state for step in steps),
        optimizer_temporary=max((step.temporary for step in steps), default=0),
    )


@dataclass(frozen=True)
class ActivationBytes:
    """The bytes that a forward and backward pass allocated, without parameters and other earlier memory.

    Attributes:
        saved: storages that the forward pass saved for the backward pass, each once.
        forward_peak: the most bytes alive at one time in the forward pass, saved and temporary.
        peak: the most bytes alive at one time in both passes, without gradients of parameters.
        peak_with_gradients: the most bytes alive at one time, with gradients. Backward makes gradients while it frees
            activations, so this is mostly less than `peak` + `gradients`.
        gradients: gradients of parameters, at the end.
        held: tensors that the loop still holds at the end, such as outputs, while the optimizer makes its step.
        timeline: all allocations in order.
    """

    saved: int
    forward_peak: int
    peak: int
    peak_with_gradients: int
    gradients: int
    held: int
    timeline: Timeline

    def __repr__(self) -> str:
        return (
            f"ActivationBytes(saved={format_size(self.saved)}, forward_peak={format_size(self.forward_peak)}, "
            f"peak={format_size(self.peak)}, peak_with_gradients={format_size(self.peak_with_gradients)}, "
            f"gradients={format_size(self.gradients)})"
        )


def activation_bytes(
    loss: Loss | Sequence[Loss],
    models: Modules,
    *,
    inputs: Iterable[torch.Tensor] = (),
    accumulating: bool = False,
    limit: int | None = None,
    on_cpu: bool = False,
) -> ActivationBytes:
    """Return the bytes of ``loss()`` and its backward pass, by running both once on the model's device.

    The gradients of the models are afterwards as before. Buffers, such as running means, change as in any step.

    Args:
        loss: a function that runs the forward pass and returns the loss, a tensor of one number; or a tuple of it and
            of objects that the loop holds during the backward pass, such as outputs. Or several such functions, as for
            a GAN, which run one after the other, each with its backward pass.
        models: the modules whose gradients are counted apart from activations.
        inputs: tensors of the batch, which do not count as saved. Memory from before `loss` ran never counts as
            allocated.
        accumulating: whether gradients exist from the step before, as for all but the first batch of an accumulated
            step; the backward pass then needs room for a second gradient of one parameter at a time.
        limit: bytes that may be alive at one time.
        on_cpu: whether such steps run on a CPU, whose convolutions take more than their tensors.

    Raises:
        torch.OutOfMemoryError: more than `limit` would have been alive.
        ValueError: `loss` returned no single number that depends on a parameter.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        >>> x = torch.rand(1024, 256)
        >>> found = activation_bytes(lambda: model(x).mean(), model, inputs=[x])
        >>> found.saved  # the result of ReLU: 1,024 x 256 numbers
        1048576
    """
    modules = modules_of(models)
    parameters = [p for module in modules for p in module.parameters()]
    given = [*parameters, *(b for module in modules for b in module.buffers()), *inputs]
    return observed(
        [loss] if callable(loss) else loss, parameters, given, accumulating=accumulating, limit=limit, on_cpu=on_cpu
    )


def observed(
    losses: Iterable[Loss],
    parameters: Sequence[torch.Tensor],
    given: Iterable[torch.Tensor],
    *,
    accumulating: bool = False,
    limit: int | None = None,
    on_cpu: bool = False,
    peaks: OperationPeaks | None = None,
    told: Told | None = None,
) -> ActivationBytes:
    """Return the result of `activation_bytes` for given tensors, which need not belong to modules."""
    outside = {id(storage): storage for tensor in given for storage in storages(tensor)}
    saved = forward_peak = 0
    with (
        gradients_set_aside(parameters, zeros=accumulating),
        no_collection(),
        Allocations(limit, on_cpu=on_cpu, peaks=peaks, told=told) as seen,
    ):
        for loss in losses:
            result = begin = None  # drops those of the loss before
            kept: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(*_recording_hooks(kept, outside)):
                result = loss()
                begin = checked_loss(result)
            forward_peak = max(forward_peak, seen.peak)
            saved = max(saved, sum(map(seen.size_of, kept.values())))
            begin.backward()  # type: ignore[no-untyped-call]
        timeline = seen.timeline(p.grad for p in parameters if p.grad is not None)
        del result, begin
    gradients = int(timeline.nbytes[timeline.gradient].sum())
    return ActivationBytes(
        saved=saved,
        forward_peak=forward_peak,
        peak=int(timeline.live(gradients=False).max(initial=0)),
        peak_with_gradients=timeline.peak,
        gradients=gradients,
        held=timeline.kept - gradients,
        timeline=timeline,
    )


def _recording_hooks(
    kept: weakref.WeakValueDictionary[int, torch.UntypedStorage], outside: Mapping[int, torch.UntypedStorage]
) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Return hooks that record the saved storages, and neither keep them alive nor change saved tensors."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.update({id(storage): storage for storage in storages(tensor) if id(storage) not in outside})
        return tensor.detach()

    return pack, lambda tensor: tensor


def checked_loss(loss: Any) -> torch.Tensor:
    """Return the loss, or the first element of a tuple, after checking that a backward pass can begin there.

    Raises:
        ValueError: it is no tensor of one number, or depends on no trained parameter.
    """
    if isinstance(loss, tuple) and loss:
        loss = loss[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"the loss must be a tensor of one number, got {got}: let it return, say, a mean")
    if not loss.requires_grad:
        raise ValueError(
            "the loss depends on no parameter that is trained: is everything frozen, or detached, or under no_grad?"
        )
    return loss


@contextlib.contextmanager
def gradients_set_aside(parameters: Iterable[torch.Tensor], *, zeros: bool = False) -> Iterator[None]:
    """Remove the gradients of parameters, or replace them by zeros, and restore them at the end."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in before:
        parameter.grad = torch.zeros_like(parameter) if zeros and parameter.requires_grad else None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def modules_of(models: Modules) -> list[torch.nn.Module]:
    """Return the modules of a module, or of a list or dict of modules."""
    needed = "model must be a torch.nn.Module, or a list or dict of such, got"
    if isinstance(models, type):
        raise TypeError(f"{needed} a class: give {models.__name__}(...)")
    several: Any = [models] if isinstance(models, torch.nn.Module) else models
    several = several.values() if isinstance(several, Mapping) else several
    if not isinstance(several, Iterable):
        raise TypeError(f"{needed} {type(models).__name__}")
    found = list(several)
    for one in found:
        if not isinstance(one, torch.nn.Module):
            raise TypeError(f"{needed} one of {type(one).__name__}")
    return found


def optimizers_of(optimizers: Optimizers, modules: Sequence[torch.nn.Module]) -> list[torch.optim.Optimizer]:
    """Return the optimizers of an optimizer, or of a list or dict of optimizers; none for None.

    A class, its name in `torch.optim`, or a function of parameters is called with the trained parameters of all
    modules; as many of them as modules get those of one module each.

    Raises:
        TypeError: one is neither, or makes no optimizer of these parameters.
        ValueError: no class of `torch.optim` has this name.
    """
    if optimizers is None:
        return []
    several: Any = optimizers.values() if isinstance(optimizers, Mapping) else optimizers
    if callable(several) or isinstance(several, (str, torch.optim.Optimizer)) or not isinstance(several, Iterable):
        several = [several]
    several = list(several)
    one_each = len(several) == len(modules)
    return [
        one
        if isinstance(one, torch.optim.Optimizer)
        else optimizer_over(one, trained_parameters([modules[k]] if one_each else modules))
        for k, one in enumerate(several)
    ]


def trained_parameters(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
    """Return the parameters of modules that get gradients, each once."""
    return list({id(p): p for module in modules for p in module.parameters() if p.requires_grad}.values())


def _embeddings(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Embedding | torch.nn.EmbeddingBag]:
    for module in modules:
        for part in module.modules():
            if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
                yield part


def _gradients(modules: Iterable[torch.nn.Module], sparse: set[int]) -> int:
    return sum(p.numel() * p.element_size() for p in trained_parameters(modules) if id(p) not in sparse)


def _buckets(modules: Iterable[torch.nn.Module]) -> int:
    parts = [part for module in modules for part in module.modules()]
    replicated = [part for part in parts if isinstance(part, torch.nn.parallel.DistributedDataParallel)]
    return sum(_gradients([part], set()) for part in replicated if not part.gradient_as_bucket_view)
