"""The steps whose memory is measured, and the state that is restored after them.

If a step fails because the sample has another dtype than the weights, such as uint8 pixels, the error says what to do.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from memload.nested import leaves_with_paths
from memload.planning.allocations import tensors_in
from memload.planning.precisions import PRECISIONS, precision_named
from memload.sizes import format_size

LossOf = Callable[[Any], Any]


def autocast_dtype(precision: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype in which autocast computes; None if it is off.

    Raises:
        ValueError: there is no such precision, or it is one of converted models.
    """
    name = "float32" if precision is None else precision_named(precision, converts=False)
    dtype = PRECISIONS[name][1]
    return None if dtype is None else getattr(torch, dtype)


def losses_of(
    models: Sequence[torch.nn.Module],
    loss: LossOf | Sequence[LossOf] | None,
    teachers: Sequence[torch.nn.Module],
    precision: torch.dtype | None,
    device_type: str,
) -> list[LossOf]:
    """Return the functions of a batch whose forward and backward passes make a step.

    They raise SampleDtypeError if they fail because the batch has another dtype than the weights.

    Raises:
        TypeError: there are several models and no loss, or a loss that cannot be called.
    """
    if loss is None:
        if len(models) != 1:
            raise TypeError(
                f"with {len(models)} models a step is not defined: give loss=, a function of a batch that "
                "returns the loss, or a list of such, each with a backward pass of its own"
            )
        given: list[LossOf] = [lambda batch: _usual_loss(models[0], teachers, batch)]
    else:
        given = list_of_losses(loss)
    losses = [telling_dtypes(one, models) for one in given]
    return losses if precision is None else [_autocast(one, precision, device_type) for one in losses]


def list_of_losses(loss: LossOf | Iterable[LossOf]) -> list[LossOf]:
    """Return the losses one by one.

    Raises:
        TypeError: one is no function, or cannot be called with a batch alone, as criteria cannot.
    """
    given = [loss] if callable(loss) or not isinstance(loss, Iterable) else list(loss)
    for one in given:
        if not callable(one):
            raise TypeError(f"loss must be a function of a batch, or a list of such, got {type(one).__name__}")
        try:
            called = one.forward if isinstance(one, torch.nn.Module) else one
            signature = inspect.signature(called, follow_wrapped=False)
        except (TypeError, ValueError):  # of a function that is not written in Python
            continue
        try:
            signature.bind(None)
        except TypeError:
            name = getattr(one, "__name__", type(one).__name__)
            raise TypeError(
                f"loss= is called with a batch of the loader alone, and {name}{signature} takes other arguments: give "
                'a function that calls the model, such as lambda batch: criterion(model(batch["x"]), batch["y"])'
            ) from None
    return given


def _autocast(loss: LossOf, precision: torch.dtype, device_type: str) -> LossOf:
    def cast(batch: Any) -> Any:
        with torch.autocast(device_type, precision):
            return loss(batch)

    return cast


def _usual_loss(model: torch.nn.Module, teachers: Sequence[torch.nn.Module], batch: Any) -> tuple[torch.Tensor, Any]:
    """Return the model's own loss, or a number that depends on its whole result; and the result."""
    with torch.no_grad():
        held = [_called(teacher, batch) for teacher in teachers]
    out = _called(model, batch)
    del held
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    if isinstance(own, torch.Tensor):
        return own, out
    parts = [part.mean() for part in tensors_in(out) if part.requires_grad]
    if not parts:
        raise ValueError(
            f"{type(model).__name__} returned nothing that depends on its parameters: give loss=, a function of a batch"
        )
    return torch.stack([part.float() for part in parts]).sum(), out


def _called(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        named = _named(model, batch)
        if named:
            _check_call(model, f"the fields {', '.join(named)} of a batch", **named)
            return model(**named)
        batch = list(batch.values())
    if type(batch) in (list, tuple):
        _check_call(model, f"the first of the {len(batch)} parts of a batch", batch[0])
        return model(batch[0])
    return model(batch)


def _signature(model: torch.nn.Module) -> inspect.Signature:
    parallel = torch.nn.parallel.DistributedDataParallel
    return inspect.signature((model.module if isinstance(model, parallel) else model).forward)


def _check_call(model: torch.nn.Module, given: str, *parts: Any, **named: Any) -> None:
    """Raise TypeError if a model does not take these; `given` says what they are."""
    try:
        _signature(model).bind(*parts, **named)
    except TypeError as error:
        raise TypeError(
            f"{type(model).__name__} was given {given}, and its forward has a {error}: give loss=, a function of a "
            "batch that calls the model as your loop does"
        ) from None


def _named(model: torch.nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a batch that a model's forward names; all fields if it takes any keyword."""
    parameters = _signature(model).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return batch
    names = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return {name: part for name, part in batch.items() if name in names}


@contextlib.contextmanager
def left_as_they_were(
    modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer] = (), *, stepping: bool = False
) -> Iterator[None]:
    """Restore buffers, gradients and random generators at the end, and with `stepping` parameters and optimizers.

    The generators are the global ones of torch, numpy and Python, and attributes of modules. Copies of buffers, and
    with `stepping` of parameters and optimizer states, are in RAM meanwhile.
    """
    parameters = [p for module in modules for p in module.parameters()]
    values = [*(p for p in parameters if stepping and p.requires_grad), *_buffers(modules)]
    values = [tensor for tensor in values if not tensor.is_meta]
    copies = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in values]
    gradients = [(p, p.grad) for p in parameters]
    kept = [_OptimizerState(optimizer) for optimizer in optimizers] if stepping else []
    for p, _ in gradients:
        p.grad = None
    with _generators(modules):
        try:
            with each_rank_by_itself(modules):
                yield
        finally:
            with torch.no_grad():
                for tensor, before in copies:
                    tensor.copy_(before)
            for p, gradient in gradients:
                p.grad = gradient
            for state in kept:
                state.set_state()


@contextlib.contextmanager
def each_rank_by_itself(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Disable the exchange of gradients and buffers: a rank that ran out of memory would leave others waiting."""
    parts = [part for module in modules for part in module.modules()]
    replicated = [part for part in parts if isinstance(part, torch.nn.parallel.DistributedDataParallel)]
    sends = [part.broadcast_buffers for part in replicated]
    with contextlib.ExitStack() as stack:
        for part in replicated:
            stack.enter_context(part.no_sync())
            part.broadcast_buffers = False
        try:
            yield
        finally:
            for part, sent in zip(replicated, sends, strict=True):
                part.broadcast_buffers = sent


class _OptimizerState:
    """A copy of an optimizer's state, tensor by tensor, and of the settings of its groups."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {p: {name: _copied(value) for name, value in own.items()} for p, own in optimizer.state.items()}
        self._groups = [{k: copy.copy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]

    def set_state(self) -> None:
        state = self._optimizer.state
        for p in [p for p in state if p not in self._state]:
            del state[p]
        for p, own in self._state.items():
            state[p] = {name: _restored(value) for name, value in own.items()}
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(before)


def _copied(value: Any) -> Any:
    """Return a tensor with a copy of its values, or a copy of any other value."""
    return (value, value.detach().to("cpu", copy=True)) if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _restored(kept: Any) -> Any:
    if isinstance(kept, tuple) and len(kept) == 2 and all(isinstance(part, torch.Tensor) for part in kept):
        with torch.no_grad():
            kept[0].copy_(kept[1])
        return kept[0]
    return kept


@contextlib.contextmanager
def _generators(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    own = [value for m in modules for part in m.modules() for value in vars(part).values()]
    states = [(value, value.get_state()) for value in own if isinstance(value, torch.Generator)]
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global one is meant
    try:
        with torch.random.fork_rng(devices=_cuda_devices(modules)):
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        for generator, state in states:
            generator.set_state(state)


def _cuda_devices(modules: Iterable[torch.nn.Module]) -> list[int]:
    devices = {p.device for module in modules for p in module.parameters()}
    return sorted(device.index or 0 for device in devices if device.type == "cuda")


def _buffers(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    return [buffer for module in modules for buffer in module.buffers()]


# Words of torch's errors about dtypes.
_OF_DTYPES = re.compile(r"dtype|scalar type|[Ii]nput type|same type|'(Byte|Char|Short|UInt16)'")
_UNUSUAL = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.float64,
)  # for weights of another dtype


class SampleDtypeError(ValueError):
    """The sample has other dtypes than the batches that the model gets in the loop."""


def telling_dtypes(loss: Callable[[Any], Any], models: Sequence[torch.nn.Module]) -> Callable[[Any], Any]:
    """Return the function, with an error that says what to do if dtypes make it fail."""

    def checked(batch: Any) -> Any:
        try:
            return loss(batch)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            advice = _advice(batch, models) if _OF_DTYPES.search(str(error)) else ""
            if not advice:
                raise
            first = str(error).partition("\n")[0]
            raise SampleDtypeError(f"{advice} ({type(error).__name__}: {first})") from error

    return checked


def telling_models(loss: LossOf, known: Iterable[torch.Tensor]) -> LossOf:
    """Return the function, whose first call raises an error if it trains parameters that are not among the known ones.

    Raises:
        ValueError: from the function that is returned; says how many bytes they take.
    """
    ids = {id(one) for one in known}
    checked = False

    def called(batch: Any) -> Any:
        nonlocal checked
        result = loss(batch)
        if not checked:
            checked = True
            unknown = [one for one in _trained_by(result) if id(one) not in ids]
            if unknown:
                nbytes = sum(one.nbytes for one in unknown)
                raise ValueError(
                    f"the loss trains parameters of {format_size(nbytes)} that belong to none of the models, the "
                    f"largest of shape {tuple(max(unknown, key=torch.Tensor.numel).shape)}: give all models that it "
                    "trains, in a list or a dict"
                )
        return result

    return called


def _trained_by(result: Any) -> list[torch.nn.Parameter]:
    """Return the parameters to which the backward pass of a loss adds gradients."""
    value = result[0] if isinstance(result, tuple) and result else result
    waiting = [value.grad_fn] if isinstance(value, torch.Tensor) else []
    seen, found = set(), []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.nn.Parameter):
            found.append(variable)
        waiting += [following for following, _ in node.next_functions]
    return found


def _advice(batch: Any, models: Sequence[torch.nn.Module]) -> str:
    """Return a sentence on an unusual dtype in the batch and on what to give instead; empty without one."""
    weights = next((p.dtype for model in models for p in model.parameters() if p.is_floating_point()), None)
    found = [(name, t.dtype) for name, t in _named_tensors(batch) if t.dtype in _UNUSUAL and t.dtype != weights]
    if weights is None or not found:
        return ""
    name, dtype = found[0]
    cast = f'cast={{"{name or "image"}": memload.Cast({weights})}}'
    what = f"{name!r} of the batch" if name else "the batch"
    return (
        f"{what} is {_word(dtype)}, the weights are {_word(weights)}: give it as the model gets it in the loop, as a "
        f"FastLoader with {cast} gives it (memload.plan takes this cast= itself), or a loss= that casts"
    )


def _named_tensors(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor with its name: the last key on its path that is a text, or ""."""
    for path, leaf in leaves_with_paths(batch):
        if isinstance(leaf, torch.Tensor):
            yield next((key for key in reversed(path) if isinstance(key, str)), ""), leaf


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
