"""Makes batches of rows that lie on a device: all fields that a kernel each serves by one native call.

numbers of the rows, on the device -> kernels of all fields, launched at once -> batch
row_numbers.py                        kernels.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from memload.casts.rule import Cast
from memload.device.casting import cast_on_device
from memload.device.gathering import kernel_for, steps_on
from memload.device.kernels import Launch, launch_all
from memload.device.resident import ResidentColumn, ResidentField, casts_by_one_kernel, rows_on_device
from memload.device.row_numbers import RowNumbers
from memload.engine.cast_batches import Casting
from memload.engine.gather_spec import GatherSpec
from memload.engine.transforms.seeding import PassSeed


class _Member(NamedTuple):
    """A field of a batch, and its casts, one after the other."""

    field: ResidentField
    casts: tuple[Cast, ...]


class BatchMaker:
    """Makes the batches of a gather specification whose rows lie on a device, in the device's current stream.

    Args:
        source: the gather specification.

    Attributes:
        columns: the columns of its fields.
        indices: their indices.
        device: the device.
    """

    def __init__(self, source: GatherSpec) -> None:
        late: Mapping[Any, Cast] = source.late_casts or {}
        self._members = []
        for key, field in source.fields.items():
            assert isinstance(field, ResidentField)
            casts = source.casts.get(key), late.get(key)
            self._members.append(_Member(field, tuple(cast for cast in casts if cast is not None)))
        self._layout = source.layout
        self.columns: Sequence[ResidentColumn] = [field.column for field, _ in self._members]
        self.device = self.columns[0].table.device if self.columns else torch.device("cpu")
        self.indices = [column.index for column in self.columns]
        self._kernels: Sequence[_FieldKernel] | None = None  # until the first batch
        self._process = -1

    def __call__(self, rows: NDArray[np.int64], seed: PassSeed | None = None, numbers: RowNumbers | None = None) -> Any:
        """Return the batch of some rows, as default_collate would shape it.

        Args:
            rows: row numbers.
            seed: of the pass, for random numbers; None: it is drawn from torch's default generator.
            numbers: the numbers of the rows on the device; None: they are copied there.

        Raises:
            IndexError: a row number is out of range.
            DeviceError: this process does not have the rows.
        """
        self.check_here()
        return self.make(rows, seed, RowNumbers(self.indices, rows, self.device) if numbers is None else numbers)

    def make(self, rows: NDArray[np.int64], seed: PassSeed | None, numbers: RowNumbers) -> Any:
        """Do what a call does, in a process that `check_here` has looked at."""
        made = self._by_kernels(numbers, len(rows)) if len(rows) else {}
        if len(made) == len(self._members):
            return self._layout.build(iter(made.values()))
        casting = Casting(seed, rows)
        return self._layout.build(
            made[place] if place in made else _made(member, rows, casting, numbers)
            for place, member in enumerate(self._members)
        )

    def check_here(self) -> None:
        """Raise DeviceError in a process that does not have the rows, or has given them back."""
        here = os.getpid()
        if here == self._process:
            return
        for column in self.columns:
            column.check_here()
        if not any(column.may_end for column in self.columns):
            self._process = here

    def _by_kernels(self, numbers: RowNumbers, rows: int) -> dict[int, torch.Tensor]:
        """Return those fields, by their place, that a kernel each gathers and casts."""
        if self._kernels is None:
            self._kernels = [kernel for kernel in map(_kernel_of, range(len(self._members)), self._members) if kernel]
        if not self._kernels:
            return {}
        made = {one.place: one.like.new_empty((rows, *one.shape)) for one in self._kernels}
        launch_all([one.launch(made[one.place], rows, numbers) for one in self._kernels], self.device)
        for one in self._kernels:
            one.column.was_read()
        return made


class _FieldKernel(NamedTuple):
    """The kernel of a field: all that is the same for each batch.

    Attributes:
        place: the place of the field among those of the batch.
        native: the kernel, as `memload._cuda` launches it.
        column: the column of the field.
        like: no rows of the field in a batch, on the device: it allocates faster than a dtype and a device do.
        shape: the shape of a row of the batch.
        frames: the number of frames of a row.
        steps: the steps of windows, on the device; None: rows are no windows.
        along: the address of the steps, 0 if there are none, and their number.
    """

    place: int
    native: Any
    column: ResidentColumn
    like: torch.Tensor
    shape: tuple[int, ...]
    frames: int
    steps: torch.Tensor | None
    along: tuple[int, int]

    def launch(self, out: torch.Tensor, rows: int, numbers: RowNumbers) -> Launch:
        """Return the launch that makes so many rows of the field."""
        column = self.column
        choice, arrived = (numbers.of_column(column).data_ptr(), *self.along), numbers.arrived(column)
        beside = column.crosses_bus(arrived=arrived is not None)
        return self.native, out.data_ptr(), rows * self.frames, choice, arrived, beside


def _kernel_of(place: int, member: _Member) -> _FieldKernel | None:
    """Return the kernel of a field; None: it takes several, or torch operations."""
    field, casts = member
    column, index = field.column, field.column.index
    if len(casts) > 1 or not field.row_bytes or (casts and not casts_by_one_kernel(field, casts[0])):
        return None
    cast, shape = (casts[0], field.frame_shape) if casts else (None, None)
    stored = column.frames_as(field.dtype if casts else column.word, shape)
    steps = steps_on(index.steps, column.table.device) if index.by_windows and index.steps else None
    kernel = kernel_for(stored, cast, None if steps is None else len(steps), column.table.device)
    if kernel is None:
        return None
    dtype = field.dtype if cast is None else cast.dtype
    along = (0, 1) if steps is None else (steps.data_ptr(), len(steps))
    like = torch.empty(0, dtype=dtype, device=column.table.device)
    return _FieldKernel(place, kernel.native, column, like, field.shape, len(index.steps or (0,)), steps, along)


def _made(member: _Member, rows: NDArray[np.int64], casting: Casting, numbers: RowNumbers) -> torch.Tensor:
    """Return rows of a field after its casts; the first cast is part of the gather."""
    field, casts = member
    if not casts:
        return rows_on_device(field, rows, numbers=numbers)
    x = rows_on_device(field, rows, casts[0], casting.seeds(casts[0], len(rows)), numbers)
    for cast in casts[1:]:
        x = cast_on_device(x, cast, seeds=casting.seeds(cast, len(x)))
    return x
