"""Brings the numbers of a batch's rows to a device: those of all its fields in one copy, and equal ones once.

rows of the batch -> numbers of each field's frames -> one pinned array -> device -> a view for each field
                     frames.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol, TypeAlias

import numpy as np
import torch

from memload import _core
from memload.device.frames import FrameIndex, Numbers


class HasIndex(Protocol):
    """A column whose rows are gathered by an index."""

    @property
    def index(self) -> FrameIndex:
        """The frames of each row."""


Arrived: TypeAlias = tuple[int, int]
"""Rows of one batch that stand for a column's last part: the address where they begin, and their number."""


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
        self._bring(host_numbers(indices, rows), device)

    @classmethod
    def over(cls, arrays: Mapping[Hashable, Numbers], device: torch.device) -> RowNumbers:
        """Return the numbers that `host_numbers` gave, brought to a device."""
        made = cls.__new__(cls)
        made._bring(arrays, device)
        return made

    def _bring(self, arrays: Mapping[Hashable, Numbers], device: torch.device) -> None:
        self._numbers = dict(zip(arrays, to_device([*arrays.values()], device), strict=True))

    def of(self, index: FrameIndex) -> torch.Tensor:
        """Return ``index.gathered_by(rows)`` on the device, int64 with one axis."""
        return self._numbers[index.identity]

    def of_column(self, column: HasIndex) -> torch.Tensor:
        """Return the numbers of the rows of a column."""
        return self._numbers[column.index.identity]

    def arrived(self, column: HasIndex) -> Arrived | None:  # noqa: ARG002 - of rows that are copied meanwhile
        """Return the rows that stand for a column's last part; None: nothing does."""
        return None

    def arrived_rows(self, column: HasIndex) -> torch.Tensor | None:  # noqa: ARG002 - as above
        """Return these rows as a tensor, uint8 (rows, row_bytes)."""
        return None


def host_numbers(indices: Iterable[FrameIndex], rows: Numbers) -> dict[Hashable, Numbers]:
    """Return the numbers by which rows are gathered, on the CPU, by the identity of the index.

    Raises:
        IndexError: a row number is out of range.
    """
    distinct = {index.identity: index for index in indices}
    return {identity: index.gathered_by(rows) for identity, index in distinct.items()}


class HostNumbers:
    """Finds what `host_numbers` returns for batch after batch; native code does it for rows that are no windows.

    Args:
        indices: the indices of the fields that are gathered.

    Example:
        >>> index = FrameIndex(range(5))
        >>> HostNumbers([index]).of(np.array([3, 1]))[index.identity]
        array([3, 1])
    """

    def __init__(self, indices: Iterable[FrameIndex]) -> None:
        distinct = {index.identity: index for index in indices}
        self._find = {identity: _finder(index) for identity, index in distinct.items()}

    def of(self, rows: Numbers) -> dict[Hashable, Numbers]:
        """Return the numbers by which rows are gathered, by the identity of the index.

        Args:
            rows: row numbers, int64.

        Raises:
            IndexError: a row number is out of range.
        """
        return {identity: find(rows) for identity, find in self._find.items()}


def _finder(index: FrameIndex) -> Callable[[Numbers], Numbers]:
    return index.gathered_by if index.steps is not None else native_index(index).numbers


def native_index(index: FrameIndex) -> _core.RowIndex:
    """Return an index of rows that are no windows as native code reads it."""
    assert index.steps is None
    begins = index.begins if index.places is None else index.places[np.asarray(index.begins)]
    return _core.RowIndex(None if isinstance(begins, range) else np.ascontiguousarray(begins), index.rows)


@functools.cache
def _is_cpu(device: torch.device) -> bool:
    """Return whether a device is a CPU; kept, since torch makes a string of the type each time."""
    return device.type == "cpu"


def to_device(arrays: Sequence[Numbers], device: torch.device) -> Sequence[torch.Tensor]:
    """Return arrays with one axis as tensors on a device, copied at once, without waiting for the device."""
    if _is_cpu(device) or not arrays:
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    ends = [*accumulate(map(len, arrays))]
    staged = torch.empty(ends[-1], dtype=torch.int64, device="cpu", pin_memory=True)
    np.concatenate(arrays, out=staged.numpy())
    there = staged.to(device, non_blocking=True)  # torch keeps the pinned memory until the device has it
    return there.tensor_split(ends[:-1]) if len(ends) > 1 else [there]
