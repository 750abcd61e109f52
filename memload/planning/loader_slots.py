"""The batches that a loader holds at each batch size: FastLoader's slots, and those that torch's loader makes ahead."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from memload.loader.fast_loader import FastLoader
from memload.planning.account import Line

WORKER_BYTES = 9_000_000
"""Private memory of a forked worker with a small dataset: measured as the Pss_Anon that a loop with 2 and
4 workers has beyond one without, 8.4 to 8.7 MB per worker (Python 3.11, torch 2.13). It grows with the Python objects
of the dataset, whose reference counts a worker writes to. A spawned worker takes as much as a whole process."""

SAMPLES = 2
"""Batches of samples in a worker: the samples that it stacks, and memory that the C library keeps of the last ones.
Measured at 1.5 to 2.6 (rows of 2.2 MB, batches of 9 and 17 MB)."""

DEFAULT_PREFETCH = 2
"""torch's prefetch_factor where the user gives none."""


def stock_lines(batch_bytes: int, workers: int, prefetch_factor: int | None, *, pins: bool = False) -> tuple[Line, ...]:
    """Return the lines of torch's loader, without the process that runs the loop.

    Args:
        batch_bytes: the bytes of a batch as the loop gets it.
        workers: its num_workers.
        prefetch_factor: batches that each worker makes ahead; None: torch's default.
        pins: its pin_memory.
    """
    if not workers:
        return (
            Line("batches", 2 * batch_bytes, "the one that the loop holds, and the next"),
            Line("samples", batch_bytes, "copies that are stacked to a batch"),
            *_pinned_lines(batch_bytes, 2, pins),
        )
    ahead = workers * (prefetch_factor or DEFAULT_PREFETCH)
    return (
        *_pinned_lines(batch_bytes, ahead + 1, pins),
        Line("batches", (ahead + 1) * batch_bytes, f"{workers} workers x {ahead // workers}, and one in the loop"),
        Line("samples", SAMPLES * workers * batch_bytes, "copies that workers stack to batches, and their heaps"),
        Line("worker processes", workers * WORKER_BYTES, f"{workers}, forked"),
    )


def _pinned_lines(batch_bytes: int, batches: int, pins: bool) -> tuple[Line, ...]:
    """Return the line of pinned copies: torch keeps their blocks for the next ones, and rounds them up.

    Source: ``roundSize = PowerOf2Ceil(size)`` in torch's aten/src/ATen/core/CachingHostAllocator.h.
    """
    if not pins or not batch_bytes:
        return ()
    each = 1 << (batch_bytes - 1).bit_length()
    return (Line("pinned batches", batches * each, f"{batches} copies, rounded up to powers of two"),)


Slots = Callable[[int], int]


def last_batch_of(loader: Any, batch_size: int) -> int:
    """Return the rows of the short batch that ends an epoch of a loader; 0 if there is none, or it is not known."""
    rows = rows_of_epoch(loader)
    if not rows or loader.drop_last:
        return 0
    return rows % batch_size if rows > batch_size else 0


def rows_of_epoch(loader: Any) -> int:
    """Return the rows of an epoch of a loader with a batch size; 0 if they are not known."""
    sampler: Any = getattr(loader, "sampler", None)
    if loader is None or getattr(loader, "batch_size", None) is None or not hasattr(sampler, "__len__"):
        return 0
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return 0


def slots_of(loader: Any, device: torch.device, row_bytes: float) -> tuple[Slots, bool]:
    """Return a loader's bytes on a device as a function of the batch size, and whether the loop's batch is included.

    Args:
        loader: a FastLoader, a DataLoader or None.
        device: the CPU, or a device that FastLoader may copy batches to.
        row_bytes: the bytes of a row of a batch as the loop gets it.

    Raises:
        TypeError: `loader` is no loader.
    """
    if loader is None:
        return lambda _: 0, False
    if not hasattr(loader, "batch_size"):
        raise TypeError(f"loader is a DataLoader or a FastLoader, whose slots are counted; got {type(loader).__name__}")
    if isinstance(loader, FastLoader) and device.type == "cpu" and loader.nbytes:
        return functools.partial(_of_size, loader, loader.nbytes, loader.__memload_loader__().nbytes_of), True
    if isinstance(loader, FastLoader) and device.type != "cpu" and loader.device_nbytes:
        nbytes_of = loader.__memload_loader__().device_nbytes_of
        return functools.partial(_of_size, loader, loader.device_nbytes, nbytes_of), True
    if device.type == "cpu" and isinstance(loader, DataLoader):
        return lambda wanted: _stock(loader, math.ceil(row_bytes * wanted)), True
    return lambda _: 0, False


def _of_size(loader: FastLoader[Any], nbytes: int, nbytes_of: Callable[[int], int | None], batch_size: int) -> int:
    """Return the bytes of a loader with batches of so many rows, in RAM or on a device.

    Args:
        loader: the loader.
        nbytes: what it takes with its own batch size.
        nbytes_of: returns what it would take with another one; None if that is not known.
        batch_size: the rows of a batch.
    """
    now = loader.batch_size
    rows = getattr(loader.__memload_loader__().source, "rows", 0)
    known = min(batch_size, rows)  # no slot is larger than the dataset, a small one of which may stand for another
    wanted, own = (nbytes_of(size) if now and rows else None for size in (known, now or 1))
    if wanted is None or own is None:
        return _in_proportion(nbytes, now, batch_size)
    return nbytes - own + _in_proportion(wanted, known, batch_size)


def _in_proportion(nbytes: int, size: int | None, wanted: int) -> int:
    """Return the bytes for batches of `wanted` rows, of which those of `size` rows take `nbytes`."""
    return math.ceil(nbytes / size * wanted) if size else nbytes


def _stock(loader: DataLoader[Any], batch_bytes: int) -> int:
    """Return the RAM of torch's loader, with the batch of the loop and the worker processes."""
    lines = stock_lines(batch_bytes, loader.num_workers, loader.prefetch_factor)
    return sum(line.predicted for line in lines)
