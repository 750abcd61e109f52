"""Stored rows that lie in several memories: a GPU's own, that of its peers, and pinned RAM.

number   0 ............ n0 | n0 ....... n0+n1 | ...
memory   the GPU's own     | pinned RAM       |
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

import torch


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Rows (N, *shape) of which the first lie in one memory, the next in another, and so on. A part may be empty.

    It has those attributes and methods of a tensor that gathering asks for.

    Args:
        parts: (rows of the part, *shape) each, contiguous, of one dtype, in memory that the device reads.
        device: the device that gathers them.

    Example:
        >>> cpu = torch.device("cpu")
        >>> rows = SplitRows((torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6]])), cpu)
        >>> rows.index_select(0, torch.tensor([2, 0])).tolist()
        [[5, 6], [1, 2]]
    """

    parts: tuple[torch.Tensor, ...]
    device: torch.device

    def __len__(self) -> int:
        return self.shape[0]

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows together."""
        return (sum(map(len, self.parts)), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return self.parts[0].dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.parts[0].ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def index_select(self, axis: int, numbers: torch.Tensor) -> torch.Tensor:
        """Return the rows with these numbers, on the device, by torch operations; it waits for the device.

        Raises:
            ValueError: the axis is not 0.
            IndexError: a number is out of range.
        """
        if axis != 0:
            raise ValueError(f"rows are selected along the axis 0, got {axis}")
        here = numbers.to(self.device)
        found = torch.empty((len(here), *self.shape[1:]), dtype=self.dtype, device=self.device)
        counts, left = [len(part) for part in self.parts], len(here)
        for part, end in zip(self.parts, accumulate(counts), strict=True):
            places = ((here >= end - len(part)) & (here < end)).nonzero().squeeze(1)
            chosen = part.index_select(0, (here[places] - (end - len(part))).to(part.device))
            found.index_copy_(0, places, chosen.to(self.device))
            left -= len(places)
        if left:
            raise IndexError(f"{left} of {len(here)} row numbers are outside of the {len(self):,} stored rows")
        return found


Stored: TypeAlias = torch.Tensor | SplitRows
"""Stored rows, in one memory or in several."""


def parts_of(stored: Stored) -> tuple[torch.Tensor, ...]:
    """Return the tensors that rows lie in, in the order of their numbers."""
    return stored.parts if isinstance(stored, SplitRows) else (stored,)


def viewed(stored: Stored, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Stored:
    """Return the same bytes as rows of a dtype; of a shape, if one is given."""
    if isinstance(stored, SplitRows):
        return replace(stored, parts=tuple(_viewed(part, dtype, shape) for part in stored.parts))
    return _viewed(stored, dtype, shape)


def _viewed(part: torch.Tensor, dtype: torch.dtype, shape: Sequence[int] | None) -> torch.Tensor:
    same = part.view(dtype)
    return same if shape is None else same.view(same.numel() // max(1, math.prod(shape)), *shape)
