"""What a loader holds of batches at each batch size: the slots of FastLoader, and what torch's own makes ahead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from memload.planning.stock_bytes import stock_lines

Slots = Callable[[int], int]


def slots_of(loader: Any, device: torch.device, row_bytes: float) -> tuple[Slots, bool]:
    """Return what a loader holds on a device at each batch size, in bytes, and whether the loop's batch is part of it.

    Args:
        loader: a FastLoader, a DataLoader or None.
        device: the CPU, or one that FastLoader may bring batches to.
        row_bytes: of a row of a batch as the loop gets it.

    Raises:
        TypeError: it is no loader.
    """
    if loader is None:
        return lambda _: 0, False
    if not hasattr(loader, "batch_size"):
        raise TypeError(f"loader is a DataLoader or a FastLoader, whose slots are counted; got {type(loader).__name__}")
    nbytes = getattr(loader, "nbytes" if device.type == "cpu" else "device_nbytes", 0) or 0
    if nbytes:
        size = loader.batch_size
        return lambda wanted: math.ceil(nbytes / size * wanted) if size else nbytes, True
    if device.type == "cpu" and isinstance(loader, DataLoader):
        return lambda wanted: _stock(loader, math.ceil(row_bytes * wanted)), True
    return lambda _: 0, False


def _stock(loader: DataLoader[Any], batch_bytes: int) -> int:
    """What torch's own machinery takes in RAM, the batch of the loop and the processes of workers included."""
    return sum(line.predicted for line in stock_lines(batch_bytes, loader.num_workers, loader.prefetch_factor))
