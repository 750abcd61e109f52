"""Which frames of a dataset lie in the memory of GPUs, and which in RAM: chosen once, before they are loaded.

bytes for each GPU, bytes of each field  ->  frames of each field on each GPU      `frames_on_devices`
weights of rows, frames of rows          ->  how often a frame is read             `frequencies`
both                                     ->  frames of each memory, rising         `dealt_out`
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memload.columns.numbers import kind
from memload.device.frames import FrameIndex, Numbers
from memload.sizes import format_size

SHORT = 512
"""Bytes of a row below which its field comes first: a row that crosses the bus alone takes a request of its own, and a
warp of the kernel, which serves 512 bytes or more at the same price."""

_CHUNK = 1 << 16  # rows whose frames are counted at a time


@dataclass(frozen=True)
class Table:
    """The frames of a field.

    Attributes:
        frames: their number.
        frame_bytes: bytes of each.
    """

    frames: int
    frame_bytes: int


def frames_on_devices(tables: Mapping[str, Table], nbytes: int | None, devices: int) -> dict[str, int]:
    """Return the number of frames of each field that each of so many devices keeps.

    Fields with short rows come first, whole if they fit. The others get the same share of their frames.

    Args:
        tables: the frames of each field.
        nbytes: bytes for each device; None: the devices keep all frames.
        devices: the number of devices.

    Raises:
        ValueError: not even one frame of each field fits.

    Example:
        >>> frames_on_devices({"image": Table(1000, 30_000), "label": Table(1000, 8)}, 15_008_000, 1)
        {'image': 500, 'label': 1000}
    """
    whole = {name: -(-table.frames // devices) for name, table in tables.items()}
    if nbytes is None:
        return whole
    least = sum(table.frame_bytes for table in tables.values() if table.frames)
    if nbytes < least:
        by_field = ", ".join(f"{name} {format_size(table.frame_bytes)}" for name, table in tables.items())
        raise ValueError(
            f"bytes= is {format_size(nbytes)}, which is less than one row of {format_size(least)} ({by_field}): give "
            'more, or leave the rows in RAM, tier="pinned"'
        )
    short = {name: table for name, table in tables.items() if table.frame_bytes < SHORT}
    found, left = {}, nbytes
    for group in (short, {name: table for name, table in tables.items() if name not in short}):
        wanted = sum(whole[name] * table.frame_bytes for name, table in group.items())
        for name in group:
            found[name] = whole[name] if wanted <= left else whole[name] * left // wanted
        left -= sum(found[name] * table.frame_bytes for name, table in group.items())
    return {name: found[name] for name in tables}


def checked_weights(weights: Any, rows: int) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return how often each row is drawn, in any unit; None if that is not given.

    Args:
        weights: one for each row; or a sampler that has such `weights`; or None.
        rows: the number of rows.

    Raises:
        TypeError: they are no numbers.
        ValueError: there are more or fewer than rows, or one is negative or not finite.
    """
    if weights is None:
        return None
    given = getattr(weights, "weights", weights)
    try:
        found = torch.as_tensor(given).detach().to("cpu", torch.float64).numpy()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"weights= takes one number for each row, or a sampler with weights; got {kind(weights)}"
        ) from None
    if found.shape != (rows,):
        raise ValueError(f"weights= has one number for each of {rows:,} rows; got the shape {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        bad = int((~np.isfinite(found) | (found < 0)).argmax())
        raise ValueError(f"weights are finite, and not negative; that of row {bad} is {found[bad]}")
    return found


def frequencies(
    index: FrameIndex, weights: np.ndarray[Any, np.dtype[np.float64]], frames: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how often each frame is read: the sum of the weights of the rows that it belongs to."""
    found = np.zeros(frames)
    for rows in _chunks(index.rows):
        numbers = index.numbers(rows).reshape(len(rows), -1)
        each = np.repeat(weights[rows], numbers.shape[1])
        found += np.bincount(numbers.reshape(-1), each, minlength=frames)
    return found


def _chunks(rows: int) -> Iterator[Numbers]:
    for begin in range(0, rows, _CHUNK):
        yield np.arange(begin, min(rows, begin + _CHUNK))


def dealt_out(
    frames: int, each: int, devices: int, often: np.ndarray[Any, np.dtype[np.float64]] | None = None
) -> list[Numbers | range]:
    """Return the numbers of the frames of each memory, in rising order: those of the devices, and then those in RAM.

    Without frequencies, devices have the first frames, one run each. With them they have the frames that are read most,
    dealt out in turn, so that each device is read as often as any other; among equals, the first come first.

    Args:
        frames: the number of all frames.
        each: the most frames of one device.
        devices: the number of devices.
        often: how often each frame is read; None: all alike.

    Example:
        >>> dealt_out(10, 3, 2)
        [range(0, 3), range(3, 6), range(6, 10)]
        >>> [part.tolist() for part in dealt_out(5, 1, 2, np.array([1.0, 5.0, 0.0, 9.0, 1.0]))]
        [[3], [1], [0, 2, 4]]
    """
    kept = min(frames, each * devices)
    if often is None or kept == frames == each:
        bounds = [min(kept, each * device) for device in range(devices + 1)]
        return [*(range(a, b) for a, b in itertools.pairwise(bounds)), range(kept, frames)]
    order = np.argsort(-often, kind="stable")
    parts: Sequence[Numbers] = [*(order[device:kept:devices] for device in range(devices)), order[kept:]]
    return [np.sort(part) for part in parts]


def renumbered(parts: Sequence[Numbers | range]) -> Numbers | None:
    """Return the new number of each frame if frames are numbered part after part; None if none changes.

    Example:
        >>> renumbered([np.array([3]), np.array([0, 1, 2])]).tolist()
        [1, 2, 3, 0]
    """
    order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    if (order == np.arange(len(order))).all():
        return None
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    return numbers
