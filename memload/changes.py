"""A pass over data that is changed meanwhile: what was gathered ahead is put aside, and the dataset itself answers.

plan -> UpToDate -> pipeline -> batch                 as long as nothing has changed
           |
           +-> rows of the next batch -> dataset -> collate -> batch     from the first change on
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memload.by_the_dataset import answer
from memload.plan import Indices, Unplanned
from memload.stats import LoaderStats
from memload.watches import Watch

if TYPE_CHECKING:
    from memload.engine import Gatherer
    from memload.loader import FastLoader


class UpToDate:
    """Gathers as another gatherer does until what it reads is changed; from then on, asks the dataset for each batch.

    A stock loader without workers reads each batch when the loop asks for it, so that it shows what the loop has
    written before. What was gathered ahead would not.

    Args:
        gatherer: what gathers.
        watches: what it reads.
        loader: whose dataset answers then.
        batch_rows: rows of a batch that is cut from a stream.
        drop_last: whether the last rows of a stream that make no batch are left out.
    """

    def __init__(
        self, gatherer: Gatherer, watches: Sequence[Watch], loader: FastLoader[Any], batch_rows: int, drop_last: bool
    ) -> None:
        self.gatherer: Gatherer = gatherer
        self.rows, self.depth = gatherer.rows, gatherer.depth
        self._watches = watches
        self._before = self._now()
        self._changed = False
        self._loader = weakref.ref(loader)  # which keeps this between passes if its workers are persistent
        self._ahead = PlannedRows(batch_rows, drop_last)

    def extend(self, rows: Indices) -> None:
        """Take rows that follow those before."""
        self._ahead.extend(rows)
        if not self._changed:
            self.gatherer.extend(rows)

    def push(self, rows: Indices) -> None:
        """Take rows that are one batch."""
        self._ahead.push(rows)
        if not self._changed:
            self.gatherer.push(rows)

    def finish(self) -> None:
        """Know that nothing follows."""
        self._ahead.finish()
        if not self._changed:
            self.gatherer.finish()

    def next(self, timeout: float) -> Any:
        """Return the next batch, None at the end."""
        if not self._changed and self._now() != self._before:
            self._changed = True
            self.gatherer.close(keep_slots=True)
        if not self._changed:
            self._ahead.skip()
            return self.gatherer.next(timeout)
        rows, loader = self._ahead.take(), self._loader()
        return None if rows is None or loader is None else answer(loader, Unplanned(rows.tolist()))

    def stats(self) -> LoaderStats:
        """Return the counters of what was gathered."""
        return self.gatherer.stats()

    def close(self, keep_slots: bool) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        self.gatherer.close(keep_slots)
        self._watches, self._ahead = (), PlannedRows(1, drop_last=False)

    def _now(self) -> list[Any]:
        return [watch.state() for watch in self._watches]


class PlannedRows:
    """The rows of the batches to come; arrays are kept as they are and let go when their last row is taken.

    Args:
        batch_rows: rows of a batch that is cut from a stream.
        drop_last: whether the last rows of a stream that make no batch are left out.
    """

    def __init__(self, batch_rows: int, drop_last: bool) -> None:
        self._batch_rows = batch_rows
        self._drop_last = drop_last
        self._arrays: deque[Indices] = deque()
        self._whole = False
        self._used = 0  # of the first array
        self._finished = False

    def extend(self, rows: Indices) -> None:
        """Take rows that follow those before."""
        self._arrays.append(rows)

    def push(self, rows: Indices) -> None:
        """Take rows that are one batch."""
        self._whole = True
        self._arrays.append(rows)

    def finish(self) -> None:
        """Know that nothing follows."""
        self._finished = True

    def skip(self) -> None:
        """Pass by the next batch, if there is one."""
        if self._whole:
            if self._arrays:
                self._arrays.popleft()
            return
        self._used += self._batch_rows
        while self._arrays and self._used >= len(self._arrays[0]):
            self._used -= len(self._arrays.popleft())

    def take(self) -> Indices | None:
        """Return the rows of the next batch, None if there is none."""
        if self._whole:
            return self._arrays.popleft() if self._arrays else None
        parts, wanted, begin = [], self._batch_rows, self._used
        for array in self._arrays:
            parts.append(array[begin : begin + wanted])
            wanted, begin = wanted - len(parts[-1]), 0
            if not wanted:
                break
        rows = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        self.skip()
        return None if not len(rows) or (wanted and self._drop_last) else rows
