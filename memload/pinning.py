"""Batches in pinned memory, for loops that copy them to an accelerator while it computes."""

from __future__ import annotations

from typing import Any

import torch

from memload.gpu.interface import HostMemory


def pinned(batch: Any, host: HostMemory | None = None) -> Any:
    """Copy a batch into memory of torch's pinned allocator, since only that knows which copies are in flight.

    Containers are gone into; of what lies in them, everything that has a ``pin_memory`` method is pinned. Tensors that
    lie in the memory of `host` already stay there.
    """
    if host is not None and isinstance(batch, torch.Tensor) and host.is_pinned(batch):
        return batch
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {key: pinned(value, host) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pinned(value, host) for value in batch))
    return type(batch)(pinned(value, host) for value in batch) if type(batch) in (list, tuple) else batch
