"""Fields whose bytes lie in one tensor: in a GPU's memory, or in RAM for a device that gathers by itself.

row numbers -> numbers of frames -> one gather of the table, on its device -> rows
               frames.py            near.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from memload.fields import Field
from memload.gpu.frames import FrameIndex, begins_of

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True, eq=False)
class NearColumn:
    """Rows that are gathered out of a table where it lies. Immutable; what is selected shares the table.

    Args:
        table: uint8 (frames, bytes of a frame), contiguous, on any device.
        index: which frames each row is made of.
    """

    table: torch.Tensor
    index: FrameIndex

    storages: Sequence[Any] = ()
    """The files and arrays that rows are read from: none."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.index.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.table.shape[1] * (1 if self.index.steps is None else len(self.index.steps))

    @property
    def selection_bytes(self) -> int:
        """Bytes that say which rows there are, in this machine's memory."""
        return self.index.nbytes

    def select(self, rows: NDArray[np.int64]) -> NearColumn:
        """Return these rows, in this order."""
        return replace(self, index=self.index.select(rows))

    def windows(self, steps: Sequence[int], runs: Sequence[tuple[int, int, int]]) -> NearColumn:
        """Return windows of these rows; see `memload.windows`."""
        return replace(self, index=self.index.windows(begins_of(runs), steps))

    @staticmethod
    def concat(columns: Sequence[NearColumn]) -> NearColumn:
        """Return all rows of the first, then of the second, and so on.

        Raises:
            ValueError: they do not lie in one table.
        """
        first = columns[0]
        if any(one.table is not first.table or not _alike(one.index, first.index) for one in columns):
            raise ValueError(
                "rows that were brought to a device at different times lie in different tables there, of which no "
                "batch is gathered: join the datasets first, then bring the whole of them by memload.to_device"
            )
        return replace(first, index=first.index.joined(one.index for one in columns[1:]))

    def gathered(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return a fresh copy of these rows on the table's device: uint8 (rows, row_bytes)."""
        frame_bytes = self.table.shape[1]
        if not len(rows) or not self.row_bytes:
            return self.table.new_empty((len(rows), self.row_bytes))
        word = next(word for word in _WORDS if frame_bytes % word.itemsize == 0)
        numbers = on_device(self.index.numbers(rows).reshape(-1), self.table.device)
        found = self.table.view(word).index_select(0, numbers)
        self.was_read()
        return found.view(torch.uint8).view(len(rows), self.row_bytes)

    def was_read(self) -> None:
        """Keep the table until the device's current stream has finished what is queued in it now."""
        if self.table.device.type == "cuda":
            self.table.record_stream(torch.cuda.current_stream(self.table.device))

    def gather(self, rows: NDArray[np.int64], address: int, nbytes: int) -> None:
        """Copy rows to this machine's memory, one after the other, as columns of files do."""
        into = torch.frombuffer(_memory_at(address, nbytes), dtype=torch.uint8)
        into.copy_(self.gathered(rows).view(-1))


def _alike(one: FrameIndex, other: FrameIndex) -> bool:
    return one.steps == other.steps and one.places is other.places


def _memory_at(address: int, nbytes: int) -> Any:
    import ctypes

    return (ctypes.c_uint8 * nbytes).from_address(address)


def on_device(numbers: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Return numbers as a tensor there, without waiting for what the device does meanwhile."""
    here = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cpu":
        return here
    return here.pin_memory().to(device, non_blocking=True)  # torch keeps the pinned copy until the device has it


@dataclass(frozen=True)
class NearField(Field):
    """A field whose rows are gathered where they lie, and come as tensors of that device."""

    column: NearColumn  # type: ignore[assignment]  # answers like the native columns, and is read by its own code

    @property
    def device(self) -> torch.device:
        """Where the rows lie."""
        return self.column.table.device

    def gather(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return a fresh tensor (len(rows), *shape) with a copy of these rows, on their device."""
        found = self.column.gathered(rows)
        return found.view(self.dtype).view(len(rows), *self.shape) if found.numel() else self._empty(len(rows))

    def _empty(self, rows: int) -> torch.Tensor:
        return torch.empty((rows, *self.shape), dtype=self.dtype, device=self.device)

    def recipe(self) -> NoReturn:
        """Refuse what would make this field in another process."""
        raise TypeError(
            f"a dataset in the memory of {self.device} cannot be sent to another process or copied: open the data and "
            "call memload.to_device there"
        )


def near_device(fields: Mapping[Any, Field]) -> torch.device | None:
    """Return the device on which all of these fields lie; None if they are read from files or arrays.

    Raises:
        ValueError: some lie there, and others elsewhere.
    """
    places = {key: field.device if isinstance(field, NearField) else None for key, field in fields.items()}
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{key!r}: {place or 'files or arrays'}" for key, place in places.items())
        raise ValueError(
            f"the fields of a dataset must all lie on one device, or all in files and arrays, got {listed}. Put them "
            "side by side first, then bring them by memload.to_device"
        )
    return next(iter(places.values()), None)
