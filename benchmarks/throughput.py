"""Which share of the ceiling does FastLoader reach, per workload and variant?

Nine rounds in turn, an epoch each. Like the ceiling's buffers, FastLoader's slots and threads stay between epochs
(persistent_workers=True); what it costs to begin is measured by first_batch.py, by epochs.py, and by this script with
--fresh. With --isas, each instruction set is forced and held against the ceiling of its own. The ceiling writes the
same bytes in the order in which they are stored, whatever the layout of a variant.
"""

from __future__ import annotations

from harness import Bench, Case, arguments, compete, rates, share
from loops import ceiling_of, fast_loop

from memload import _core
from memload.cli.measure import Epoch, Spread, memcpy_gb_per_second
from memload.memory.budget import default_threads


def measure(bench: Bench, case: Case, isa: str) -> None:
    ceiling = ceiling_of(case, isa=isa)
    fast = fast_loop(case, isa=isa or None, persistent=not bench.args.fresh)
    loader = fast.batches()

    def run() -> Epoch:
        if bench.args.fresh:
            loader.close()
        return fast.run(None)

    epochs = compete({"fast": run, "ceiling": ceiling.best}, bench.rounds)
    found = share(epochs["fast"], epochs["ceiling"])
    fast_rate, ceiling_rate = (Spread.of(rates(epochs[name])) for name in ("fast", "ceiling"))
    text = f"{isa:7} {found.median:.2f} ({found.low:.2f} to {found.high:.2f}) of {ceiling_rate.median:,.0f} samples/s"
    bench.add(case.name, text, isa=isa, share=found, fast=fast_rate, ceiling=ceiling_rate)


def main() -> None:
    parser = arguments("FastLoader against the ceiling", rounds=9, default=("W1", "W2", "W3", "W4"))
    parser.add_argument("--fresh", action="store_true", help="take slots anew in every epoch, by close() before it")
    parser.add_argument("--isas", action="store_true", help="each instruction set against its own ceiling")
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for isa in _core.isas() if bench.args.isas else ("",):
            for case in cases:
                measure(bench, case, isa)
        rate = memcpy_gb_per_second(default_threads())
        bench.add("memcpy", f"{rate:.1f} GB/s", gb_per_second=rate)


if __name__ == "__main__":
    main()
