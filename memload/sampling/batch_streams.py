"""Batches of rows that are known ahead as arrays, and the feed of a pass with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from memload.sampling.budget_batches import BudgetBatchSampler
from memload.sampling.draws import Indices, Position

if TYPE_CHECKING:
    from memload.sampling.row_plan import PlanSink, Progress

_ITERATED_BY = BudgetBatchSampler.__iter__  # the method when memload was imported

MOST_ROWS = sys.maxsize // 8
"""The most rows that a list, and so a batch of torch's, can hold."""


class RowBatches(Protocol):
    """The batches of one pass, or the remaining batches of it, as arrays of rows."""

    @property
    def values(self) -> range:
        """The range that contains all rows."""

    def next(self, seen: int) -> Indices | None:
        """Return the rows of the next batch, None after the last; `seen` is the number of batches that the loop had."""

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after the loop has seen `seen` batches."""


def batches_known(batch_sampler: Any) -> bool:
    """Return whether the batches of this sampler are known ahead; a subclass or a patch may make other batches."""
    return type(batch_sampler) is BudgetBatchSampler and BudgetBatchSampler.__iter__ is _ITERATED_BY


def batch_stream(batch_sampler: Any, position: Position | None) -> RowBatches:
    """Return the batches of one pass over a sampler whose batches are known, from a position on if one is given.

    Raises:
        ValueError: the position is damaged.
    """
    try:
        found: RowBatches = batch_sampler.stream(position)
        found.position(0)
    except Exception as error:
        raise ValueError(f"the state's position in the sampler is damaged: {error!r}") from error
    return found


class KnownBatches:
    """Feeds the batches of a stream; a `memload.sampling.row_plan.Feed`."""

    def __init__(self, source: RowBatches, sink: PlanSink, progress: Progress) -> None:
        progress.follow(source)
        self._source, self._sink, self._progress = source, sink, progress
        self._fed = 0
        self.ended = False
        """Whether the plan is complete, so that `pull` does nothing."""

    def start_again(self) -> None:
        """Do nothing, because nothing is drawn before the first batch of a stream."""

    def pull(self, batches: int, ahead: int) -> None:
        """Feed `batches` batches in total, and `ahead` more."""
        while not self.ended and self._fed < batches + ahead:
            rows = self._source.next(self._progress.seen)
            if rows is None:
                self.ended = True
                self._sink.finish()
                return
            self._fed += 1
            self._sink.push(rows)
