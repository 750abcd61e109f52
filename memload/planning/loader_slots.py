"""What a loader holds of batches at each batch size: the slots of FastLoader, and what torch's own makes ahead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from memload.planning.account import Line

WORKER_BYTES = 9_000_000
"""Private memory of a forked worker with a small dataset: measured as Pss_Anon of a loop with 2 and 4 workers over one
without, per worker, at 8.4 to 8.7 MB (Python 3.11, torch 2.13). It grows with what the dataset holds in Python objects,
whose reference counts a worker writes to. Workers that are spawned take what a whole process takes."""

SAMPLES = 2
"""Batches of samples in a worker: those of which it stacks one, and what the C library keeps of the last. Measured at
1.5 to 2.6 (rows of 2.2 MB, batches of 9 and 17 MB)."""

DEFAULT_PREFETCH = 2
"""What torch sets where the user gives no prefetch_factor."""


def stock_lines(batch_bytes: int, workers: int, prefetch_factor: int | None) -> tuple[Line, ...]:
    """Return what the stock loader takes beside the process that runs the loop.

    Args:
        batch_bytes: of one batch as the loop gets it.
        workers: its num_workers.
        prefetch_factor: batches that each worker makes ahead; None: torch's default.
    """
    if not workers:
        return (
            Line("batches", 2 * batch_bytes, "the one that the loop holds, and the next"),
            Line("samples", batch_bytes, "copies, of which a batch is stacked"),
        )
    ahead = workers * (prefetch_factor or DEFAULT_PREFETCH)
    return (
        Line("batches", (ahead + 1) * batch_bytes, f"{workers} workers x {ahead // workers}, and one in the loop"),
        Line("samples", SAMPLES * workers * batch_bytes, "copies, of which workers stack batches, and their heaps"),
        Line("worker processes", workers * WORKER_BYTES, f"{workers}, forked"),
    )


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
    """Return what torch's own machinery takes in RAM, the batch of the loop and the processes of workers included."""
    return sum(line.predicted for line in stock_lines(batch_bytes, loader.num_workers, loader.prefetch_factor))
