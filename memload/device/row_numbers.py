"""Brings the numbers of a batch's rows to a device: those of all its fields in one copy, and equal ones once.

rows of the batch -> numbers of each field's frames -> one pinned array -> device -> a view for each field
                     frames.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch

from memload.device.frames import FrameIndex, Numbers


class RowNumbers:
    """The numbers by which some rows are gathered, on a device.

    Args:
        indices: the indices of the fields that are gathered.
        rows: row numbers, int64.
        device: the device; for a CPU nothing is copied.

    Raises:
        IndexError: a row number is out of range.

    Example:
        >>> index = FrameIndex(range(5))
        >>> RowNumbers([index], np.array([3, 1]), torch.device("cpu")).of(index)
        tensor([3, 1])
    """

    def __init__(self, indices: Iterable[FrameIndex], rows: Numbers, device: torch.device) -> None:
        distinct = {index.identity: index for index in indices}
        arrays = [index.gathered_by(rows) for index in distinct.values()]
        self._numbers = dict(zip(distinct, to_device(arrays, device), strict=True))

    def of(self, index: FrameIndex) -> torch.Tensor:
        """Return ``index.gathered_by(rows)`` on the device, int64 with one axis."""
        return self._numbers[index.identity]


def to_device(arrays: Sequence[Numbers], device: torch.device) -> Sequence[torch.Tensor]:
    """Return arrays with one axis as tensors on a device, copied at once, without waiting for the device."""
    if device.type == "cpu" or not arrays:
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    ends = [*accumulate(map(len, arrays))]
    staged = torch.empty(ends[-1], dtype=torch.int64, pin_memory=True)
    np.concatenate(arrays, out=staged.numpy())
    there = staged.to(device, non_blocking=True)  # torch keeps the pinned memory until the device has it
    return there.tensor_split(ends[:-1])
