"""What models take: parameters, gradients, optimizers by arithmetic; activations by running a step and watching it.

modules, optimizers -> ModelBytes          nothing is run, nothing allocated; modules may be on "meta"
a loss of a batch   -> ActivationBytes     forward and backward for real, on whatever device they are
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload.planning.allocations import Allocations, Timeline, nbytes_of, no_collection, storages
from memload.planning.optimizer_bytes import optimizer_bytes
from memload.sizes import format_size

Modules = torch.nn.Module | Iterable[torch.nn.Module] | Mapping[Any, torch.nn.Module]
Loss = Callable[[], Any]
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | Mapping[Any, torch.optim.Optimizer] | None


@dataclass(frozen=True)
class ModelBytes:
    """What models and their optimizers take whatever the batch size, in bytes. What is shared counts once.

    Attributes:
        params: of parameters, embeddings apart.
        embeddings: of the weights of ``torch.nn.Embedding`` and ``EmbeddingBag``.
        buffers: of buffers, such as running means.
        gradients: of those parameters that are trained, once backward has reached all of them; none for embeddings
            with ``sparse=True``.
        buckets: of DistributedDataParallel, as large as gradients unless these are views of them.
        optimizer: kept by the optimizers.
        optimizer_temporary: the most that a step of one of them takes for itself.
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
        """Parameters, embeddings and buffers: what inference needs."""
        return self.params + self.embeddings + self.buffers

    @property
    def total(self) -> int:
        """All that stays in memory from step to step; what an optimizer takes for a moment comes on top."""
        return self.weights + self.gradients + self.buckets + self.optimizer

    def __str__(self) -> str:
        embeddings = f" (and embeddings {format_size(self.embeddings)})" if self.embeddings else ""
        return (
            f"{format_size(self.total)}: parameters {format_size(self.params)}{embeddings}, buffers "
            f"{format_size(self.buffers)}, gradients {format_size(self.gradients)}, optimizer "
            f"{format_size(self.optimizer)}"
        )


def model_bytes(models: Modules, optimizers: Optimizers = None, *, device_type: str = "cuda") -> ModelBytes:
    """Return what models and optimizers take, by arithmetic: nothing is run.

    Args:
        models: one module, or several in a list or dict, on any device, "meta" included. Parameters without
            ``requires_grad`` have no gradients.
        optimizers: none, one or several, as `memload.planning.optimizer_bytes.optimizer_bytes` takes them.
        device_type: where all will run.

    Raises:
        TypeError: something else than modules and optimizers was given.
        ValueError: what an optimizer keeps cannot be found beforehand.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 10)).to("meta")
        >>> print(model_bytes(model, torch.optim.Adam(model.parameters())))
        1.03 MB: parameters 2.6 kB (and embeddings 256 kB), buffers 0 B, gradients 259 kB, optimizer 517 kB
    """
    modules = modules_of(models)
    own = optimizers_of(optimizers)
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
    """What a forward and backward pass took, in bytes; parameters and what was there before left out.

    Attributes:
        saved: by the forward pass for the backward one: each storage once, however many views of it were saved.
        forward_peak: the most that was alive at one time in the forward pass: what was saved, and temporaries.
        peak: the most that was alive at one time in both, gradients of parameters apart.
        peak_with_gradients: the most that was alive at one time, gradients included, which come into being one after
            the other while activations go: mostly less than `peak` + `gradients`.
        gradients: of parameters, at the end.
        held: what the loop still holds then, such as outputs, while the optimizer makes its step.
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
) -> ActivationBytes:
    """Return what ``loss()`` and its backward pass take, by running both once where the model is.

    Gradients of the models are afterwards what they were. Buffers, such as running means, change as in any step.

    Args:
        loss: runs the forward pass and returns the loss, a tensor of one number, or a tuple of it and of what the loop
            holds during the backward pass, such as outputs. Or several such functions, as a GAN has, which run one
            after the other, each with its backward pass.
        models: whose parameters' gradients are told apart from activations.
        inputs: tensors of the batch, which do not count as saved. What was there before `loss` ran never counts as
            allocated.
        accumulating: whether gradients are there from the step before, as with all but the first batch of a step with
            accumulation; the backward pass then needs room for a second one of each parameter at a time.
        limit: bytes that may be alive at one time.

    Raises:
        torch.OutOfMemoryError: more than `limit` would have been alive.
        ValueError: `loss` returned something else than one number that depends on a parameter.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        >>> x = torch.rand(1024, 256)
        >>> found = activation_bytes(lambda: model(x).mean(), model, inputs=[x])
        >>> found.saved  # what ReLU gave: 1,024 x 256 numbers
        1048576
    """
    modules = modules_of(models)
    parameters = [p for module in modules for p in module.parameters()]
    given = [*parameters, *(b for module in modules for b in module.buffers()), *inputs]
    return observed([loss] if callable(loss) else loss, parameters, given, accumulating=accumulating, limit=limit)


def observed(
    losses: Iterable[Loss],
    parameters: Sequence[torch.Tensor],
    given: Iterable[torch.Tensor],
    *,
    accumulating: bool = False,
    limit: int | None = None,
) -> ActivationBytes:
    """Return what `activation_bytes` does, of parameters and other tensors `given` that need not be a module's."""
    outside = {id(storage): storage for tensor in given for storage in storages(tensor)}
    saved = forward_peak = 0
    with gradients_set_aside(parameters, zeros=accumulating), no_collection(), Allocations(limit) as seen:
        for loss in losses:
            result = begin = None  # of the loss before
            kept: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(*_noting(kept, outside)):
                result = loss()
                begin = checked_loss(result)
            forward_peak = max(forward_peak, seen.peak)
            saved = max(saved, sum(storage.nbytes() for storage in kept.values()))
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


def _noting(
    kept: weakref.WeakValueDictionary[int, torch.UntypedStorage], outside: Mapping[int, torch.UntypedStorage]
) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Hooks that note which storages are saved, without keeping any alive or changing what is saved."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.update({id(storage): storage for storage in storages(tensor) if id(storage) not in outside})
        return tensor.detach()

    return pack, lambda tensor: tensor


def checked_loss(loss: Any) -> torch.Tensor:
    """Return the loss, the first of a tuple, if it is one number that a backward pass can begin at.

    Raises:
        ValueError: it is not.
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
    """Take the gradients of parameters away, or put zeros for them, and put them back at the end."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in before:
        parameter.grad = torch.zeros_like(parameter) if zeros and parameter.requires_grad else None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def modules_of(models: Modules) -> list[torch.nn.Module]:
    """Return the modules of one, a list or a dict of them."""
    return _several(models, torch.nn.Module, "model", "torch.nn.Module")


def optimizers_of(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    """Return the optimizers of none, one, a list or a dict of them."""
    return [] if optimizers is None else _several(optimizers, torch.optim.Optimizer, "optimizer", "torch optimizer")


def _several(given: Any, kind: Any, name: str, called: str) -> list[Any]:
    several = [given] if isinstance(given, kind) else given
    if isinstance(several, Mapping):
        several = several.values()
    if isinstance(given, type):
        made = f"{given.__name__}(model.parameters())" if kind is torch.optim.Optimizer else f"{given.__name__}(...)"
        raise TypeError(f"{name} must be a {called}, or a list or dict of such, got a class: give {made}")
    if not isinstance(several, Iterable):
        raise TypeError(f"{name} must be a {called}, or a list or dict of such, got {type(given).__name__}")
    found = list(several)
    for one in found:
        if not isinstance(one, kind):
            raise TypeError(f"{name} must be a {called}, or a list or dict of such, got one of {type(one).__name__}")
    return found


def _embeddings(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Embedding | torch.nn.EmbeddingBag]:
    for module in modules:
        for part in module.modules():
            if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
                yield part


def _gradients(modules: Iterable[torch.nn.Module], sparse: set[int]) -> int:
    trained = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
    return sum(p.numel() * p.element_size() for key, p in trained.items() if key not in sparse)


def _buckets(modules: Iterable[torch.nn.Module]) -> int:
    parts = [part for module in modules for part in module.modules()]
    replicated = [part for part in parts if isinstance(part, torch.nn.parallel.DistributedDataParallel)]
    return sum(_gradients([part], set()) for part in replicated if not part.gradient_as_bucket_view)
