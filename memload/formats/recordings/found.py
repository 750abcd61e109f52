"""What a file or folder has of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from memload._core import Column
from memload.columns.clocks import Clock
from memload.columns.fields import Field
from memload.columns.intervals import Intervals
from memload.columns.spikes import Spikes
from memload.errors import FormatError
from memload.formats.arrays import borrow_array
from memload.sizes import counted


@dataclass
class Found:
    """What a file holds.

    Attributes:
        fields: series and spikes by name.
        clocks: of the series.
        intervals: tables by name.
        scales: scale and offset of the series whose values are not in their unit as they are stored.
        left_out: why something is not among these, by its place in the file.
        name: what the file says of itself.
    """

    fields: dict[str, Field | Spikes] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    intervals: dict[str, Intervals] = field(default_factory=dict)
    scales: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    name: str = ""

    @contextmanager
    def telling(self, place: str, strict: str = "") -> Iterator[None]:
        """Keep why something cannot be read, by its place; or raise FormatError that begins with `strict`, if given."""
        try:
            yield
        except (FormatError, TypeError, ValueError) as error:
            if strict:
                raise FormatError(f"{strict}: {error}") from error
            self.left_out[place] = str(error)

    def add_table(self, name: str, group: Any, edges: tuple[str, str], columns: Iterable[str]) -> None:
        """Add the intervals in a group of HDF5 or Zarr, or say why they are left out.

        Args:
            name: of the table.
            group: its datasets by name.
            edges: the names of those that hold starts and stops in seconds.
            columns: the names of others. Numbers and texts are read; a column of another length is left out and told,
                and so are intervals without a time, or that do not end behind their beginning.
        """
        with self.telling(group.name):
            start, stop = (group[edge][()] for edge in edges)
            found = {}
            for column in columns:
                if column in edges or column not in group or (values := _column(group[column])) is None:
                    continue
                if values.shape[:1] == start.shape[:1]:
                    found[column] = values
                else:
                    why = f"its shape is {values.shape}, and there are {len(start):,} intervals"
                    self.left_out[f"{group.name}/{column}"] = why
            if (valid := self._valid(group.name, start, stop)) is not None:
                start, stop = start[valid], stop[valid]
                found = {column: values[valid] for column, values in found.items()}
            self.intervals[name] = Intervals(start, stop, found)

    def _valid(self, place: str, start: Any, stop: Any) -> Any:
        """Return which intervals of a table there can be, bool (n,), and tell of the others; None: all, or none."""
        if start.shape != stop.shape or start.ndim != 1 or not {start.dtype.kind, stop.dtype.kind} <= {*"iuf"}:
            return None  # the error of the intervals says it
        timed = np.isfinite(start) & np.isfinite(stop)
        valid = timed & (stop > start)
        if valid.all() or not valid.any():
            return None
        first, without, empty = int(valid.argmin()), int((~timed).sum()), int((timed & ~valid).sum())
        self.left_out[f"{place}/start and stop"] = (
            f"{without + empty:,} of {counted(len(start), 'interval is', 'intervals are')} left out: {without:,} "
            f"without a time, {empty:,} that "
            f"do not end behind their beginning; the first is number {first:,}, from {start[first]} to {stop[first]}"
        )
        return valid

    def names_of_units(self, place: str, ids: Sequence[Any]) -> tuple[Any, ...]:
        """Return the names of units: their ids, or numbers if two have the same one, which is told."""
        several = len(ids) - len(set(ids))
        if not several:
            return tuple(ids)
        self.left_out[place] = f"{several:,} of {len(ids):,} units have the id of another: all are numbered instead"
        return tuple(range(len(ids)))

    def check(self, path: Path, missing: str) -> None:
        """Raise FormatError if there are no fields, with why; or with what is missing, where nothing was left out."""
        if not self.fields:
            listed = "; ".join(f"{place}: {why}" for place, why in self.left_out.items()) or missing
            raise FormatError(f"{path}: nothing in it can be read as a recording: {listed}")


def text(value: Any) -> str:
    """Return a text of a file, which may be bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _column(dataset: Any) -> Any:
    """Return the numbers or the texts of a column; None if it has neither, such as references."""
    dtype = dataset.dtype
    if dtype.kind in "biuf":
        return dataset[()]
    if dtype.kind != "S" and (dtype.kind != "O" or not (dtype.metadata is None or "vlen" in dtype.metadata)):
        return None
    values = np.asarray(dataset[()], dtype=object)
    return np.array([text(one) for one in values.reshape(-1)], dtype=object).reshape(values.shape)


def one_row(image: Field) -> Field:
    """An image, whose first axis counts its lines, as a field of one row."""
    shape, nbytes, column = (image.rows, *image.shape), image.nbytes, image.column
    if isinstance(column, Column) and len(column.segments) == 1:
        storage, offset, _, stride = column.segments[0]
        if stride == image.row_bytes:
            return Field(image.dtype, shape, Column(nbytes, [(storage, offset, 1, nbytes)]))
    return borrow_array("image", image.gather(np.arange(image.rows)).unsqueeze(0))  # decoded, once
