"""How long until the first batch, how much memory, and how much CPU time per GB?

The time counts from `iter(loader)` in a process that has imported and used torch; beside it stand the parts that cannot
be saved: planning (one permutation) and gathering one batch into fresh huge pages, in a process as fresh, in turn with
the first. Both have free memory at hand (see `harness.Contestant.run`); the figure without that is kept too, as
`unprepared`. Memory is the peak beyond what the process held before, against what
`loader.nbytes` stated; CPU time is held against the ceiling's.
"""

from __future__ import annotations

import time

import torch
from harness import Bench, Case, Contestant, compete, each_case
from loops import ceiling_of

from memload.cli.measure import Spread, in_turn, ratio


def planning_seconds(rows: int) -> float:
    begin = time.perf_counter()
    torch.randperm(rows).numpy()
    return time.perf_counter() - begin


def first_seconds(case: Case, kind: str) -> float:
    """Seconds to the first batch of a fresh process."""
    with Contestant(case, kind) as fresh:
        return fresh.run(1).first_batch


def unprepared_and_memory(case: Case) -> tuple[float, dict[str, int]]:
    """The same with memory as the machine gives it, and then the peak memory of an epoch."""
    with Contestant(case, "fast") as fresh:
        return fresh.ask("run", 1)["first_batch"], fresh.ask("memory")


def measure(bench: Bench, case: Case) -> None:
    seconds = in_turn({kind: lambda kind=kind: first_seconds(case, kind) for kind in ("fast", "fresh")}, bench.rounds)
    plain = [unprepared_and_memory(case) for _ in range(bench.rounds)]
    planning = Spread.of(planning_seconds(case.workload.rows) for _ in range(bench.rounds))
    ceiling = ceiling_of(case)
    with Contestant(case, "fast", persistent=True) as fast:  # as the ceiling keeps its buffers
        epochs = compete({"fast": fast.run, "ceiling": ceiling.best}, bench.rounds)
    first, gathering = Spread.of(seconds["fast"]), Spread.of(seconds["fresh"])
    beyond = Spread.of(f - g - planning.median for f, g in zip(seconds["fast"], seconds["fresh"], strict=True))
    unprepared = Spread.of(seconds for seconds, _ in plain)
    memory = Spread.of(found["peak"] / found["stated"] for _, found in plain)
    cpu = ratio([e.cpu_per_gb for e in epochs["fast"]], [e.cpu_per_gb for e in epochs["ceiling"]])
    text = (
        f"first batch {first.median * 1e3:.1f} ms, {beyond.median * 1e3:.1f} beyond planning and gathering; "
        f"memory {memory.median:.2f} of loader.nbytes; CPU time per GB {cpu.median:.2f} of the ceiling's"
    )
    times = {"first_batch": first, "gathering": gathering, "planning": planning, "beyond": beyond}
    bench.add(case.name, text, **times, unprepared=unprepared, memory=memory, stated=plain[0][1]["stated"], cpu=cpu)


if __name__ == "__main__":
    each_case("first batch, memory and CPU time", measure)
