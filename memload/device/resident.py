"""Fields whose bytes are in a GPU's memory, in RAM for a device that gathers by itself, or in both.

row numbers -> numbers of frames, to the device -> one kernel: gather + cast, where there is one -> rows
               frames.py                           gathering.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

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
from memload.engine.cast_batches import Casting
from memload.engine.gather_spec import GatherSpec
from memload.engine.transforms.seeding import PassSeed

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

    @property
    def is_far(self) -> bool:
        """Whether rows lie outside of the memory of the device that gathers them."""
        return False

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
        frame_bytes = self.table.shape[1]
        if not len(rows) or not self.row_bytes:
            return torch.empty((len(rows), self.row_bytes), dtype=torch.uint8, device=self.table.device)
        word = next(word for word in _WORDS if frame_bytes % word.itemsize == 0)
        found = self.by_kernel(viewed(self.table, word), self.numbers_of(rows, numbers), None)
        self.was_read()
        return found.view(torch.uint8).view(len(rows), self.row_bytes)

    def numbers_of(self, rows: NDArray[np.int64], numbers: RowNumbers | None) -> torch.Tensor:
        """Return the numbers on the device by which these rows are gathered, out of those that are there."""
        return (numbers or RowNumbers([self.index], rows, self.table.device)).of(self.index)

    def by_kernel(
        self, stored: Stored, numbers: torch.Tensor, cast: Cast | None, seeds: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return rows by the kernel that gathers them, if there is one: (rows, *shape), or frames one after the other.

        Args:
            stored: the table as frames of a dtype and shape.
            numbers: what `numbers_of` gives.
            cast: the cast of rows; None: they are copied.
            seeds: for a random cast, one seed for each row.
        """
        if self.index.by_windows:
            steps = steps_on(self.index.steps or (), self.table.device)
            return expand_windows(stored, numbers, steps, cast, beside=self.is_far)
        return gather_rows(stored, numbers, cast, seeds=seeds, beside=self.is_far)

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
    if cast is None or not _casts_by_one_kernel(field, rows, cast):
        made = field.gather(rows, numbers)
        return made if cast is None else cast_on_device(made, cast, seeds=seeds)
    column, frame = field.column, field.shape if field.column.index.steps is None else field.shape[1:]
    stored = viewed(column.table, field.dtype, frame)
    made = column.by_kernel(stored, column.numbers_of(rows, numbers), cast, seeds)
    column.was_read()
    return made


def _casts_by_one_kernel(field: ResidentField, rows: Numbers, cast: Cast) -> bool:
    """Return whether rows are gathered and cast at once, rather than one after the other."""
    index = field.column.index
    whole = index.steps is None or (index.by_windows and not cast.places)
    return type(cast) is Cast and field.dtype in _FUSED and whole and len(rows) > 0 and field.row_bytes > 0


def batch_maker(source: GatherSpec) -> Callable[..., Any]:
    """Return the function that makes the batch of some rows, as default_collate would shape it.

    Its second argument is the seed of the pass for random numbers; without it, the seed is drawn from torch's default
    generator.
    """
    late = source.late_casts or {}
    fields = [(field, (source.casts.get(key), late.get(key))) for key, field in source.fields.items()]
    layout = source.layout
    columns: list[Any] = [field.column for field, _ in fields]

    def make(rows: NDArray[np.int64], seed: PassSeed | None = None) -> Any:
        casting = Casting(seed, rows)
        there = columns[0].table.device if columns else torch.device("cpu")
        numbers = RowNumbers([column.index for column in columns], rows, there)
        return layout.build(_made(field, rows, casts, casting, numbers) for field, casts in fields)

    return make


def _made(
    field: Any,
    rows: NDArray[np.int64],
    casts: tuple[Cast | None, ...],
    casting: Casting,
    numbers: RowNumbers,
) -> torch.Tensor:
    """Return rows of a field after its casts; the first cast is part of the gather."""
    wanted = [cast for cast in casts if cast is not None]
    if not wanted:
        return rows_on_device(field, rows, numbers=numbers)
    x = rows_on_device(field, rows, wanted[0], casting.seeds(wanted[0], len(rows)), numbers)
    for cast in wanted[1:]:
        x = cast_on_device(x, cast, seeds=casting.seeds(cast, len(x)))
    return x
