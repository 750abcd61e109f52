"""Batches in pinned memory, for loops that copy them to an accelerator while it computes."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from memload.gpu.interface import HostMemory

if TYPE_CHECKING:
    from memload.loader import FastLoader

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def pinned(batch: Any, host: HostMemory | None = None) -> Any:
    """Copy a batch into memory of torch's pinned allocator, since only that knows which copies are in flight.

    Containers are gone into; of what lies in them, everything that has a ``pin_memory`` method is pinned. Tensors that
    lie on a device, or in the memory of `host`, already stay there.
    """
    if isinstance(batch, torch.Tensor) and (batch.device.type != "cpu" or (host is not None and host.is_pinned(batch))):
        return batch
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {key: pinned(value, host) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pinned(value, host) for value in batch))
    return type(batch)(pinned(value, host) for value in batch) if type(batch) in (list, tuple) else batch


def pins_batches(loader: FastLoader[Any]) -> bool:
    """Whether the batches of a native pass are to lie in pinned memory on the CPU, and can."""
    return bool(loader.pin_memory) and loader._target is None and loader._host_memory() is not None


def whole_power(nbytes: int) -> int:
    """Return the bytes of pinned memory that torch's allocator takes for so many: the next power of two."""
    return 1 << (nbytes - 1).bit_length()


def pinned_by(loader: FastLoader[Any]) -> HostMemory | None:
    """Return whose memory the batches of a native pass are to lie in, None: any; warns as stock iterators do."""
    if not loader.pin_memory or loader._target is not None:
        return None
    host = loader._host_memory()
    if loader.persistent_workers and loader._state.base_seed is not None:
        return host  # a stock iterator that goes on to another pass has warned before
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=level_outside(),
        )
    if host is None:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=level_outside(),
        )
    return host


def level_outside() -> int:
    """Return the level, as `warnings.warn` counts it for who calls this, of the first frame that is not of memload."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
