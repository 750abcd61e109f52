"""Collect the rows of one field in memory as they arrive.

alike:      one tensor for all rows, which is filled           differing: blocks of rows, joined at the end
"""

from __future__ import annotations

from typing import Any

import torch

from memload.columns.ragged_forms import Ragged, RaggedArray, as_ragged, ragged_type

_BLOCK_BYTES = 40 << 20  # of one block: the C library returns it to the system as soon as it is copied


class AlikeRows:
    """Rows of one shape.

    Args:
        rows: the number of rows to expect.
        like: some of the rows.
    """

    def __init__(self, rows: int, like: torch.Tensor) -> None:
        self._values = like.new_empty((rows, *like.shape[1:]))

    def put(self, at: int, values: torch.Tensor) -> None:
        """Copy rows to their place."""
        self._values[at : at + len(values)] = values

    def differing(self, filled: int, axis: int) -> DifferingRows:
        """Return the first `filled` rows in a form that accepts rows of other lengths along an axis."""
        made = DifferingRows(axis)
        step = max(1, _BLOCK_BYTES // max(1, self._values[:1].nbytes))
        for at in range(0, filled, step):
            made.put(at, as_ragged(self._values[at : min(at + step, filled)], axis))
        return made

    def finish(self) -> torch.Tensor:
        """Return all rows."""
        return self._values


class DifferingRows:
    """Rows that differ in length. Joining them at the end takes the memory of one more block.

    Args:
        axis: the axis along which they differ and are joined.
    """

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._blocks: list[torch.Tensor] = []
        self._pending: list[torch.Tensor] = []
        self._lengths: list[torch.Tensor] = []

    def put(self, _at: int, values: Ragged | RaggedArray) -> None:
        """Copy the rows that follow."""
        self._lengths.append(values.offsets.diff())
        self._pending.append(values.values.clone())
        if sum(part.nbytes for part in self._pending) >= _BLOCK_BYTES:
            self._join()

    def finish(self) -> Ragged:
        """Return all rows, and keep none."""
        self._join()
        lengths = torch.cat(self._lengths)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return ragged_type(self._axis)(self._joined(int(offsets[-1])), offsets)

    def _joined(self, items: int) -> torch.Tensor:
        if len(self._blocks) == 1:
            return self._blocks.pop()
        shape, at = list(self._blocks[0].shape), 0
        shape[self._axis] = items
        joined = self._blocks[0].new_empty(shape)
        while self._blocks:
            block = self._blocks.pop(0)
            joined.narrow(self._axis, at, block.shape[self._axis]).copy_(block)
            at += block.shape[self._axis]
        return joined

    def _join(self) -> None:
        if self._pending:
            self._blocks.append(torch.cat(self._pending, dim=self._axis))
            self._pending = []


class Texts:
    """Texts."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def put(self, _at: int, values: list[str]) -> None:
        """Take the texts that follow."""
        self._texts += values

    def finish(self) -> list[str]:
        """Return all of them."""
        return self._texts


class AppendedRows:
    """Rows of one shape, in unknown number."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []

    def put(self, _at: int, values: torch.Tensor) -> None:
        """Copy the rows that follow."""
        self._parts.append(values.clone())

    def finish(self) -> torch.Tensor:
        """Return all rows."""
        return torch.cat(self._parts)


HeldRows = AlikeRows | DifferingRows | Texts | AppendedRows


def held_rows(rows: int, values: Any) -> HeldRows:
    """Return an empty collector for `rows` rows, of which `values` are some."""
    if isinstance(values, torch.Tensor):
        return AlikeRows(rows, values)
    return DifferingRows(values.axis) if isinstance(values, Ragged) else Texts()


def appended_rows(values: Any) -> HeldRows:
    """Return an empty collector for an unknown number of rows, of which `values` are some."""
    if isinstance(values, RaggedArray):
        return DifferingRows(values.axis)
    return AppendedRows() if isinstance(values, torch.Tensor) else Texts()
