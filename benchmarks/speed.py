"""How fast is FastLoader beside the ceiling, the stock DataLoader at its best, and the honest rival?

Stock is tried with 0, 1 and 2 workers, each with plain items, with batched __getitems__ and with a BatchSampler as
sampler, and its cast is compiled; the best of the nine competes. The rival is the same in a process whose C library is
told to keep its blocks and to back them with huge pages. All contestants run in processes of their own, in turn, so
that every figure is of the same rounds. FastLoader runs with its defaults; for its share of the ceiling it keeps slots
and threads between epochs (persistent_workers=True), as the ceiling keeps its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from harness import RIVAL_ENVIRONMENT, Bench, Case, Contestant, compete, each_case, rates, share

from memload.cli.measure import Spread

THEIRS = ("stock", "rival")


def measure(bench: Bench, case: Case) -> None:
    with ExitStack() as stack:

        def enter(kind: str, environment: Mapping[str, str] | None = None, **options: bool) -> Contestant:
            return stack.enter_context(Contestant(case, kind, environment, **options))

        runners = {
            "fast": enter("fast"),
            "kept": enter("fast", persistent=True),
            "stock": enter("stock", quick=bench.args.quick),
            "rival": enter("stock", RIVAL_ENVIRONMENT, quick=bench.args.quick),
            "ceiling": enter("ceiling"),
        }
        epochs = compete({name: runner.run for name, runner in runners.items()}, bench.rounds)
        settings = {name: runners[name].about["setting"] for name in THEIRS}
    shares = {name: share(epochs[name], epochs["ceiling"]) for name in ("kept", *THEIRS)}
    times = {name: share(epochs["fast"], epochs[name]) for name in THEIRS}
    text = f"{_said(shares['kept'])} of the ceiling"
    for name in THEIRS:
        text += f"; {_said(times[name])} times {name} ({settings[name]})"
    figures = {name: Spread.of(rates(runs)) for name, runs in epochs.items()}
    bench.add(case.name, text, shares=shares, times=times, settings=settings, **figures)


def _said(found: Spread) -> str:
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"


if __name__ == "__main__":
    each_case("FastLoader beside the ceiling, the stock DataLoader and the honest rival", measure, rounds=9)
