"""What a step takes on a GPU beside its tensors: workspaces of cuBLAS, and the scratch memory of fused attention.

    compute capability, environment -> workspaces that stay from the first product of matrices on
    shapes of queries and keys      -> bytes that the backward pass of attention has while it runs

torch's caching allocator serves both, so that they are in ``torch.cuda.max_memory_allocated``. Tensors without memory
are on the CPU, where torch computes attention and dropout by other operations: `kernels_of` takes those of a GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MIB = 1 << 20
_LARGE, _SMALL = 32 * _MIB, 2 * 4 * _MIB + 8 * 16 * 1024
_LT = _MIB
_HOPPER = 9
THREADS = 2
"""The threads that multiply matrices in a loop: the one that runs the forward pass, and autograd's for this GPU."""

_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
_EFFICIENT_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
_HALF = (torch.float16, torch.bfloat16)
_FLOAT, _LOCK = 4, 16  # bytes of a number, and of the lock of a block


def cublas_workspaces(capability: tuple[int, int] | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that torch keeps for cuBLAS and cuBLASLt on a GPU, from the first products of matrices on.

    Each thread has one workspace of each, per stream. Measured with torch 2.11 on an H200: 65 MiB for a convolutional
    network with a linear layer, whose backward pass does not use cuBLASLt, and 66 for a transformer.

    Args:
        capability: the compute capability of the GPU; None: not known, and the larger workspace counts.
        environment: the variables of the run.

    Source: ``parseChosenWorkspaceSize``, ``parseCUDABlasLtWorkspaceSize`` and ``getCUDABlasLtWorkspace`` in torch's
    aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB for Hopper, else :4096:2:16:8. Blackwell has had either.

    Example:
        >>> cublas_workspaces((9, 0), {}) == 2 * 33 * 2**20
        True
        >>> cublas_workspaces((8, 0), {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == 2 * (128 * 1024 + 2**20)
        True
    """
    of_lt = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    own = int(of_lt) * 1024 if of_lt.isdecimal() else _LT
    shares = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "").lower() in ("1", "true", "on", "yes")
    return THREADS * (_workspace(capability, environment) + (0 if shares else own))


def _workspace(capability: tuple[int, int] | None, environment: Mapping[str, str]) -> int:
    parts = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if parts:
        return sum(int(size) * int(count) * 1024 for size, count in parts)
    return _LARGE if capability is None or capability[0] >= _HOPPER else _SMALL


def attention_scratch(operation: Any, args: Sequence[Any]) -> int:
    """Return the bytes that the backward pass of memory-efficient attention takes beside its results; 0 for others.

    A block of 64 queries (128 where heads are wider than 64) has an accumulator in float32 for the gradient, whatever
    its number of queries, and for heads wider than 128 in half precision also those of keys and values. A gradient that
    is not contiguous is copied.

    Source: ``Params::workspace_size`` in torch's aten/src/ATen/native/transformers/cuda/mem_eff_attention/
    kernel_backward.h, the blocks of kernels/cutlassB.h there, and ``_efficient_attention_backward`` in
    cuda/attention_backward.cu. An H200 allocated 537 MB for 8,192 rows of 24 tokens and four heads of width 8.
    """
    if operation is not _EFFICIENT_BACKWARD:
        return 0
    gradient, query, key, value = args[:4]
    batch, heads, queries, width = query.shape
    delta = batch * heads * queries * _FLOAT
    copy = 0 if gradient.transpose(1, 2).is_contiguous() else gradient.numel() * gradient.element_size()
    widest = max(width, value.shape[-1])
    of_head = _accumulators(queries, key.shape[2], widest, is_half=query.dtype in _HALF, heads=batch * heads)
    return int(batch * heads * of_head + delta + copy)


def _accumulators(queries: int, keys: int, width: int, *, is_half: bool, heads: int) -> int:
    """Return the bytes of the accumulators of one head of one row."""
    rows, columns = (64, 64) if width <= 64 else (128, 128 if is_half and width <= 128 else 64)
    of_queries = _ceil(queries, rows) * _ceil(width, columns) * (rows * columns * _FLOAT + _LOCK)
    if not is_half or width <= 128:
        return of_queries
    splits = max(1, min(_ceil(keys, columns), 200 // max(1, heads)))
    return of_queries + 2 * splits * columns * _ceil(width, rows) * rows * _FLOAT


def _ceil(count: int, of: int) -> int:
    return -(-count // of)


@contextlib.contextmanager
def kernels_of(device_type: str) -> Iterator[None]:
    """Inside, tensors without memory take the operations of a GPU for attention and dropout, if that is the device.

    `torch.nn.functional` has other functions meanwhile, which do for all other tensors, and in all other threads, what
    they always do. Several threads may be inside: the last one that leaves puts the usual functions back.
    """
    if device_type != "cuda":
        yield
        return
    outside = getattr(_THREAD, "plans_for_gpu", False)
    _replaced.begin()
    _THREAD.plans_for_gpu = True
    try:
        yield
    finally:
        _THREAD.plans_for_gpu = outside
        _replaced.end()


_THREAD = threading.local()  # plans_for_gpu: whether this thread is inside `kernels_of`


class _Replaced:
    """The functions of `torch.nn.functional` that are others as long as any thread is inside `kernels_of`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual: dict[str, Callable[..., torch.Tensor]] = {}

    def begin(self) -> None:
        """Replace them, unless another thread has."""
        made = {"scaled_dot_product_attention": _attention_after, "dropout": _dropout_after}
        with self._lock:
            if not self._inside:
                self._usual = {name: getattr(torch.nn.functional, name) for name in made}
                for name, after in made.items():
                    setattr(torch.nn.functional, name, after(self._usual[name]))
            self._inside += 1

    def end(self) -> None:
        """Put the usual ones back, unless another thread is inside."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for name, function in self._usual.items():
                    setattr(torch.nn.functional, name, function)


_replaced = _Replaced()


def _is_of_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for one of the GPU that this thread plans for: it has no memory."""
    is_planned = getattr(_THREAD, "plans_for_gpu", False)
    return is_planned and isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"


def _attention_after(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        given = (query, key, value)
        if attn_mask is not None or more.get("enable_gqa") or not _is_fused(given):
            return usual(query, key, value, attn_mask, dropout_p, is_causal, **more)
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in given)
        needs = query.requires_grad
        out: torch.Tensor = _EFFICIENT(query, key, value, None, needs, dropout_p, is_causal, scale=more.get("scale"))[0]
        return out

    return attention


def _is_fused(given: Sequence[torch.Tensor]) -> bool:
    """Return whether a GPU computes the attention of these tensors by one operation."""
    query, key, value = given
    there = all(_is_of_gpu(tensor) and tensor.ndim == 4 for tensor in given)
    return there and query.shape[-1] % (16 // query.element_size()) == 0 and value.shape[-1] == key.shape[-1]


def _dropout_after(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def dropout(
        input: torch.Tensor,  # noqa: A002 - the signature is torch's
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> torch.Tensor:
        if not _is_of_gpu(input) or not input.numel() or not training or inplace or not 0 < p < 1:
            return usual(input, p, training, inplace)
        found: torch.Tensor = torch.native_dropout(input, p, train=True)[0]
        return found

    return dropout
