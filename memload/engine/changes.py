"""A pass over data that is changed meanwhile: what was gathered ahead is put aside, and the dataset itself answers.

plan -> UpToDate -> pipeline -> batch                 as long as nothing has changed
           |
           +-> rows of the next batch -> dataset -> collate -> batch     from the first change on
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memload.engine.by_the_dataset import answer_rows
from memload.engine.watches import Watch
from memload.sampling.planned_rows import PlannedRows
from memload.sampling.row_plan import Indices
from memload.stats import LoaderStats
from memload.transforms.recipe import Outcome, attempted
from memload.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.engine.passes import Gatherer
    from memload.loader import FastLoader

_LET_GO = 64  # batches after which their rows are let go: each by itself would cost a microsecond


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
        self._behind = 0  # batches of `_ahead` that were gathered

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._ahead.extend(rows)
        if not self._changed:
            self.gatherer.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._ahead.push(rows)
        if not self._changed:
            self.gatherer.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._ahead.finish()
        if not self._changed:
            self.gatherer.finish()

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass."""
        self._seed = seed
        self.gatherer.begin(seed)

    def next(self, timeout: float) -> Any:
        """Return the next batch, or an `Outcome`; None at the end."""
        if not self._changed and self._now() != self._before:
            self._changed = True
            self._let_go()
            self.gatherer.close(keep_slots=True)
        if not self._changed:
            return self._gathered(timeout)
        loader = self._loader()
        if loader is None or not self._ahead.ready:
            return None
        rows = self._ahead.take()
        return attempted(lambda: Outcome(answer_rows(loader, rows.tolist(), self._seed, rows)))

    def _gathered(self, timeout: float) -> Any:
        batch = self.gatherer.next(timeout)
        if batch is not None:
            self._behind += 1
            if self._behind == _LET_GO:
                self._let_go()
        return batch

    def _let_go(self) -> None:
        self._ahead.skip(self._behind)
        self._behind = 0

    def stats(self) -> LoaderStats:
        """Return the counters of what was gathered."""
        return self.gatherer.stats()

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        self.gatherer.close(keep_slots, at_once)
        self._watches, self._ahead = (), PlannedRows(1, drop_last=False)

    def _now(self) -> list[Any]:
        return [watch.state() for watch in self._watches]
