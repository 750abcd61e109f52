"""The cast that a pipeline of torchvision does, read from the attributes of its transforms.

torchvision is not imported: a transform of its classes exists only where somebody else has imported it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from memload.casts.rule import Cast

_MODULES = ("torchvision.transforms", "torchvision.transforms.v2")
_NEUTRAL = ("Identity", "ToPureTensor")


def cast_of_steps(fn: Any, dtype: torch.dtype) -> Cast | None:
    """Return the cast that torchvision's `ToDtype`, `ConvertImageDtype` and `Normalize` do one after the other.

    Args:
        fn: such a transform, or a `Compose`, an ``nn.Sequential`` or a ``functools.partial`` without arguments of them.
        dtype: the dtype of the elements that it is given.

    Returns:
        The cast, for images of the shape (C, H, W); None if a step is of another class, or the order of the steps is
        not that of a cast.
    """
    scale: float | None = None
    mean = std = None
    target = dtype
    for step in _steps(fn):
        name = _name_of(step)
        if name in ("ToDtype", "ConvertImageDtype") and isinstance(step.dtype, torch.dtype):
            if mean is None and not dtype.is_floating_point and getattr(step, "scale", name != "ToDtype"):
                scale = 1 / torch.iinfo(dtype).max if target == dtype else scale
            target = step.dtype
        elif name == "Normalize" and mean is None:
            mean, std = _numbers(step.mean), _numbers(step.std)
        elif name not in _NEUTRAL:
            return None
    if not target.is_floating_point or (target == dtype and mean is None):
        return None
    return Cast(target, scale=scale, mean=mean, std=std, channels=-3 if mean is not None else None)


def _numbers(given: Any) -> tuple[float, ...]:
    """Return the numbers for the channels as floats; each is rounded to float32 where it is used."""
    return tuple(float(one) for one in given)


def _steps(fn: Any) -> Iterator[Any]:
    if isinstance(fn, functools.partial) and not fn.args and not fn.keywords:
        yield from _steps(fn.func)
    elif type(fn) is torch.nn.Sequential:
        for step in fn:
            yield from _steps(step)
    elif _name_of(fn) == "Compose":
        for step in fn.transforms:
            yield from _steps(step)
    else:
        yield fn


def _name_of(step: Any) -> str | None:
    """Return the name of the class of torchvision that this is an object of; None for any other, subclasses too."""
    for name in _MODULES:
        if type(step) is getattr(sys.modules.get(name), type(step).__name__, None):
            return type(step).__name__
    return None
