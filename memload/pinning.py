"""Batches in pinned memory, for loops that copy them to an accelerator while it computes."""

from __future__ import annotations

from typing import Any


def pinned(batch: Any) -> Any:
    """Copy a batch into memory of torch's pinned allocator, since only that knows which copies are in flight.

    Containers are gone into; of what lies in them, everything that has a ``pin_memory`` method is pinned.
    """
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {key: pinned(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(pinned, batch))
    return type(batch)(map(pinned, batch)) if type(batch) in (list, tuple) else batch
