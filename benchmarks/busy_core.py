"""What is left of the speed when another process keeps one core busy?

FastLoader quiet and disturbed, and the rival (see speed.py) told not to spin at OpenMP's barriers, disturbed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from harness import PASSIVE_ENVIRONMENT, RIVAL_ENVIRONMENT, Bench, Case, Contestant, compete, each_case, rates, share

from memload.cli.measure import Epoch, Spread


@contextlib.contextmanager
def one_core_busy() -> Iterator[None]:
    """Another process that computes on one of this process's cores, at equal priority."""
    spin = (
        f"import os\nos.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\nprint(flush=True)\nwhile True: pass"
    )
    busy = subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()  # it runs
        yield
    finally:
        busy.kill()
        busy.communicate()


def disturbed(run: Callable[[], Epoch]) -> Callable[[], Epoch]:
    def run_beside() -> Epoch:
        with one_core_busy():
            return run()

    return run_beside


def measure(bench: Bench, case: Case) -> None:
    with (
        Contestant(case, "fast") as fast,
        Contestant(case, "stock", {**RIVAL_ENVIRONMENT, **PASSIVE_ENVIRONMENT}, quick=bench.args.quick) as rival,
    ):
        contestants = {
            "quiet": fast.run,
            "busy": disturbed(fast.run),
            "rival": disturbed(rival.run),
        }
        epochs = compete(contestants, bench.rounds)
    kept = share(epochs["busy"], epochs["quiet"])
    ahead = share(epochs["busy"], epochs["rival"])
    text = f"{kept.median:.2f} ({kept.low:.2f} to {kept.high:.2f}) of quiet; {ahead.median:.2f}x the passive rival"
    figures = {name: Spread.of(rates(runs)) for name, runs in epochs.items()}
    bench.add(case.name, text, kept=kept, versus_rival=ahead, **figures)


if __name__ == "__main__":
    each_case("FastLoader beside a busy core", measure)
