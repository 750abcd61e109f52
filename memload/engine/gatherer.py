"""What makes the batches of a pass: the protocol through which its layers ask each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from memload import _core
from memload.engine.transforms.seeding import PassSeed
from memload.sampling.draws import Indices
from memload.sampling.row_plan import PlanSink
from memload.stats import LoaderStats


class Gatherer(PlanSink, Protocol):
    """Makes batches of a plan, in its order, ahead of the loop. For one consumer at a time."""

    rows: int
    """Rows of the dataset, to which the plan's row numbers refer."""
    depth: int
    """Batches gathered ahead."""

    def begin(self, seed: PassSeed) -> None:
        """Receive the seed of the random numbers of this pass; called once, before the first rows."""

    def next(self, timeout: float) -> Any:
        """Return the next batch or a `BatchResult`, None at the end; waits ``timeout`` seconds, 0: for ever.

        Raises:
            TimeoutError: no batch was ready in time.
            ShardReadError, IndexError: a row of this batch cannot be read, or is not there.
        """

    def check_files(self) -> None:
        """Ask, once `next` has returned None, whether the pass read files as they were when they were opened.

        Raises:
            ShardReadError: a file was cut, so that rows may have had zeros; the kernel says nothing of its last page.
        """

    def is_ready(self) -> bool:
        """Whether the next batch may be taken before the loop asks for it, without waiting and without a slot."""
        return False

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last. A layer that others stand around has to know."""
        raise LookupError(f"{type(self).__name__} does not say which rows its batches have")

    def cancel(self) -> _core.PlanQueue:
        """Stop gathering, and return the plan of the batches that `next` has not returned; `close` has to follow.

        What may have guards around it has to be able to.

        Raises:
            Exception: what `next` would have raised, after which nothing comes.
        """
        raise LookupError(f"{type(self).__name__} does not give its plan back")

    def placed(self, batch: Any, about: Indices | int) -> Any:  # noqa: ARG002 - for layers that draw random numbers
        """Return a batch that the dataset itself answered, on the CPU, as the loop is to get it.

        Args:
            batch: what it answered.
            about: what randomness follows from: the rows of the batch, or its number where these are not known.
        """
        return batch

    def stats(self) -> LoaderStats:
        """Return the counters of this pass; the wall time is its owner's to know."""
        ...

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass.

        Args:
            keep_slots: whether a later pass will have them.
            at_once: whether a wait for a batch ran into the timeout, so that there is little to wait for.
        """


class AroundGatherer(Gatherer):
    """A layer around a gatherer, of which it asks what it does not do itself.

    What follows from the batch that was handed out last (`row_numbers`, `is_ready`, `cancel`) is asked of no other: a
    layer may have taken batches from its gatherer that it has not handed out.

    Args:
        gatherer: what it stands around.
    """

    def __init__(self, gatherer: Gatherer) -> None:
        self.gatherer = gatherer
        self.rows, self.depth = gatherer.rows, gatherer.depth

    def begin(self, seed: PassSeed) -> None:
        """Begin the pass."""
        self.gatherer.begin(seed)

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self.gatherer.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self.gatherer.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self.gatherer.finish()

    def next(self, timeout: float) -> Any:
        """Return the next batch, or a `BatchResult`; None at the end."""
        return self.gatherer.next(timeout)

    def check_files(self) -> None:
        """Raise if a file of the pass was cut since it was opened."""
        self.gatherer.check_files()

    def placed(self, batch: Any, about: Indices | int) -> Any:
        """Return a batch that the dataset itself answered as the loop is to get it."""
        return self.gatherer.placed(batch, about)

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        return self.gatherer.stats()

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass."""
        self.gatherer.close(keep_slots, at_once)


@dataclass
class BatchResult:
    """What became of a batch: what the functions returned, or what one of them raised.

    Whoever has a result takes what is in it, or drops that. Until then an error in it is part of a reference cycle:
    the error refers to the frames that it passed, some of which refer to the result.

    Attributes:
        batch: what they returned.
        error: what one of them raised.
        may_stop: whether a `StopIteration` among errors comes as it is, and ends a loop as it does in a stock loader.
    """

    batch: Any = None
    error: BaseException | None = None
    may_stop: bool = False

    def result(self) -> Any:
        """Return the batch, or raise the error with the traceback that it has; once."""
        batch, error = self.batch, self.error
        self.drop()
        if error is None:
            return batch
        try:
            if isinstance(error, StopIteration) and not self.may_stop:
                raise RuntimeError("a transform raised StopIteration, which would end the loop unheard") from error
            raise error
        finally:
            del error  # the traceback of the error holds this frame, which would hold the error

    def drop(self) -> None:
        """Let go of what is in it."""
        self.batch = self.error = None


def capture(fn: Callable[..., Any], *arguments: object) -> Any:
    """Return what a function returns that calls the user's, or a `BatchResult` of what it raised: that ends no pass."""
    try:
        return fn(*arguments)
    except Exception as error:
        return BatchResult(error=error, may_stop=True)


def longest_close(at_once: bool) -> float:
    """Return for how many seconds the end of a pass waits for reads: after a timeout, they were waited for before."""
    return 0.1 if at_once else 2.0
