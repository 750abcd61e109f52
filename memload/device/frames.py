"""Finds the stored frames of a field's rows, by index arithmetic that does not depend on where the frames are.

A field's rows may repeat (a table of trials), be some of many (a split), or be windows that share frames (lags). Each
frame is copied to a GPU once; rows stay arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memload._core import Column, Tiles, Windows
from memload.columns.fields import Field
from memload.columns.numbers import begins_of

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FrameIndex:
    """The frames of each row: the frame at which it begins, or the frames at some steps from there.

    Args:
        begins: int64 (rows,), the frame at which each row begins; a range from 0 on: row k begins at frame k.
        steps: a row consists of the frames begin + step for each step; None: of the frame itself.
        places: int64, the stored number of each frame; None: frame k is stored as number k.

    Example:
        >>> FrameIndex(np.array([5, 9]), steps=(0, -1)).numbers(np.array([1, 0]))
        array([[9, 8],
               [5, 4]])
    """

    begins: Numbers | range
    steps: tuple[int, ...] | None = None
    places: Numbers | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.begins)

    @property
    def nbytes(self) -> int:
        """The bytes of this index."""
        return sum(part.nbytes for part in (self.begins, self.places) if isinstance(part, np.ndarray))

    def numbers(self, rows: Numbers) -> Numbers:
        """Return the stored numbers of the frames of these rows: (rows,), or (rows, steps) for windows.

        Raises:
            IndexError: a row number is out of range.
        """
        return self._stored(self.begin(rows))

    @functools.cached_property
    def identity(self) -> tuple[object, ...]:
        """A value that is equal for two indices only if they lead to the same numbers; valid while they live."""
        begins = "all" if isinstance(self.begins, range) else id(self.begins)
        return begins, len(self.begins), self.steps, None if self.places is None else id(self.places)

    @property
    def by_windows(self) -> bool:
        """Whether rows are gathered as windows: by where they begin, and by their steps."""
        return self.steps is not None and self.places is None

    def gathered_by(self, rows: Numbers) -> Numbers:
        """Return the numbers by which these rows are gathered, with one axis: of windows, or of all their frames.

        Raises:
            IndexError: a row number is out of range.
        """
        return self.begin(rows) if self.by_windows else self.numbers(rows).reshape(-1)

    def begin(self, rows: Numbers) -> Numbers:
        """Return the frames at which these rows begin. Raises IndexError as `numbers` does."""
        rows = rows.astype(np.int64, casting="same_kind", copy=False)  # of any integers, as fields in files take them
        bad = rows.view(np.uint64) >= self.rows  # as which negative numbers are large
        if bad.any():
            raise IndexError(f"row {rows[bad.argmax()]} is not one of the {self.rows} rows")
        return self._begin(rows)

    def select(self, rows: Numbers) -> FrameIndex:
        """Return the index of these rows, in this order."""
        return replace(self, begins=self._begin(rows))

    def joined(self, others: Iterable[FrameIndex]) -> FrameIndex:
        """Return the index of these rows and then of the rows of others, in the same frames."""
        return replace(self, begins=np.concatenate([np.asarray(one.begins, np.int64) for one in (self, *others)]))

    def into(self, numbers: Numbers) -> FrameIndex:
        """Return the index whose frame k is stored as ``numbers[k]``."""
        if self.steps is None:
            return FrameIndex(numbers[self._stored(np.asarray(self.begins))])
        return replace(self, places=numbers if self.places is None else numbers[self.places])

    def windows(self, begins: Numbers, steps: Sequence[int]) -> FrameIndex:
        """Return the index of windows of these rows: of the rows begin + step, for each begin."""
        if self.steps is not None:
            raise ValueError("rows that are windows already cannot be cut into windows again")
        whole = self.places is None and isinstance(self.begins, range)
        return FrameIndex(begins, tuple(steps), None if whole else self._stored(np.asarray(self.begins)))

    def compact(self, frames: int) -> tuple[Numbers | range, FrameIndex]:
        """Return the frames that rows use, in rising order, and the index into these frames alone."""
        if isinstance(self.begins, range):
            return self.begins, self
        used = np.zeros(frames, dtype=np.bool_)
        for step in self.steps or (0,):
            begins = self.begins + step
            used[begins if self.places is None else self.places[begins]] = True
        if used.all():
            return range(frames), self
        place = np.maximum(np.cumsum(used) - 1, 0)  # unused frames get some valid number
        if self.steps is None and self.places is None:
            return np.flatnonzero(used), FrameIndex(place[self.begins])
        places = place if self.places is None else place[self.places]
        return np.flatnonzero(used), replace(self, places=places)

    def _begin(self, rows: Numbers) -> Numbers:
        return rows if isinstance(self.begins, range) else self.begins[rows]

    def _stored(self, begins: Numbers) -> Numbers:
        frames = begins if self.steps is None else begins[:, None] + np.asarray(self.steps)
        return frames if self.places is None else self.places[frames]


def frames_of(field: Field) -> tuple[Field, FrameIndex]:
    """Return the frames that a field stores, without any selection, and the index of its rows into them."""
    windows = windows_of(field)
    if windows is None:
        return _stored_rows(field)
    inner = replace(field, shape=field.shape[1:], column=windows.frames, blocks=None)
    frames, index = _stored_rows(inner)
    begins = begins_of(windows.runs)
    return frames, index.windows(begins if windows.selection is None else begins[windows.selection], windows.steps)


def windows_of(field: Field) -> Windows | None:
    """Return the rows of a field as windows of frames, also if they are stored rows that overlap; None: no windows."""
    column = field.column
    if isinstance(column, Windows):
        return column
    if not isinstance(column, Column) or not field.shape or field.shape[0] < 2 or not column.row_bytes:
        return None
    windows = _overlapping_windows(column, int(field.shape[0]))
    return windows if windows is None or column.selection is None else windows.select(column.selection)


def _stored_rows(field: Field) -> tuple[Field, FrameIndex]:
    """Return the stored rows of a field, each as a frame, and the index of its rows."""
    column = field.column
    if not isinstance(column, Column | Tiles) or column.selection is None:
        return field, FrameIndex(range(field.rows))
    whole = Column(column.row_bytes, column.segments) if isinstance(column, Column) else Tiles(column.parts)
    return replace(field, column=whole, blocks=None), FrameIndex(column.selection)


def _overlapping_windows(column: Column, length: int) -> Windows | None:
    """Return all stored rows, each a run of `length` frames, as windows; None unless they overlap by whole frames."""
    frame_bytes = column.row_bytes // length
    segments, runs, first = [], [], 0
    for storage, offset, rows, stride in (segment for segment in column.segments if segment[2]):
        if rows > 1 and (stride >= column.row_bytes or stride <= 0 or stride % frame_bytes):
            return None
        hop = stride // frame_bytes if rows > 1 else 0
        runs.append((first, rows, hop))
        segments.append((storage, offset, (rows - 1) * hop + length, frame_bytes))
        first += segments[-1][2]
    if all(rows == 1 for _, rows, _ in runs):
        return None
    return Windows(Column(frame_bytes, segments), list(range(length)), runs)
