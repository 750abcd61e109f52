"""The bytes of an optimizer's state, and those of its step: a twin of it makes a step on tensors without memory.

the optimizer's class and settings, parameters and gradients on the device "meta" -> one step -> its state
                                                                                  -> its temporary allocations
"""

from __future__ import annotations

import copy
import difflib
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memload.errors import first_line
from memload.nested import mapped
from memload.planning.allocations import Allocations, nbytes_of, no_collection, storages, tensors_in

_AT_ONCE = ("cuda", "xpu", "mtia")  # devices on which torch's optimizers update all parameters at once by default
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


@dataclass(frozen=True)
class OptimizerBytes:
    """The bytes of optimizers.

    Attributes:
        state: memory that stays from the first step on, such as Adam's two moments.
        temporary: the most further bytes of one step, which it frees.
    """

    state: int = 0
    temporary: int = 0


def optimizer_bytes(optimizer: torch.optim.Optimizer, *, device_type: str = "cuda") -> OptimizerBytes:
    """Return the bytes of an optimizer after its first step, from its class and settings; nothing is allocated.

    Args:
        optimizer: an optimizer whose ``step()`` needs no closure, with parameters on any device, "meta" included. It
            is not changed.
        device_type: the type of the device on which it will run. By default, torch's own optimizers update all
            parameters at once on "cuda", with temporaries as large as all of these, and one by one on "cpu".

    Raises:
        ValueError: its step needs a closure or cannot run on other tensors, and it has not made a step yet.

    Example:
        >>> model = torch.nn.Linear(100, 10, device="meta")  # 1,010 parameters of 4 bytes, and two moments of each
        >>> optimizer_bytes(torch.optim.AdamW(model.parameters())).state
        8088
    """
    try:
        found = _stepped(_twin(optimizer, device_type, _without_memory))
    except Exception:
        found = _by_primes(optimizer, device_type)
    had = kept_bytes(optimizer)
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return OptimizerBytes(max(found.state, had), 0 if fused else found.temporary)


def optimizer_over(kind: Any, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that a class, its name in `torch.optim`, or a function of parameters makes.

    Raises:
        TypeError: it makes no optimizer of these parameters.
        ValueError: no class of `torch.optim` has this name.
    """
    if isinstance(kind, str):
        kind = optimizer_named(kind)
    name = getattr(kind, "__name__", type(kind).__name__)
    if not callable(kind):
        raise TypeError(f"optimizer is a torch optimizer, its class, or a function of parameters; got {name}")
    try:
        optimizer = kind(parameters)
    except TypeError as error:
        raise TypeError(
            f"optimizer={name} cannot be made of parameters alone ({first_line(error)}): give an instance, or a "
            f"function such as lambda parameters: {name}(parameters, lr=0.1)"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer={name} made a {type(optimizer).__name__}, which is no torch.optim.Optimizer")
    return optimizer


def optimizer_named(name: str) -> type[torch.optim.Optimizer]:
    """Return the optimizer of `torch.optim` that has a name, such as "AdamW".

    Raises:
        ValueError: there is none.
    """
    known = {one: kind for one, kind in vars(torch.optim).items() if isinstance(kind, type) and one != "Optimizer"}
    if name in known:
        return known[name]
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    meant = f"; did you mean {by_lower[near[0]]}?" if near else f"; it has {', '.join(known)}"
    raise ValueError(f"torch.optim has no optimizer {name!r}{meant}")


def kept_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes that an optimizer has already, without parameters and gradients."""
    attributes = [value for name, value in vars(optimizer).items() if name != "param_groups"]
    own = [p for group in optimizer.param_groups for p in group["params"]]
    given = {id(storage) for one in (*own, *(p.grad for p in own)) if one is not None for storage in storages(one)}
    kept = [one for one in tensors_in(attributes) if not any(id(storage) in given for storage in storages(one))]
    return nbytes_of(kept)


def _stepped(twin: Any) -> OptimizerBytes:
    """Return the bytes of two steps of a twin, of which the first makes its state."""
    if not type(twin).__module__.startswith("torch.optim"):
        return _stepped_elsewhere(twin)
    state = temporary = 0
    with no_collection():
        for _ in range(2):
            with Allocations() as seen:
                type(twin).step(twin)
            made = nbytes_of(tensors_in(twin.state)) - state
            state += made
            temporary = max(temporary, seen.peak - made)
    return OptimizerBytes(state, temporary)


def _stepped_elsewhere(twin: Any) -> OptimizerBytes:
    """Return the bytes of two steps of a class that may keep its state anywhere: all memory alive after both steps."""
    with no_collection(), Allocations() as seen:
        for _ in range(2):
            type(twin).step(twin)
        return OptimizerBytes(seen.live, seen.peak - seen.live)


def _by_primes(optimizer: torch.optim.Optimizer, device_type: str) -> OptimizerBytes:
    """Return the bytes of an optimizer whose step reads values, by a step on tiny parameters whose sides are primes.

    A side of its state that equals such a prime stands for that side of the parameter.
    """
    twin = _twin(optimizer, device_type, _tiny)
    try:
        tiny = _stepped(twin)
    except Exception as error:
        if kept_bytes(optimizer):
            return OptimizerBytes()
        raise ValueError(
            f"the state of {type(optimizer).__name__} cannot be computed beforehand, since its step does not run on "
            f"other tensors ({type(error).__name__}: {error}): let it make one step, then call this again"
        ) from error
    parameters = [p for group in twin.param_groups for p in group["params"]]
    own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    state = 0
    for small, large in zip(parameters, own, strict=True):
        sides = dict(zip(small.shape, large.shape, strict=True))
        for tensor in tensors_in(twin.state.get(small, {})):
            state += tensor.element_size() * math.prod(sides.get(side, side) for side in tensor.shape)
    return OptimizerBytes(state, tiny.temporary * nbytes_of(own) // max(1, nbytes_of(parameters)))


def _tiny(parameter: torch.Tensor) -> torch.Tensor:
    sides = [prime if side > 1 else 1 for side, prime in zip(parameter.shape, _PRIMES, strict=False)]
    return torch.ones(sides, dtype=parameter.dtype)


def _without_memory(parameter: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(parameter, device="meta")


def _twin(optimizer: torch.optim.Optimizer, device_type: str, like: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return an optimizer of the same class over other tensors, each with a gradient.

    Copying uses the optimizer's own __getstate__, which leaves out hooks and patches of schedulers.
    """
    return twin_over(optimizer, lambda one: [_twin_group(group, device_type, like) for group in one.param_groups])


def twin_over(optimizer: torch.optim.Optimizer, groups: Callable[[torch.optim.Optimizer], list[dict[str, Any]]]) -> Any:
    """Return an optimizer of the same class and settings without state, over other groups of parameters.

    Its dicts and lists are copied, and optimizers that it wraps have twins; no step of the twin changes the original.
    """
    twin: Any = copy.copy(optimizer)
    for name, value in vars(optimizer).items():
        if isinstance(value, torch.optim.Optimizer):
            setattr(twin, name, twin_over(value, groups))
        elif name not in vars(twin) and name != "step" and next(tensors_in(value), None) is None:
            setattr(twin, name, mapped(value, lambda leaf: leaf))  # new containers, the same leaves
    twin.state = defaultdict(dict)
    twin.param_groups = groups(optimizer)
    return twin


def _twin_group(
    group: dict[str, Any], device_type: str, like: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    parameters = []
    for parameter in group["params"]:
        if parameter.requires_grad:
            own = torch.nn.Parameter(like(parameter.detach()))
            own.grad = torch.zeros_like(own)
            parameters.append(own)
    how = {}
    if "foreach" in group:
        chosen = group["foreach"]
        how["foreach"] = not group.get("fused") and (device_type in _AT_ONCE if chosen is None else chosen)
    if group.get("fused"):
        how["fused"] = False  # fused steps need real memory; the state is the same
    return {**group, **how, "params": parameters}
