"""How many threads best work at once, found by trying.

A function in numpy or torch lets other threads run Python meanwhile; one in pure Python does not, and threads that all
run Python take its lock from each other, which makes several slower than one. Nobody can tell beforehand which it is.
"""

from __future__ import annotations

_LEAST_SECONDS = 0.01  # of work that a trial lasts: two of the interpreter's switch intervals
_LEAST_WORTH = 0.8  # of the time that fewer threads take: what more must come to, who take CPUs from gather and loop
_FIRST_REST, _LONGEST_REST = 16, 512  # lengths of a trial between two rounds of them; each rest is twice the last

# Seconds of processor time for each second in which threads work: about 1 where they take the lock from each other,
# near their number where they do not, and little where they sleep or read.
_LOCKED, _FREE = 0.3, 0.9


class ConcurrencyTuner:
    """How many of some threads may work at once. Begins with all, tries fewer, and looks again now and then.

    What counts is the work done in each second in which at least one of them works. Not synchronised.

    Args:
        most: how many there are.
        fixed: whether all work always.
    """

    def __init__(self, most: int, *, fixed: bool = False) -> None:
        self.most, self.fixed = most, fixed or most == 1
        self.allowed = most
        """How many may work now."""
        self._cost: dict[int, float] = {}  # seconds for a unit of work, by number of threads
        self._to_try: list[int] = []
        self._round = False  # whether trials follow one another
        self._rest, self._next_rest = 0, _FIRST_REST
        self._working, self._since = 0, 0.0
        # The trial under way: seconds in which somebody worked, and of what count what; pieces begun before it.
        self._busy = self._processor = 0.0
        self._pieces = self._work = self._settling = 0

    def for_next_pass(self) -> ConcurrencyTuner:
        """Return one that begins with what this one found out."""
        following = ConcurrencyTuner(self.most, fixed=self.fixed)
        if self._cost:
            following.allowed, following._cost = self._best(), dict(self._cost)
            following._rest, following._next_rest = self._rest, self._next_rest
        return following

    def begin(self, now: float) -> None:
        """Record that a thread begins a piece of work."""
        if self._working:
            self._busy += now - self._since
        self._working, self._since = self._working + 1, now

    def end(self, now: float, work: int, processor: float) -> bool:
        """Record that a piece of work is done; returns whether more threads may work now than before.

        Args:
            now: what time it is, in seconds.
            work: how much it was, in any unit.
            processor: seconds of processor time that it took.
        """
        self._busy += now - self._since
        self._working, self._since = self._working - 1, now
        if self.fixed:
            return False
        if self._settling:  # it was begun when another number of threads worked
            self._settling -= 1
            self._busy *= bool(self._settling)
            return False
        self._pieces, self._work, self._processor = self._pieces + 1, self._work + work, self._processor + processor
        if self._pieces < 2 * self.allowed or self._busy < _LEAST_SECONDS:
            return False
        before, self.allowed = self.allowed, self._after_trial()
        self._start_trial()
        return self.allowed > before

    def _start_trial(self) -> None:
        self._busy = self._processor = 0.0
        self._pieces = self._work = 0
        self._settling = self._working

    def _after_trial(self) -> int:
        """Note what the trial showed, and return how many may work next."""
        self._cost[self.allowed] = self._busy / max(1, self._work)
        if self._to_try:
            return self._to_try.pop()
        if self._round:
            self._round = False
            return self._best()
        self._rest -= 1
        if self._rest > 0 or (self.allowed == self.most and not self._is_locked()):
            return self.allowed
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
        self._round = True
        levels = {self.most, *(1 << k for k in range(self.most.bit_length()) if 1 << k < self.most)}
        self._to_try = sorted(levels - {self.allowed}, reverse=True)
        return self._to_try.pop()

    def _is_locked(self) -> bool:
        """Whether threads seem to keep each other from working."""
        return _LOCKED <= self._processor / self._busy <= _FREE * self.allowed

    def _best(self) -> int:
        worth = min(self._cost.values()) / _LEAST_WORTH
        return min(threads for threads, cost in self._cost.items() if cost <= worth)


def tuned(last: ConcurrencyTuner | None, threads: int, *, fixed: bool) -> ConcurrencyTuner:
    """Return the tuner of a pass with so many threads, which goes on as the last one ended; ``fixed``: all work."""
    return last.for_next_pass() if last is not None and last.most == threads else ConcurrencyTuner(threads, fixed=fixed)
