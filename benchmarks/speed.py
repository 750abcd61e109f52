"""How does FastLoader with its defaults do against the honest rival?

The rival is the stock DataLoader at its best, with a compiled cast, in a process whose C library is told to keep its
blocks and to back them with huge pages. Both run in processes of their own, and so does the ceiling.
"""

from __future__ import annotations

from harness import RIVAL_ENVIRONMENT, Bench, Case, Contestant, compete, each_case, rates, share

from memload.cli.measure import Spread


def measure(bench: Bench, case: Case) -> None:
    with (
        Contestant(case, "fast") as fast,
        Contestant(case, "stock", RIVAL_ENVIRONMENT, quick=bench.args.quick) as rival,
        Contestant(case, "ceiling") as ceiling,
    ):
        runners = {"fast": fast, "rival": rival, "ceiling": ceiling}
        epochs = compete({name: runner.run for name, runner in runners.items()}, bench.rounds)
        setting = rival.about["setting"]
    found = share(epochs["fast"], epochs["rival"])
    room = share(epochs["ceiling"], epochs["rival"])
    of_ceiling = share(epochs["fast"], epochs["ceiling"])
    text = (
        f"{found.median:.2f}x ({found.low:.2f} to {found.high:.2f}) the rival; the ceiling is {room.median:.2f}x, "
        f"and {of_ceiling.median:.2f} of it was reached: {setting}"
    )
    figures = {name: Spread.of(rates(runs)) for name, runs in epochs.items()}
    bench.add(case.name, text, speedup=found, room=room, of_ceiling=of_ceiling, setting=setting, **figures)


if __name__ == "__main__":
    each_case("FastLoader against the honest rival", measure)
