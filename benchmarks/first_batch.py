"""How long until the first batch, how much memory, and how much CPU time per GB?

The time counts from `iter(loader)` in a process that has imported and used torch; beside it stand the parts that cannot
be saved: planning (one permutation) and gathering one batch into fresh huge pages. Memory is the peak beyond what the
process held before, against what `loader.nbytes` stated; CPU time is held against the ceiling's.
"""

from __future__ import annotations

import time

import torch
from harness import Bench, Case, Contestant, arguments, compete
from loops import ceiling_of

from memload.measure import Spread, ratio


def planning_seconds(rows: int) -> float:
    begin = time.perf_counter()
    torch.randperm(rows).numpy()
    return time.perf_counter() - begin


def first_epoch_and_memory(case: Case) -> tuple[float, dict[str, int]]:
    """A fresh process's first batch, and then its peak memory."""
    with Contestant(case, "fast") as fresh:
        first = fresh.run().first_batch
        return first, fresh.ask("memory")


def measure(bench: Bench, case: Case) -> None:
    fresh = [first_epoch_and_memory(case) for _ in range(bench.rounds)]
    ceiling = ceiling_of(case)
    gathering = Spread.of(ceiling.run_fresh().seconds for _ in range(bench.rounds))
    planning = Spread.of(planning_seconds(case.workload.rows) for _ in range(bench.rounds))
    with Contestant(case, "fast", persistent=True) as fast:  # as the ceiling keeps its buffers
        epochs = compete({"fast": fast.run, "ceiling": ceiling.best}, bench.rounds)
    first = Spread.of(seconds for seconds, _ in fresh)
    beyond = first.median - gathering.median - planning.median
    memory = Spread.of(found["peak"] / found["stated"] for _, found in fresh)
    cpu = ratio([e.cpu_per_gb for e in epochs["fast"]], [e.cpu_per_gb for e in epochs["ceiling"]])
    text = (
        f"first batch {first.median * 1e3:.1f} ms, {beyond * 1e3:.1f} beyond planning and gathering; "
        f"memory {memory.median:.2f} of loader.nbytes; CPU time per GB {cpu.median:.2f} of the ceiling's"
    )
    figures = {"first_batch": first, "gathering": gathering, "planning": planning, "memory": memory, "cpu": cpu}
    bench.add(case.name, text, beyond=beyond, stated=fresh[0][1]["stated"], **figures)


def main() -> None:
    parser = arguments("first batch, memory and CPU time", rounds=5, default=("W1", "W2", "W3", "W4"))
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            measure(bench, case)


if __name__ == "__main__":
    main()
