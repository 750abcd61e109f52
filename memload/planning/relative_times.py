"""The times of several ways to do a step, relative to the first: measured in turn, and told if they are no noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ROUNDS, _FEWEST = 7, 3
_SECONDS = 30.0
_NOISE = 1.5
"""Greatest over least ratio of all rounds, from which on a time is not told."""


@dataclass(frozen=True)
class RelativeTime:
    """The time of a step divided by that of the first way, over rounds in which both ran.

    Attributes:
        median: of all rounds.
        low, high: the least and the greatest ratio of a round.
    """

    median: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether rounds differ so much that the median says nothing."""
        return self.high > _NOISE * self.low


def relative_times(
    steps: Sequence[Callable[[], float]], told: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[RelativeTime]:
    """Return the times of steps relative to the first of them.

    All run once to warm up, then in rounds: each round runs every step once, so that a busy machine slows them alike.

    Args:
        steps: functions that make a step and return its seconds.
        told: is called after each step.
        clock: returns the seconds that bound all rounds, of which there are at least three.
    """
    begin = clock()

    def one_round() -> list[float]:
        seconds = []
        for step in steps:
            seconds.append(step())
            told()
        return seconds

    one_round()
    rounds: list[list[float]] = []
    while len(rounds) < _FEWEST or (len(rounds) < _ROUNDS and clock() - begin < _SECONDS):
        rounds.append(one_round())
    ratios = [[one[k] / one[0] for one in rounds] for k in range(len(steps))]
    return [RelativeTime(statistics.median(own), min(own), max(own)) for own in ratios]
