"""How many times as fast as the stock DataLoader at its best is FastLoader?

Stock is tried with 0, 1 and 2 workers, each with plain items, with batched __getitems__ and with a BatchSampler as
sampler, and its cast is compiled; the best of the nine competes.
"""

from __future__ import annotations

from harness import Bench, Case, compete, each_case, rates, share
from loops import fast_loop, stock_loop

from memload.cli.measure import Spread


def measure(bench: Bench, case: Case) -> None:
    stock = stock_loop(case, quick=bench.args.quick)
    fast = fast_loop(case)
    epochs = compete({"fast": lambda: fast.run(None), "stock": lambda: stock.run(None)}, bench.rounds)
    found = share(epochs["fast"], epochs["stock"])
    rate = Spread.of(rates(epochs["stock"]))
    text = f"{found.median:.1f}x ({found.low:.1f} to {found.high:.1f}) of {rate.median:,.0f} samples/s: {stock.setting}"
    figures = {"fast": Spread.of(rates(epochs["fast"])), "stock": rate}
    bench.add(case.name, text, speedup=found, setting=stock.setting, **figures)


if __name__ == "__main__":
    each_case("FastLoader against the stock DataLoader", measure)
