"""From the page cache to bfloat16 on the GPU: which share of what the machine allows, and how many times stock?

What the machine allows is the lower of two rates that are measured in the same rounds: gathering raw rows by native
threads without queue or Python, and copying batches of that size from pinned memory. Beside them stands what it allows
when both go on at once, of unrelated memory, since they share its bandwidth; and copies out of memory as the loader's
slots have it, by buffer. The stock loader, which takes turns with it afterwards, is the best of 4, 8 and 16 workers
with pinned memory and asynchronous copies, with an eager and with a compiled cast on the GPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch
from gpu_common import (
    EPOCH_SECONDS,
    VARIED,
    GpuBench,
    PinnedCopies,
    clocked,
    finish,
    gpu_arguments,
    lengthened,
    median,
    times_to_last,
)
from gpu_data import compare_some
from harness import Case
from loops import SEED

import memload
from memload.cli import stock_loops
from memload.cli.bench import GatherCeiling, shuffled
from memload.cli.measure import Epoch, Spread, in_turn, run_epoch
from memload.dataset.dataset import Dataset
from memload.device.pinned_memory import PinnedMemory

WORKERS = (4, 8, 16)
BUFFERS = 8  # of the loader's kind of memory
TRIAL_SECONDS = 1.0


def loader_of(
    case: Case,
    device: torch.device,
    ds: Dataset | None = None,
    *,
    batch_size: int | None = None,
    options: memload.EngineOptions | None = None,
) -> memload.FastLoader[dict[str, torch.Tensor]]:
    return memload.FastLoader(
        case.workload.open(case.folder) if ds is None else ds,
        batch_size or case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
        cast=case.workload.casts(case.variant),
        device=device,
        num_workers=os.cpu_count() or 1,
        persistent_workers=True,
        options=options,
    )


def to_the_device(device: torch.device, cast: Callable[[torch.Tensor], torch.Tensor] | None) -> stock_loops.CastFn:
    def moved(x: torch.Tensor) -> torch.Tensor:
        there = x.to(device, non_blocking=True)
        return there if cast is None else cast(there)

    return moved


def stock_of(
    case: Case, device: torch.device, setting: stock_loops.StockSetting, *, compiled: bool
) -> stock_loops.StockLoop:
    casts = {name: stock_loops.plain_cast(cast.dtype) for name, cast in case.workload.casts(case.variant).items()}
    if compiled:
        casts = {name: torch.compile(cast, dynamic=False) for name, cast in casts.items()}
    moves = {name: to_the_device(device, casts.get(name)) for name, *_ in case.workload.fields}
    shard = case.workload.shard(case.folder)
    loop = stock_loops.StockLoop(shard, case.workload.batch_size, setting, moves, SEED)
    loop.loader.pin_memory = device.type == "cuda"
    return loop


class Stock(NamedTuple):
    """A way of the stock loader, and how fast it was when it was tried."""

    rate: float
    loop: stock_loops.StockLoop
    setting: stock_loops.StockSetting
    words: str


def tried(bench: GpuBench, case: Case, setting: stock_loops.StockSetting, *, compiled: bool) -> Stock:
    loop = stock_of(case, bench.device, setting, compiled=compiled)
    run_epoch(loop, limit=3)
    finish(bench.device)
    rate = run_epoch(loop, seconds=TRIAL_SECONDS).rate
    finish(bench.device)
    return Stock(rate, loop, setting, f"{setting}, {'compiled' if compiled else 'eager'} cast")


def better(
    bench: GpuBench, case: Case, best: Stock | None, setting: stock_loops.StockSetting, *, compiled: bool
) -> Stock:
    """The faster of a way that was tried and another; the former, where the other does not run on this machine."""
    try:
        other = tried(bench, case, setting, compiled=compiled)
    except Exception as error:  # little shared memory for many workers, or no compiler
        if best is None:
            raise
        print(f"stock with {setting} is left out: {str(error).strip().splitlines()[:1]}", flush=True)
        return best
    return other if best is None else max(best, other, key=lambda one: one.rate)


def best_stock(bench: GpuBench, case: Case) -> Stock:
    """The fastest way of the stock loader: the best number of workers, and with these the better cast."""
    if bench.args.quick:
        return tried(bench, case, stock_loops.StockSetting("getitems", 0), compiled=False)
    best: Stock | None = None
    for workers in WORKERS:
        best = better(bench, case, best, stock_loops.StockSetting("getitems", workers), compiled=False)
    assert best is not None
    return better(bench, case, best, best.setting, compiled=True)


class Measured:
    """The loader on one case, and what it is measured against. Epochs take the rows so often that they last."""

    def __init__(self, bench: GpuBench, case: Case) -> None:
        self.bench, self.case, self.device = bench, case, bench.device
        self.ds = case.workload.open(case.folder)
        self.batch_bytes = case.workload.batch_size * case.workload.row_bytes
        self.once = loader_of(case, bench.device, self.ds)
        through(self.once, self.device)
        seconds = through(self.once, self.device)
        self.passes = times_to_last(seconds, quick=bench.args.quick)
        self.before = len(self.once) * self.batch_bytes / seconds / 1e9  # when nothing else has memory or streams
        self.loader = loader_of(case, bench.device, lengthened(self.ds, self.passes))
        self.batches = len(self.loader)

    def seconds(self) -> float:
        """Seconds of one of the loader's batches."""
        return through(self.loader, self.device) / self.batches

    def rounds(self, contestants: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Seconds of a batch by name, after a round that warms up."""
        in_turn(contestants, 1)
        return in_turn(contestants, self.bench.rounds)

    def ceiling(self) -> GatherCeiling:
        """Native threads that gather the rows of the loader's epoch, raw."""
        rows = np.tile(shuffled(len(self.ds), SEED), self.passes)
        return GatherCeiling(self.ds, rows, self.case.workload.batch_size)

    def own_copies(self) -> PinnedCopies:
        """Copies out of memory of the same kind as the loader's slots."""
        self._memory = [PinnedMemory(1, self.batch_bytes, self.device) for _ in range(BUFFERS)]  # pinned while it lives
        for one in self._memory:
            one.table.fill_(1)
            one.pin()  # before the copies choose how many of the buffers take turns
        buffers = [one.table.view(-1) for one in self._memory]
        return PinnedCopies(self.batch_bytes, self.device, quick=self.bench.args.quick, memory=buffers)

    def against_the_machine(self) -> None:
        """Which share of the lower of two ceilings the loader reaches."""
        case = self.case
        compare_some(loader_of(case, self.device), loader_of(case, torch.device("cpu")), self.device)
        copies = PinnedCopies(self.batch_bytes, self.device, quick=self.bench.args.quick)
        ceiling = self.ceiling()

        def gather() -> float:
            best = ceiling.best()
            return best.seconds / best.batches

        times = self.rounds({"loader": self.seconds, "gather": gather, "copy": copies.seconds})
        slower = [max(pair) for pair in zip(times["gather"], times["copy"], strict=True)]
        share = Spread.of(limit / ours for limit, ours in zip(slower, times["loader"], strict=True))
        rates = {name: Spread.of(self.batch_bytes / s / 1e9 for s in found) for name, found in times.items()}
        limit = "copying" if median(times["copy"]) > median(times["gather"]) else "gathering"
        stats = self.loader.stats()
        figures = {"gb_per_s": rates, "stats": str(stats), "counters": asdict(stats)}
        self.bench.judge(case.name, f"the loader, share of {limit}", share, 0.90, **figures)
        waited = Spread.of([stats.device_wait_seconds / stats.wall_seconds])
        self.bench.judge(case.name, "share of the time that next() waited for the device", waited, None)
        self.bench.judge(case.name, "GB/s of the loader before all others", Spread.of([self.before]), None)
        again = len(self.once) * self.batch_bytes / through(self.once, self.device) / 1e9
        self.bench.judge(case.name, "GB/s of that loader after them", Spread.of([again]), None)
        for name in ("copy", "gather"):
            self.bench.judge(case.name, f"GB/s of {name} alone", rates[name], None)

    def varied(self) -> None:
        """What other settings reach, copies out of memory as the slots have it, and copies while threads gather."""
        own, ceiling, longer = self.own_copies(), self.ceiling(), lengthened(self.ds, self.passes)
        others = {name: loader_of(self.case, self.device, longer, options=options) for name, options in VARIED.items()}
        times = self.rounds(
            {
                "loader": self.seconds,
                **{name: lambda one=one: through(one, self.device) / self.batches for name, one in others.items()},
                "copy of own memory": own.seconds,
                "both at once": lambda: at_once(ceiling, own, self.batches),
            }
        )
        for name in others:
            found = Spread.of(ours / theirs for ours, theirs in zip(times["loader"], times[name], strict=True))
            self.bench.judge(self.case.name, f"with {name}, times as fast as without", found, None)
        rate = Spread.of(self.batch_bytes / s / 1e9 for s in times["copy of own memory"])
        self.bench.judge(self.case.name, "GB/s of copy of own memory alone", rate, None)
        buffers = Spread.of(self.batch_bytes / s / 1e9 for s in own.by_buffer())
        self.bench.judge(self.case.name, f"GB/s of copies out of each of {BUFFERS} buffers", buffers, None)
        both = Spread.of(slow / ours for slow, ours in zip(times["both at once"], times["loader"], strict=True))
        self.bench.judge(self.case.name, "the loader, share of copying while threads gather elsewhere", both, None)

    def against_stock(self) -> None:
        """How many times as fast as stock the loader is."""
        rival = best_stock(self.bench, self.case)

        def theirs() -> float:
            batches = 0

            def loop() -> None:
                nonlocal batches
                batches = run_epoch(rival.loop, seconds=EPOCH_SECONDS).batches

            return clocked(loop, self.device) / batches

        times = self.rounds({"loader": self.seconds, "stock": theirs})
        found = Spread.of(slow / ours for slow, ours in zip(times["stock"], times["loader"], strict=True))
        self.bench.judge(self.case.name, "the loader, times stock at its best", found, 5, stock=rival.words)


def at_once(ceiling: GatherCeiling, copies: PinnedCopies, batches: int) -> float:
    """Seconds of a batch where threads gather and the device copies other memory meanwhile: of the slower of both."""
    gathered: list[Epoch] = []
    threads = threading.Thread(target=lambda: gathered.append(ceiling.run(streaming=False, batches=batches)))
    threads.start()
    copied = copies.run(batches)
    threads.join()
    return max(copied, gathered[0].seconds / gathered[0].batches)


def through(loader: memload.FastLoader[dict[str, torch.Tensor]], device: torch.device) -> float:
    """Seconds of one epoch, until the device has its last batch."""
    return clocked(lambda: run_epoch(loader), device)


def main() -> None:
    parser = gpu_arguments("the loader from the page cache to the GPU", rounds=3, default=("W1", "W2"))
    parser.set_defaults(variants=["bf16"])
    bench = GpuBench(parser.parse_args())
    with bench.cases() as cases:
        measured = [Measured(bench, case) for case in cases]
        for one in measured:
            bench.attempt(one.case.name, one.against_the_machine)
        for one in measured:  # what takes longest comes last: if the run is ended before, the rest is there
            bench.attempt(one.case.name, one.against_stock)
        for one in measured:
            bench.attempt(one.case.name, one.varied)
    bench.end()


if __name__ == "__main__":
    main()
