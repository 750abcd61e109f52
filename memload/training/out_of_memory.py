"""When memory runs out: which errors say so, and what to give back."""

from __future__ import annotations

import gc

import torch

# Errors that are no torch.OutOfMemoryError, of the CPU's allocator and of libraries of CUDA's that allocate themselves.
_SAYINGS = ("can't allocate memory", "CUDA out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory ran out, on the CPU or a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error) for saying in _SAYINGS)


def give_back() -> None:
    """Free what is no longer referenced: reference cycles in Python, and blocks of a GPU that torch keeps cached."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
