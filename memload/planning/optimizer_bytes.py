"""What an optimizer keeps, and what its step takes for itself: a twin of it steps on tensors without memory.

the optimizer's class and settings, parameters and gradients on the device "meta" -> one step -> its state
                                                                                  -> what it allocated meanwhile
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memload.nested import mapped
from memload.planning.allocations import Allocations, nbytes_of, no_collection, storages, tensors_in

_AT_ONCE = ("cuda", "xpu", "mtia")  # devices on which torch's optimizers take all parameters at once unless told not to
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


@dataclass(frozen=True)
class OptimizerBytes:
    """What optimizers take, in bytes.

    Attributes:
        state: kept from the first step on, such as Adam's two moments.
        temporary: the most that one step takes beside it, and gives back.
    """

    state: int = 0
    temporary: int = 0


def optimizer_bytes(optimizer: torch.optim.Optimizer, *, device_type: str = "cuda") -> OptimizerBytes:
    """Return what an optimizer takes once it has made a step, of its class and settings alone: nothing is allocated.

    Args:
        optimizer: of any class whose ``step()`` needs no closure, with parameters anywhere, on "meta" too. It is not
            changed.
        device_type: where it will run. Unless told otherwise, torch's own take all parameters at once on "cuda", and
            then temporaries as large as all of these, and one after the other on "cpu".

    Raises:
        ValueError: its step needs a closure or cannot run on other tensors, and it has made none yet.

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


def kept_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return what an optimizer keeps already, in its state or beside it; parameters and gradients apart."""
    beside = [value for name, value in vars(optimizer).items() if name != "param_groups"]
    own = [p for group in optimizer.param_groups for p in group["params"]]
    given = {id(storage) for one in (*own, *(p.grad for p in own)) if one is not None for storage in storages(one)}
    kept = [one for one in tensors_in(beside) if not any(id(storage) in given for storage in storages(one))]
    return nbytes_of(kept)


def _stepped(twin: Any) -> OptimizerBytes:
    """Return what a twin takes for two steps, of which the first makes its state."""
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
    """Return the same of a class that may keep things anywhere: what is there after both steps, wherever it is."""
    with no_collection(), Allocations() as seen:
        for _ in range(2):
            type(twin).step(twin)
        return OptimizerBytes(seen.live, seen.peak - seen.live)


def _by_primes(optimizer: torch.optim.Optimizer, device_type: str) -> OptimizerBytes:
    """Return what an optimizer takes whose step looks at values: it steps on tiny parameters whose sides are primes.

    A side of its state that is such a prime stands for that side of the parameter.
    """
    twin = _twin(optimizer, device_type, _tiny)
    try:
        tiny = _stepped(twin)
    except Exception as error:
        if kept_bytes(optimizer):
            return OptimizerBytes()
        raise ValueError(
            f"what {type(optimizer).__name__} keeps cannot be found beforehand, since its step does not run on tensors "
            f"in place of its own ({type(error).__name__}: {error}): let it make one step, and ask again"
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
    """Return an optimizer of the same kind over tensors in place of its own, each with a gradient.

    Copying goes through the optimizer's own __getstate__, which leaves hooks, and what schedulers patched, behind.
    """
    return twin_over(optimizer, lambda one: [_twin_group(group, device_type, like) for group in one.param_groups])


def twin_over(optimizer: torch.optim.Optimizer, groups: Callable[[torch.optim.Optimizer], list[dict[str, Any]]]) -> Any:
    """Return an optimizer of the same kind and settings without what it keeps, over other groups of parameters.

    What it has in dicts and lists is copied, and optimizers that it goes around have twins: no step of the twin writes
    anything into the other's.
    """
    twin: Any = copy.copy(optimizer)
    for name, value in vars(optimizer).items():
        if isinstance(value, torch.optim.Optimizer):
            setattr(twin, name, twin_over(value, groups))
        elif name not in vars(twin) and name != "step" and next(tensors_in(value), None) is None:
            setattr(twin, name, mapped(value, lambda leaf: leaf))  # containers anew, the same in them
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
        how["fused"] = False  # which only runs where there is memory; it keeps the same
    return {**group, **how, "params": parameters}
