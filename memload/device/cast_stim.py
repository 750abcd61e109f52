"""memload.cast_stim: casts uint8 pixels to normalised floating numbers, as an operation on tensors.

All paths (C++ on the CPU, the CUDA kernel, the fused gather of a loader) follow this rule to the bit; casts/rule.py has
all other rules of a `Cast`:

    y = x.to(dtype)
    y = (y - 127) / 255.0      # if norm_removed and x is uint8
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memload import _core
from memload.casts.rule import Cast, as_cast
from memload.device.cuda_module import cuda_module, kernels_run_on
from memload.dtypes import DTypeLike, code_of
from memload.tensors import is_dense

_KERNEL_TARGETS = (torch.bfloat16, torch.float16, torch.float32)
_TARGETS = (*_KERNEL_TARGETS, torch.float64)

# Results above this size do not fit into a last level cache beside anything else, and are written past it.
_STREAMING_BYTES = 64 << 20


def cast_stim(
    x: torch.Tensor, norm_removed: bool, dtype: DTypeLike = torch.float32, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return uint8 pixels as ``dtype``, in one pass over memory, bit-identical to ``Cast(dtype, norm_removed).apply``.

    Runs on the CPU with up to ``torch.get_num_threads()`` threads, and on CUDA on the current stream of the device of
    ``x`` (as torch operations, with one warning, where `memload.device.cuda_module.cuda_state` says so). Works inside
    ``torch.compile(fullgraph=True)``. A floating ``x`` is only converted, as by ``x.to(dtype)``, gradient included.

    Args:
        x: pixels of any shape and strides, uint8; or floating, which is returned as it is if it has ``dtype`` already.
            Contiguous and other dense layouts (channels_last) are fast, others are copied first.
        norm_removed: uint8 pixels become (x - 127) / 255 instead of x.
        dtype: torch.bfloat16, torch.float16, torch.float32 or torch.float64 (on CUDA through torch operations); or its
            name, as `Cast` takes it.
        out: where to put the result: shape, ``dtype`` and device as the result's, any strides, no memory in common with
            ``x``. Saves the allocation, which on the CPU costs more than the cast. One that requires a gradient is
            written to as by ``copy_``.

    Returns:
        A tensor with the shape and device of ``x`` and the strides that ``x.to(dtype)`` would have; or ``out``.

    Raises:
        TypeError: ``x`` is no tensor, or neither uint8 nor floating, or ``dtype`` is none of the four.
        ValueError: ``x`` is sparse, or ``out`` does not fit.
        RuntimeError: ``out`` is a leaf that requires a gradient, as of any operation in place while autograd is on.

    Example:
        >>> cast_stim(torch.tensor([[127, 254]], dtype=torch.uint8), norm_removed=True)
        tensor([[0.0000, 0.4980]])
    """
    if not isinstance(dtype, torch.dtype) or dtype not in _TARGETS or not isinstance(norm_removed, bool):
        rule = Cast(as_cast(dtype).dtype, norm_removed)  # raises the error for wrong arguments
        dtype, norm_removed = rule.dtype, rule.norm_removed
    for what, given in (("", x), ("out= as ", out)):
        if not isinstance(given, torch.Tensor) and (given is not None or not what):
            raise TypeError(f"cast_stim takes {what}a tensor, got {type(given).__name__}; torch.as_tensor makes one")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise TypeError(f"cast_stim takes uint8 or floating tensors, got {x.dtype}; convert others by x.to(...)")
    if x.layout != torch.strided:
        raise ValueError(f"cast_stim takes strided tensors, got {x.layout}; use x.to_dense()")
    if out is not None:
        return _cast_into(out, x, norm_removed, dtype)
    if x.dtype != torch.uint8:
        return x.to(dtype)
    result: torch.Tensor = _CAST(x, norm_removed, dtype)
    return result


def _cast_into(out: torch.Tensor, x: torch.Tensor, norm_removed: bool, dtype: torch.dtype) -> torch.Tensor:
    check_out(
        ("shape", tuple(out.shape), tuple(x.shape)),
        ("dtype", out.dtype, dtype),
        ("device", out.device, x.device),
        ("layout", out.layout, x.layout),
    )
    if x.dtype != torch.uint8:
        return out.copy_(x)
    if out.requires_grad:
        return out.copy_(_CAST(x, norm_removed, dtype))  # autograd records the copy, or refuses it
    _CAST_INTO(x, norm_removed, out)
    return out


def check_out(*parts: tuple[str, Any, Any]) -> None:
    """Raise ValueError unless ``out`` has the form of the result; each part is (name, that of out, the result's)."""
    for name, got, expected in parts:
        if got != expected:
            raise ValueError(f"out does not fit: its {name} is {got}, the result's is {expected}")


def _cast_anew(x: torch.Tensor, norm_removed: bool, dtype: torch.dtype) -> torch.Tensor:
    out = _empty_as_converted(x, dtype)
    _fill(out, x, norm_removed)
    return out


def _cast_out(x: torch.Tensor, norm_removed: bool, out: torch.Tensor) -> None:
    if _overlap(_extent(x), _extent(out)):
        raise ValueError("out shares memory with x: give it memory of its own")
    if is_dense(out):
        _fill(out, x, norm_removed)
        torch.autograd.graph.increment_version(out)  # native code wrote to it, which autograd cannot see
    else:
        out.copy_(_cast_anew(x, norm_removed, out.dtype))


def _extent(x: torch.Tensor) -> range:
    """Return the addresses from the first to the last byte of a tensor."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return range(x.data_ptr(), x.data_ptr() + (last + 1) * x.itemsize if x.numel() else x.data_ptr())


def _overlap(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def _define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an operator of memload, with the form of its result for torch's tracers.

    torch.library.custom_op is not used, since its wrapper takes several times as long as the rest of a call.
    """
    torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(name, "default", run)
    torch.library.register_fake(name, fake)


_define(
    "memload::cast_stim",
    "(Tensor x, bool norm_removed, ScalarType dtype) -> Tensor",
    _cast_anew,
    lambda x, _norm_removed, dtype: x.to(dtype),
)
_define(
    "memload::cast_stim_out",
    "(Tensor x, bool norm_removed, Tensor(a!) out) -> ()",
    _cast_out,
    lambda _x, _norm_removed, _out: None,
)
_CAST, _CAST_INTO = torch.ops.memload.cast_stim.default, torch.ops.memload.cast_stim_out.default


def cast_pixels(x: torch.Tensor, rule: Cast, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the result of `cast_stim` without torch's dispatcher, for code that is neither traced nor mapped.

    Args:
        x: pixels on the CPU or a CUDA device.
        rule: a plain cast.
        out: memory for the result: dense, with the result's shape, dtype and device.
    """
    if type(x) is not torch.Tensor or x.dtype != torch.uint8 or x.layout != torch.strided:
        return cast_stim(x, rule.norm_removed, rule.dtype, out=out)
    if out is None:
        return _cast_anew(x, rule.norm_removed, rule.dtype)
    _fill(out, x, rule.norm_removed)
    return out


def _empty_as_converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return uninitialised memory with the layout of ``x.to(dtype)``; always dense."""
    if is_dense(x):
        return torch.empty_like(x, dtype=dtype)
    shadow = x.to("meta").to(dtype)  # gives the strides of torch's own result, without data
    return torch.empty_strided(shadow.shape, shadow.stride(), dtype=dtype, device=x.device)


def _strides(x: torch.Tensor) -> list[tuple[int, int]]:
    """Return (stride, size) of the dimensions with more than one element."""
    return [(stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]


def _fill(out: torch.Tensor, x: torch.Tensor, norm_removed: bool) -> None:
    """Cast ``x`` into the dense ``out`` as one run of elements, in the order in which ``out`` has them."""
    if x.numel() == 0:
        return
    if not (x.is_contiguous() and out.is_contiguous()) and _strides(x) != _strides(out):
        x = torch.empty_strided(out.shape, out.stride(), dtype=x.dtype, device=x.device).copy_(x)
    if x.device.type == "cpu":
        _fill_on_cpu(out, x, norm_removed)
    elif x.device.type == "cuda":
        _fill_on_cuda(out, x, norm_removed)
    else:
        out.copy_(Cast(out.dtype, norm_removed).apply(x))


def _fill_on_cpu(out: torch.Tensor, x: torch.Tensor, norm_removed: bool) -> None:
    _core.cast(
        x.data_ptr(),
        out.data_ptr(),
        x.numel(),
        code_of(x.dtype),
        code_of(out.dtype),
        norm_removed,
        streaming=out.nbytes >= _STREAMING_BYTES,
        threads=torch.get_num_threads(),
    )


def _fill_on_cuda(out: torch.Tensor, x: torch.Tensor, norm_removed: bool) -> None:
    if not kernels_run_on(x.device.index) or out.dtype not in _KERNEL_TARGETS:
        out.copy_(Cast(out.dtype, norm_removed).apply(x))
        return
    stream = torch.cuda.current_stream(x.device).cuda_stream
    cuda_module().cast_stim(
        x.data_ptr(), out.data_ptr(), x.numel(), code_of(out.dtype), norm_removed, x.device.index, stream
    )
