"""Memory for large tensors that a transform makes: what casts and arithmetic give lies where a tensor died before.

Fresh memory is what such functions mostly pay for. A batch of 26 MB as float32 takes 50 ms of processor time in memory
that the C library has to ask for anew, as it does for blocks of this size, and 6 in memory that was used before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from memload.engine.collating import FieldSlots
from memload.engine.transforms.seeding import Randomness
from memload.tensors import is_dense

LEAST_REUSED = 1 << 20
"""Bytes of a result, from which on it is worth some microseconds."""

_REAL = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}


class BufferReuse(Randomness):
    """The random numbers of what a thread is at, and memory for what it makes. Entered by ``with``; for one thread.

    The results of torch's casts and of its arithmetic are the same to the bit, dtype and strides included. Where
    anything about a call is out of the ordinary, torch does it as ever.

    Args:
        memory: lends it, to other threads, too.
        least: bytes of a result, from which on it is.
    """

    def __init__(self, memory: FieldSlots, least: int = LEAST_REUSED) -> None:
        super().__init__()
        self._memory, self._least = memory, least

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make large tensors in memory that is used again."""
        how = _MADE.get(func)
        if how is not None and not torch.compiler.is_compiling() and self._may_be_large(*args):
            made = how(self._like, *args, **(kwargs or {}))
            if made is not None:
                return made
        return super().__torch_function__(func, types, args, kwargs)

    def _may_be_large(self, x: Any = None, *_: Any) -> bool:
        """Whether anything made of it may be: what most calls are not, and soon done with."""
        return type(x) is torch.Tensor and x.numel() * torch.float64.itemsize >= self._least

    def _like(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory for a tensor of this dtype that lies as `x` does; None if it is too small to be worth it."""
        nbytes = x.numel() * dtype.itemsize
        if nbytes < self._least:
            return None
        # By the power of two: batches that differ a little find the memory of each other.
        memory = self._memory.take(("made", nbytes.bit_length()), nbytes).view(dtype)
        return memory.as_strided(x.shape, x.stride()).data  # to autograd no view


_Like = Callable[[torch.Tensor, torch.dtype], torch.Tensor | None]


def _is_plain(x: Any) -> bool:
    """Whether this is a tensor of numbers on the CPU, and nothing watches what is made of it."""
    if type(x) is not torch.Tensor or x.device.type != "cpu" or x.layout is not torch.strided:
        return False
    if x.dtype not in _REAL or x.requires_grad or not _has_storage(x):
        return False
    return torch.autograd.forward_ad.unpack_dual(x).tangent is None  # type: ignore[no-untyped-call]


def _has_storage(x: torch.Tensor) -> bool:
    """Not so within functions of torch.func, such as vmap."""
    try:
        x.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _cast(like: _Like, x: Any, dtype: Any = None, *more: Any, **others: Any) -> torch.Tensor | None:
    """What torch makes of a dense tensor lies as that does."""
    if more or others or not (isinstance(dtype, torch.dtype) and dtype in _REAL):
        return None
    if not _is_plain(x) or x.dtype == dtype or not is_dense(x):
        return None
    found = like(x, dtype)
    return None if found is None else found.copy_(x)


def _arithmetic(
    function: Callable[..., torch.Tensor], like: _Like, x: Any, other: Any = None, *more: Any, **others: Any
) -> torch.Tensor | None:
    """What torch makes of a dense tensor and of what is broadcast to it lies as that does, where that is one way."""
    if more or others or not (_is_plain(x) and _goes_into(other, x)):
        return None
    if not is_dense(x) or (1 in x.shape and not (_lies_as_usual(x) and _lies_as_usual(other))):
        return None
    dtype = torch.result_type(x, other)
    if function is torch.div and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    found = like(x, dtype)
    return None if found is None else function(x, other, out=found)


def _lies_as_usual(x: Any) -> bool:
    """Whether strides are those of a new tensor, or it is a number; for axes of one element others are possible."""
    if not isinstance(x, torch.Tensor):
        return True
    return x.stride() == tuple(math.prod(x.shape[axis + 1 :]) for axis in range(x.dim()))


def _goes_into(other: Any, x: torch.Tensor) -> bool:
    """Whether what is made of both is of the shape of `x`."""
    if type(other) in (int, float):
        return True
    if not _is_plain(other) or other.dim() > x.dim():
        return False
    return all(own in (1, side) for own, side in zip(reversed(other.shape), reversed(x.shape), strict=False))


def _to(dtype: torch.dtype) -> Callable[..., torch.Tensor | None]:
    return lambda like, x, *more, **others: _cast(like, x, dtype, *more, **others)


_ARITHMETIC: dict[Callable[..., torch.Tensor], tuple[Any, ...]] = {
    torch.add: (torch.Tensor.add,),
    torch.sub: (torch.Tensor.sub,),
    torch.mul: (torch.Tensor.mul,),
    torch.div: (torch.Tensor.div, torch.Tensor.true_divide),
}

_MADE: Mapping[Any, Callable[..., torch.Tensor | None]] = {
    torch.Tensor.to: _cast,
    torch.Tensor.float: _to(torch.float32),
    torch.Tensor.half: _to(torch.float16),
    torch.Tensor.bfloat16: _to(torch.bfloat16),
    torch.Tensor.double: _to(torch.float64),
    **{
        name: functools.partial(_arithmetic, function)
        for function, names in _ARITHMETIC.items()
        for name in (function, *names)
    },
}
