"""A pass over data that is changed meanwhile: what was gathered ahead is dropped, and the dataset itself answers.

plan -> GuardedBatches -> pipeline -> device -> batch                 as long as nothing has changed
           |
           +-> rows of the next batch -> dataset -> collate -> device -> batch     from the first change on
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memload import _core
from memload.engine.by_the_dataset import answer_rows
from memload.engine.gatherer import BatchResult, Gatherer, capture
from memload.engine.mutation_guards import MutationGuard
from memload.engine.request import PassRequest
from memload.engine.transforms.seeding import PassSeed
from memload.sampling.draws import Indices
from memload.stats import LoaderStats


class GuardedBatches(Gatherer):
    """Gathers as another gatherer does until what it reads is changed; from then on, asks the dataset for each batch.

    A stock loader without workers reads each batch when the loop asks for it, so that it shows what the loop has
    written before. What was gathered ahead would not.

    Args:
        gatherer: what gathers.
        guards: what it reads.
        request: whose dataset answers then.
    """

    def __init__(self, gatherer: Gatherer, guards: Sequence[MutationGuard], request: PassRequest) -> None:
        self.gatherer = gatherer
        self.rows, self.depth = gatherer.rows, gatherer.depth
        self._guards = guards
        self._before = self._now()
        self._request: PassRequest | None = request  # until the pass ends
        self._left: _core.PlanQueue | None = None  # of the plan, since something has changed

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        (self._left or self.gatherer).extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        (self._left or self.gatherer).push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        (self._left or self.gatherer).finish()

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass."""
        self._seed = seed
        self.gatherer.begin(seed)

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        request = self._request
        if request is None:
            return None
        if self._left is None and self._now() != self._before:
            self._left = self.gatherer.cancel()
            self.gatherer.close(keep_slots=True)
        if self._left is None:
            return self.gatherer.next(timeout)
        if not self._left.ready:
            return None
        rows = self._left.take()
        return capture(lambda: BatchResult(self.placed(answer_rows(request, rows.tolist(), self._seed, rows), rows)))

    def check_files(self) -> None:
        """Raise if a file of the pass was cut since it was opened."""
        self.gatherer.check_files()

    def placed(self, batch: Any, about: Indices | int) -> Any:
        """Return a batch that the dataset itself answered as the loop is to get it."""
        return self.gatherer.placed(batch, about)

    def stats(self) -> LoaderStats:
        """Return the counters of what was gathered."""
        return self.gatherer.stats()

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        self.gatherer.close(keep_slots, at_once)
        self._guards, self._left, self._request = (), None, None

    def _now(self) -> list[Any]:
        return [guard.state() for guard in self._guards]
