"""Gatherers that are one native pipeline: what those have in common whose batches come to different places."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from memload import _core
from memload.sampling.draws import Indices
from memload.stats import LoaderStats
from memload.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.engine.passes import PassSettings


def longest_close(at_once: bool) -> float:
    """Return for how many seconds the end of a pass waits for reads: after a timeout, they were waited for before."""
    return 0.1 if at_once else 2.0


class PipelinedBatches(abc.ABC):
    """A `Gatherer` of batches as they are planned, by one pipeline."""

    def __init__(self, settings: PassSettings, pipeline: _core.Pipeline) -> None:
        self.rows, self.depth = settings.source.rows, settings.depth
        self._pipeline = pipeline

    def begin(self, seed: PassSeed) -> None:  # noqa: B027 - not abstract: most have nothing to do
        """Nothing random happens here."""

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._pipeline.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._pipeline.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._pipeline.finish()

    @abc.abstractmethod
    def next(self, timeout: float) -> Any:
        """Return the next batch, None at the end."""

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        return LoaderStats(**self._pipeline.stats())

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        self._pipeline.close(keep_slots, longest_close(at_once))
