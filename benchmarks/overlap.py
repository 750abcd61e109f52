"""What does FastLoader cost a loop that computes?

The consumer multiplies matrices for 20 ms per batch on one core. Measured: the share of the loop spent inside `next()`
after the first batch, and the whole loop against one that gets the same batch over and over while a control process
merely moves the same bytes on the other core. Slots are kept between passes: what a pass pays for fresh ones is the
question of first_batch.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from harness import Bench, Case, Contestant, arguments
from loops import fast_loader

from memload.cli.measure import Spread, in_turn, ratio

COMPUTE_SECONDS = 0.020
SIDE = 512


@dataclass(frozen=True)
class Computing:
    """One pass of the computing loop: seconds after the first batch, and those of them spent waiting."""

    seconds: float
    waiting: float


class Consumer:
    """A step that computes for 20 ms on one core: as many products of matrices as that took at the start."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._a = torch.randn(SIDE, SIDE)
        self._products = 1
        self.step()
        begin = time.perf_counter()
        for _ in range(20):
            self.step()
        self._products = max(1, round(COMPUTE_SECONDS / ((time.perf_counter() - begin) / 20)))

    def step(self) -> None:
        """Computes for one batch."""
        for _ in range(self._products):
            self._a @ self._a

    def run(self, batches: Iterable[Any], limit: int) -> Computing:
        """Computes for `limit` batches, and takes one more than that."""
        iterator = iter(batches)
        next(iterator)
        waiting = 0.0
        begin = time.perf_counter()
        for _ in range(limit):
            self.step()
            asked = time.perf_counter()
            batch = next(iterator)
            waiting += time.perf_counter() - asked
        del batch
        return Computing(time.perf_counter() - begin, waiting)


def moved_beside(mover: Contestant) -> Iterable[None]:
    """Batches of nothing, while the mover moves one batch for each in its own process."""
    mover.tell("run", 1)
    try:
        while True:
            mover.hear()
            mover.tell("run", 1)
            yield None
    finally:
        mover.hear()


def measure(bench: Bench, case: Case, consumer: Consumer) -> None:
    limit = case.workload.rows // case.workload.batch_size - 2
    loader = fast_loader(case, persistent=True)
    with Contestant(case, "mover") as mover:
        contestants: dict[str, Callable[[], Computing]] = {
            "fast": lambda: consumer.run(loader, limit),
            "control": lambda: consumer.run(moved_beside(mover), limit),
        }
        in_turn(contestants, 1)
        runs = in_turn(contestants, bench.rounds)
    waiting = Spread.of(run.waiting / run.seconds for run in runs["fast"])
    slower = ratio([run.seconds for run in runs["fast"]], [run.seconds for run in runs["control"]])
    text = f"{waiting.median:.2%} of the loop inside next(); {slower.median:.3f} of the control's time"
    bench.add(case.name, text, waiting=waiting, slower=slower, batches=limit)


def main() -> None:
    parser = arguments("the cost to a loop that computes", rounds=5, default=("W1", "W2"))
    bench = Bench(parser.parse_args())
    consumer = Consumer()
    with bench.cases() as cases:
        for case in cases:
            measure(bench, case, consumer)


if __name__ == "__main__":
    main()
