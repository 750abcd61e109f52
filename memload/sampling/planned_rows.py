"""Which rows the batches to come have: a plan, noted on its way to what gathers."""

from __future__ import annotations

from collections import deque

import numpy as np

from memload.sampling.draws import Indices


class PlannedRows:
    """The rows of each batch to come, cut from a plan as the pipeline cuts them. Not synchronised.

    Arrays are kept as they are, and let go when their last row is taken.

    Args:
        batch_rows: rows of a full batch.
        drop_last: whether a last batch with fewer rows is left out.
    """

    def __init__(self, batch_rows: int, drop_last: bool) -> None:
        self._batch_rows, self._drop_last = batch_rows, drop_last
        self._stream: deque[Indices] = deque()
        self._whole: deque[Indices] = deque()
        self._left = 0
        self._finished = False

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._stream.append(rows)
        self._left += len(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._whole.append(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._finished = True

    @property
    def ready(self) -> bool:
        """Whether the next batch is known."""
        return bool(self._whole) or self._next_rows > 0

    @property
    def ended(self) -> bool:
        """Whether no batch is left and none will come."""
        return self._finished and not self.ready

    @property
    def _next_rows(self) -> int:
        if self._left >= self._batch_rows:
            return self._batch_rows
        return self._left if self._finished and not self._drop_last else 0

    def take(self) -> Indices:
        """Return the rows of the next batch. Raises IndexError if there is none now."""
        if self._whole:
            return self._whole.popleft()
        wanted = self._next_rows
        if not wanted:
            raise IndexError("no batch is planned")
        self._left -= wanted
        parts = []
        while wanted:
            first = self._stream.popleft()
            parts.append(first[:wanted])
            if len(first) > wanted:
                self._stream.appendleft(first[wanted:])
            wanted -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def skip(self, batches: int) -> None:
        """Drop the rows of so many batches, which must have been planned."""
        if self._whole:
            for _ in range(batches):
                self._whole.popleft()
            return
        behind = min(batches * self._batch_rows, self._left)
        self._left -= behind
        while behind:
            first = self._stream.popleft()
            if len(first) > behind:
                self._stream.appendleft(first[behind:])
            behind -= min(behind, len(first))
