"""How do gathers and casts grow with the number of threads? And which stores serve a copy engine that reads the slots?

FastLoader and the ceiling with 1, 2, 4, 8 and 16 threads, as far as there are CPUs, all of them in turn: a share is of
the ceiling with as many threads, and a growth of FastLoader with one thread, in the same round. The ceiling's stores,
streaming or ordinary, are those that were faster in a run before.

With a GPU, before that: batches on their way to it, out of slots that are written with streaming stores, in turn with
the same of ordinary ones. The reader of the slots is then the GPU's copy engine, not a CPU. `--quick` runs these lines
without a GPU, too. At the end it says what csrc/core/pass/store_choice.h should have for this machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_common import GpuBench, clocked, gpu_arguments, lengthened, times_to_last
from gpu_data import compare_some
from harness import Case
from loops import SEED, fast_loader

from memload.cli.bench import GatherCeiling, shuffled
from memload.cli.measure import Epoch, Spread, in_turn, ratio, run_epoch
from memload.dataset.dataset import Dataset
from memload.memory.budget import default_threads

COUNTS = (1, 2, 4, 8, 16)
VARIANTS = ("bf16", "f32", "raw")
RUN_SECONDS = 0.25  # of each contestant in each round
PROBED_BYTES = 256 << 20  # that the ceiling writes to tell how long it takes


class Threads:
    """FastLoader and the ceiling of one case with one number of threads; both pass over the same rows so many times."""

    def __init__(self, case: Case, count: int, *, quick: bool) -> None:
        ds, size, casts = case.workload.open(case.folder), case.workload.batch_size, case.workload.casts(case.variant)
        rows = shuffled(len(ds), SEED)
        probe = GatherCeiling(ds, rows, size, threads=count, cast=casts)
        whole = len(ds) // size  # batches
        some = min(whole, math.ceil(PROBED_BYTES / probe.batch_bytes))
        probe.best(some)
        tried = {streaming: probe.run(streaming=streaming, batches=some) for streaming in (False, True)}
        self.streaming = tried[True].rate > tried[False].rate
        batches = 1 if quick else math.ceil(RUN_SECONDS * tried[self.streaming].rate / size)
        self._passes = max(1, batches // whole)
        chosen = rows if batches >= whole else rows[: batches * size]
        self._ceiling = GatherCeiling(ds, chosen, size, threads=count, cast=casts)
        part = ds if chosen is rows else ds.select(chosen)
        self._loader = fast_loader(case, part, threads=count, persistent=True)

    def loader(self) -> float:
        """Samples per second of FastLoader."""
        return self._rate(lambda: run_epoch(self._loader))

    def ceiling(self) -> float:
        """Samples per second of the ceiling."""
        return self._rate(lambda: self._ceiling.run(streaming=self.streaming))

    def _rate(self, run: Callable[[], Epoch]) -> float:
        epochs = [run() for _ in range(self._passes)]
        return sum(epoch.samples for epoch in epochs) / sum(epoch.seconds for epoch in epochs)


def counts() -> list[int]:
    """The numbers of threads for which this process has CPUs."""
    return [count for count in COUNTS if count <= default_threads()]


def grow(bench: GpuBench, case: Case) -> None:
    """FastLoader and the ceiling with all numbers of threads."""
    made = {count: Threads(case, count, quick=bench.args.quick) for count in counts()}
    runs = {("loader", count): one.loader for count, one in made.items()}
    runs |= {("ceiling", count): one.ceiling for count, one in made.items()}
    named = {f"{kind} {count}": run for (kind, count), run in runs.items()}
    in_turn(named, 1)
    rates = in_turn(named, bench.rounds)
    shares = {count: ratio(rates[f"loader {count}"], rates[f"ceiling {count}"]) for count in made}
    growth = {
        kind: {n: ratio(rates[f"{kind} {n}"], rates[f"{kind} 1"]) for n in made} for kind in ("loader", "ceiling")
    }
    figures = {
        "shares": shares,
        "growth": growth,
        "samples_per_second": {name: Spread.of(found) for name, found in rates.items()},
        "streaming_ceiling": {count: one.streaming for count, one in made.items()},
    }
    each = ", ".join(f"{count}: {share}" for count, share in shares.items())
    bench.add(case.name, f"share of the ceiling by threads: {each}", **figures)
    most = max(made)
    bench.judge(case.name, f"{most} threads, share of the ceiling", shares[most], None)
    for kind, found in growth.items():
        bench.judge(case.name, f"{most} threads, the {kind}, times one thread", found[most], None)


def stores(bench: GpuBench, case: Case, tried: list[tuple[float, Spread]]) -> None:
    """Batches to a device out of slots that are written in either way; `tried` gets the ring's size and the ratio."""
    ds, device, casts = case.workload.open(case.folder), bench.device, case.workload.casts(case.variant)

    def made(streaming: bool | None, rows: Dataset) -> Any:
        return fast_loader(case, rows, streaming=streaming, persistent=True, device=device, cast=casts)

    for streaming in (False, True):
        compare_some(made(streaming, ds), fast_loader(case, ds), device)
    usual = made(None, ds)

    def once() -> Epoch:
        return run_epoch(usual)

    clocked(once, device)
    often = times_to_last(clocked(once, device), quick=bench.args.quick)
    loaders = {name: made(name == "streaming", lengthened(ds, often)) for name in ("streaming", "ordinary")}
    runs = {name: lambda one=one: clocked(lambda: run_epoch(one), device) for name, one in loaders.items()}
    in_turn(runs, 1)
    times = in_turn(runs, bench.rounds)
    found = ratio(times["ordinary"], times["streaming"])
    chosen = "streaming" if usual.stats().streaming else "ordinary"
    what = f"streaming stores into slots for {device.type}, times ordinary ones (chosen: {chosen})"
    nbytes = {name: Spread.of(often * ds.nbytes / s / 1e9 for s in seconds) for name, seconds in times.items()}
    bench.judge(case.name, what, found, None, gb_per_second=nbytes, chosen=chosen)
    tried.append((2 * usual.nbytes / last_level_cache(), found))


def last_level_cache() -> int:
    """Bytes of the largest cache of the first CPU; 32 MB where the machine does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    told = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in told if size[-1:] in units), default=32 << 20)


def advice(tried: Iterable[tuple[float, Spread]]) -> str:
    """What kHalfCachesOfCopyEngine should be.

    Args:
        tried: the ring in halves of the last level cache, and how many times as fast streaming stores were.

    Example:
        >>> advice([(2.0, Spread(0.8, 0.7, 0.9, 3)), (9.0, Spread(1.1, 1.05, 1.2, 3))])
        'ordinary stores were faster for rings up to 2 halves of the last level cache, of rings up to 9: set it to 2'
    """
    clear = [(halves, found.low > 1) for halves, found in tried if found.low > 1 or found.high < 1]
    if not clear:
        return "neither kind of stores was faster beyond the spread: leave it"
    ordinary = max((halves for halves, streams in clear if not streams), default=0.0)
    rings = f"rings up to {ordinary:.2g} halves of the last level cache" if ordinary else "no ring"
    largest = max(halves for halves, _ in clear)
    more = " at least" if ordinary == largest else ""
    return (
        f"ordinary stores were faster for {rings}, of rings up to {largest:.2g}: set it to {math.ceil(ordinary)}{more}"
    )


def firsts(cases: list[Case]) -> list[Case]:
    """The first case of each data set."""
    found: dict[Path, Case] = {}
    for case in cases:
        found.setdefault(case.folder, case)
    return [*found.values()]


def variants_of(cases: list[Case], chosen: list[str] | None) -> Iterator[Case]:
    """The data sets in each variant that is chosen and that they have, raw ones of all."""
    for one in firsts(cases):
        for variant in VARIANTS:
            if (chosen is None or variant in chosen) and (variant == "raw" or one.workload.casts(variant)):
                yield replace(one, variant=variant)


def arguments_of() -> tuple[argparse.Namespace, list[str] | None]:
    """The arguments, and apart from them the variants, of which the data sets here have more than elsewhere."""
    parser = gpu_arguments("growth with threads, and stores for a copy engine", rounds=3, default=("W1", "W2", "W4"))
    parser.set_defaults(device="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    chosen, args.variants = args.variants, None
    return args, chosen


def main() -> None:
    args, chosen = arguments_of()
    bench = GpuBench(args)
    if not args.quick and bench.device.type == "cpu":  # threads have figures without a GPU
        bench.about["gpu"]["name"] = "no GPU"
    with bench.cases() as cases:
        every = [*variants_of(cases, chosen)]
        if args.quick or bench.device.type == "cuda":
            tried: list[tuple[float, Spread]] = []
            for case in firsts(every):  # in any other variant the slots hold the same
                bench.attempt(case.name, stores, bench, case, tried)
            bench.add("stores", f"kHalfCachesOfCopyEngine of csrc/core/pass/store_choice.h: {advice(tried)}")
        for case in every:
            bench.attempt(case.name, grow, bench, case)
    bench.end()


if __name__ == "__main__":
    main()
