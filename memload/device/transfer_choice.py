"""Chooses how rows come out of pinned RAM, by trying both ways: the kernel reads them, or the copy engine moves them.

    batches   k k k k k k k | c c c c c c c | k k k k k k k | c c c c c c c | ...   in turn: kernel, copy engine
    seconds         |-----|         |-----|         |-----|         |-----|         by the device's clock, between ends
                         warm-up                         a ratio                    ... until there are `RATIOS`

What is timed is the pass itself, so that whatever limits it counts: the bus, the device, native threads, or the loop.
Times are taken for each row that lies in RAM, of which one run has more than another. What is gathered and copied ahead
is paid for by the run that has it: the copy engine begins a run behind the last kernel of the one before
(`TransferTrial.turns`), and the batches that native threads gathered meanwhile are not timed.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

RUN = 7
"""Batches of a run."""

SETTLING = 3
"""The first batches of a run, from the end of which time counts: one follows a batch that came in the other way, and
those that are ahead of it (`copied_rows.AHEAD`) may have been gathered before the run."""

RATIOS = 5
"""How many pairs of runs decide, after a first pair, in which memory is pinned and threads start."""

LEAST_GAIN = 0.1
"""The copy engine takes native threads, and pinned memory, so it has to be faster by this share of the time. Noise in
fewer than half of the pairs decides nothing."""

LEAST_BATCHES = 4 * RUN
"""Passes of fewer batches try nothing: each pass begins with a pair that does not count."""

_MOST_VAIN = 3 * RATIOS  # pairs of a pass with batches of other sizes, after which no more are tried


@dataclass
class TransferChoice:
    """The choice for some rows and batches of one size, which their passes share.

    Attributes:
        ratios: the time of the copy engine over that of the kernel, for each pair of runs.
        by_copies: whether the copy engine moves the rows; None: that is not decided.
        refusal: why it cannot, as a clause; "": it can.
    """

    ratios: list[float] = field(default_factory=list)
    by_copies: bool | None = None
    refusal: str = ""

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def note(self, ratio: float) -> None:
        """Take another ratio, and decide if it is the last."""
        if self.by_copies is None:
            self.ratios.append(ratio)
            if len(self.ratios) == RATIOS:
                self.by_copies = bool(self.ratio < 1 - LEAST_GAIN)

    def refuse(self, why: str) -> None:
        """Leave the rows to the kernel, since the copy engine cannot move them."""
        self.by_copies, self.refusal = False, why

    def __str__(self) -> str:
        """Which way it is, as a clause."""
        if self.by_copies is None:
            return "the kernel or the copy engine brings those in pinned RAM, whichever its first batches find faster"
        found = f" ({self.ratio:.2f} of the kernel's time)" if self.ratios else ""
        if self.by_copies:
            return f"the copy engine brings those in pinned RAM{found}"
        why = self.refusal and f", since {self.refusal}"
        return f"the kernel reads those in pinned RAM{why}" + found.replace(" (", " (by the copy engine ")


@dataclass
class _Run:
    """A run of batches in one way.

    Attributes:
        first, last: timestamps of the ends of the last of its `SETTLING` batches, and of its last batch.
        rows: rows in RAM of the batches in between and of the last.
        disturbed: whether another batch came in between that is not to be compared.
    """

    first: Any = None
    last: Any = None
    rows: int = 0
    disturbed: bool = False


class TransferTrial:
    """The runs of one pass, in the order of its batches.

    Args:
        choice: what the pass decides, or finds decided.
        seconds_between: returns the seconds from one timestamp to another; None: they have not come yet.

    Attributes:
        by_copies: the way of the batch that began last.

    Example:
        >>> trial, ways = TransferTrial(TransferChoice(), lambda first, last: None), []
        >>> for _ in range(2 * RUN):
        ...     place = trial.begin(rows=4, full=True)
        ...     ways.append(trial.by_copies)
        >>> ways.count(True), ways[-1]
        (7, True)
    """

    def __init__(self, choice: TransferChoice, seconds_between: Callable[[Any, Any], float | None]) -> None:
        self.choice = choice
        self.by_copies = False
        self._seconds_between = seconds_between
        self._begun = self._pairs = self._vain = 0  # batches in runs; pairs that were read; those that told nothing
        self._runs: deque[_Run] = deque()  # those not read yet

    @property
    def turns(self) -> bool:
        """Whether the next batch, if it is full, is the first of a run by the copy engine."""
        return self._tries and self._begun % (2 * RUN) == RUN

    @property
    def _tries(self) -> bool:
        return self.choice.by_copies is None and self._vain < _MOST_VAIN

    def begin(self, *, rows: int, full: bool) -> Place | None:
        """Decide the way of the next batch, `by_copies`, and return its place in a run; None: it is in none.

        Args:
            rows: the rows of the batch that lie in RAM.
            full: whether the batch has as many rows as the others.
        """
        self._look()
        if not full or not self._tries:
            self.by_copies = bool(self.choice.by_copies)
            if self._runs:
                self._runs[-1].disturbed = True
            return None
        number, within = divmod(self._begun, RUN)
        self._begun += 1
        self.by_copies = number % 2 == 1
        if not within:
            self._runs.append(_Run())
        elif within >= SETTLING:
            self._runs[-1].rows += rows
        return Place(self._runs[-1], first=within == SETTLING - 1, last=within == RUN - 1)

    def _look(self) -> None:
        """Read the pairs of runs that are over."""
        while len(self._runs) > 1 and (took := self._seconds_of(self._runs[1])) is not None:
            before = self._seconds_of(self._runs[0])
            kernel, copies = self._runs.popleft(), self._runs.popleft()
            self._pairs += 1
            if kernel.disturbed or copies.disturbed or not before:
                self._vain += 1
            elif self._pairs > 1 and kernel.rows and copies.rows:
                self.choice.note(took / copies.rows / (before / kernel.rows))

    def _seconds_of(self, run: _Run) -> float | None:
        return None if run.first is None or run.last is None else self._seconds_between(run.first, run.last)


@dataclass(frozen=True)
class Place:
    """The place of a batch in a run: whether its end begins, or ends, what is timed."""

    run: _Run
    first: bool
    last: bool

    def ended(self, timestamp: Callable[[], Any]) -> None:
        """Take the end of the batch, if the run needs it; `timestamp` marks it."""
        if self.first:
            self.run.first = timestamp()
        elif self.last:
            self.run.last = timestamp()
