"""Fields whose bytes are in a GPU's memory, in RAM for a device that gathers by itself, or in both.

row numbers -> numbers of frames, to the device -> one kernel: gather + cast, where there is one -> rows
               frames.py                           gathering.py
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from memload.casts.rule import Cast
from memload.columns.fields import Field
from memload.columns.numbers import begins_of
from memload.device.casting import cast_on_device
from memload.device.frames import FrameIndex, Numbers
from memload.device.gathering import expand_windows, gather_rows, steps_on
from memload.device.row_numbers import RowNumbers
from memload.device.split_rows import Stored, parts_of, viewed

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass(frozen=True, eq=False)
class ResidentColumn:
    """Rows that are gathered on the device of a table. Immutable; selections share the table.

    Args:
        table: uint8 (frames, bytes of a frame), contiguous, on any device; or in several memories.
        index: the frames of each row.
    """

    table: Stored
    index: FrameIndex

    storages: Sequence[Any] = ()
    """Files and arrays that rows are read from; a resident column has none."""

    _views: dict[Any, Stored] = field(default_factory=dict, init=False, repr=False)  # of the table, by dtype and shape

    may_end: ClassVar[bool] = False
    """Whether rows may be gone in the process that has them, so that `check_here` is asked for each batch."""

    @property
    def is_far(self) -> bool:
        """Whether rows lie outside of the memory of the device that gathers them."""
        return False

    def crosses_bus(self, *, arrived: bool) -> bool:  # noqa: ARG002 - of rows that are copied meanwhile
        """Whether the kernel that gathers rows reads some across a bus; `arrived`: others stand for its last part."""
        return self.is_far

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.index.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.table.shape[1] * (1 if self.index.steps is None else len(self.index.steps))

    @property
    def selection_bytes(self) -> int:
        """The bytes of the row index in RAM."""
        return self.index.nbytes

    def select(self, rows: NDArray[np.int64]) -> ResidentColumn:
        """Return these rows, in this order."""
        return replace(self, index=self.index.select(rows))

    def windows(self, steps: Sequence[int], runs: Sequence[tuple[int, int, int]]) -> ResidentColumn:
        """Return windows of these rows; see `memload.columns.windows`.

        Raises:
            ValueError: the rows are windows already.
        """
        if self.index.steps is not None:
            raise ValueError(
                "the rows are windows already, which cannot be cut into windows again on a device: cut both kinds of "
                "windows in files or arrays, then call memload.to_device"
            )
        return replace(self, index=self.index.windows(begins_of(runs), steps))

    @staticmethod
    def concat(columns: Sequence[ResidentColumn]) -> ResidentColumn:
        """Return all rows of the first, then of the second, and so on.

        Raises:
            ValueError: they are not in one table.
        """
        first = columns[0]
        if any(one.table is not first.table or not _alike(one.index, first.index) for one in columns):
            raise ValueError(
                "rows that were loaded to a device at different times are in different tables there, and one batch "
                "cannot be gathered from several: join the datasets first, then call memload.to_device"
            )
        return replace(first, index=first.index.joined(one.index for one in columns[1:]))

    def gathered(self, rows: NDArray[np.int64], numbers: RowNumbers | None = None) -> torch.Tensor:
        """Return a fresh copy of these rows on the table's device: uint8 (rows, row_bytes).

        Args:
            rows: row numbers, int64.
            numbers: their numbers on the device; None: they are copied there.
        """
        self.check_here()
        if not len(rows) or not self.row_bytes:
            return torch.empty((len(rows), self.row_bytes), dtype=torch.uint8, device=self.table.device)
        numbers = numbers or self.numbers_of(rows)
        found = self.by_kernel(self.stored_as(self.word, None, numbers), numbers, None)
        self.was_read()
        return found.view(torch.uint8).view(len(rows), self.row_bytes)

    def frames_as(self, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Stored:
        """Return the table as frames of a dtype; of a shape, if one is given. It is made once."""
        found = self._views.get((dtype, shape))
        if found is None:
            found = self._views[dtype, shape] = viewed(self.table, dtype, shape)
        return found

    @functools.cached_property
    def word(self) -> torch.dtype:
        """The widest dtype of which a frame has a whole number."""
        return next(word for word in _WORDS if self.table.shape[1] % word.itemsize == 0)

    def stored_as(self, dtype: torch.dtype, shape: tuple[int, ...] | None, numbers: RowNumbers) -> Stored:  # noqa: ARG002
        """Return the frames to which the numbers of a batch refer, of a dtype; of a shape, if one is given."""
        return self.frames_as(dtype, shape)

    def numbers_of(self, rows: NDArray[np.int64]) -> RowNumbers:
        """Return the numbers of rows on the device."""
        return RowNumbers([self.index], rows, self.table.device)

    def by_kernel(
        self, stored: Stored, numbers: RowNumbers, cast: Cast | None, seeds: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return rows by the kernel that gathers them, if there is one: (rows, *shape), or frames one after the other.

        Args:
            stored: what `stored_as` gives for these numbers.
            numbers: the numbers of the rows.
            cast: the cast of rows; None: they are copied.
            seeds: for a random cast, one seed for each row.
        """
        chosen, beside = numbers.of_column(self), self.crosses_bus(arrived=numbers.arrived(self) is not None)
        if self.index.by_windows:
            steps = steps_on(self.index.steps or (), self.table.device)
            return expand_windows(stored, chosen, steps, cast, beside=beside)
        return gather_rows(stored, chosen, cast, seeds=seeds, beside=beside)

    def was_read(self) -> None:
        """Keep the table's memory until the device's current stream has finished the work queued now."""
        if self.table.device.type == "cuda":
            stream = torch.cuda.current_stream(self.table.device)
            for part in parts_of(self.table):
                part.record_stream(stream)

    def check_here(self) -> None:
        """Raise DeviceError in a process that does not have the rows."""

    def gather(self, rows: NDArray[np.int64], address: int, nbytes: int) -> None:
        """Copy rows to RAM, one after the other, as columns of files do."""
        into = torch.frombuffer(_memory_at(address, nbytes), dtype=torch.uint8)
        into.copy_(self.gathered(rows).view(-1))


def _alike(one: FrameIndex, other: FrameIndex) -> bool:
    return one.steps == other.steps and one.places is other.places


def _memory_at(address: int, nbytes: int) -> Any:
    import ctypes

    return (ctypes.c_uint8 * nbytes).from_address(address)


@dataclass(frozen=True)
class ResidentField(Field):
    """A field whose rows are gathered on their device, as tensors of that device."""

    resident = True

    column: ResidentColumn  # type: ignore[assignment]  # it has the interface of native columns, and its own code reads it

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.column.table.device

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of a stored frame: that of a row, or of a row without the axis of a window."""
        return self.shape if self.column.index.steps is None else self.shape[1:]

    def gather(self, rows: NDArray[np.int64], numbers: RowNumbers | None = None) -> torch.Tensor:
        """Return a fresh tensor (len(rows), *shape) with a copy of these rows, on their device."""
        found = self.column.gathered(rows, numbers)
        return found.view(self.dtype).view(len(rows), *self.shape) if found.numel() else self._empty(len(rows))

    def _empty(self, rows: int) -> torch.Tensor:
        return torch.empty((rows, *self.shape), dtype=self.dtype, device=self.device)

    def recipe(self) -> NoReturn:
        """Raise TypeError, since the field cannot be made again in another process."""
        raise TypeError(
            f"a dataset in the memory of {self.device} cannot be sent to another process or copied: open the data and "
            "call memload.to_device there"
        )


def resident_device(fields: Mapping[Any, Field]) -> torch.device | None:
    """Return the device of all these fields; None if they are read from files or arrays.

    Raises:
        ValueError: some are on a device, and others elsewhere.
    """
    places = {key: field.device if isinstance(field, ResidentField) else None for key, field in fields.items()}
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{key!r}: {place or 'files or arrays'}" for key, place in places.items())
        raise ValueError(
            f"the fields of a dataset must all lie on one device, or all in files and arrays, got {listed}. Put them "
            "side by side first, then call memload.to_device"
        )
    return next(iter(places.values()), None)


_FUSED = (torch.uint8, torch.int8, torch.int16, torch.float16, torch.float32)


def rows_on_device(
    field: ResidentField,
    rows: Numbers,
    cast: Cast | None = None,
    seeds: Sequence[int] | None = None,
    numbers: RowNumbers | None = None,
) -> torch.Tensor:
    """Return a fresh tensor (len(rows), *shape) of these rows on their device, after the cast.

    Args:
        field: the field of the rows.
        rows: row numbers, int64.
        cast: the cast of the rows; None: no cast.
        seeds: for a random cast, one seed for each row.
        numbers: the numbers of these rows on the device; None: they are copied there.

    Raises:
        IndexError: a row number is out of range.
    """
    field.column.check_here()
    if cast is None or not len(rows) or not casts_by_one_kernel(field, cast):
        made = field.gather(rows, numbers)
        return made if cast is None else cast_on_device(made, cast, seeds=seeds)
    column, numbers = field.column, numbers or field.column.numbers_of(rows)
    made = column.by_kernel(column.stored_as(field.dtype, field.frame_shape, numbers), numbers, cast, seeds)
    column.was_read()
    return made


def casts_by_one_kernel(field: ResidentField, cast: Cast) -> bool:
    """Return whether rows are gathered and cast at once, rather than one after the other."""
    index = field.column.index
    whole = index.steps is None or (index.by_windows and not cast.places)
    return type(cast) is Cast and field.dtype in _FUSED and whole and field.row_bytes > 0
