"""What does FastLoader reach of the disk when nothing is in the page cache?

The cache is dropped before every run, which only root may do (with --quick: that of the one file). The ceiling is the
best of O_DIRECT and io_uring with several numbers of random reads of the same rows in flight; the stock loader reads
the same mapped file. FastLoader runs with its defaults (`fast`), which read large rows past the page cache when they
are wanted for the first time, and told to go through it (`cached`), as it does when they are wanted again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Bench, Case, arguments, rates, share
from loops import SEED
from torch.utils.data import DataLoader, Subset

from memload import _core
from memload.cli.bench import shuffled
from memload.cli.measure import Epoch, Spread, in_turn, run_epoch
from memload.cli.stock_loops import Items, map_shard
from memload.engine.request import EngineOptions
from memload.loader.fast_loader import FastLoader

METHODS = (("direct", 4), ("direct", 8), ("io_uring", 8), ("io_uring", 32), ("io_uring", 128))
ROWS = 20_000  # at most, of which the stock loader reads what it manages in STOCK_SECONDS
STOCK_SECONDS = 5.0
PASSES = ("first", "second", "third")

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def evict(path: Path, *, everything: bool) -> None:
    """Empties the page cache of one file, or of the machine.

    Pages that some process still maps would stay: every run maps its file anew.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if everything:
        DROP_CACHES.write_text("1")


def cold(bench: Bench, case: Case, run: Callable[[], Epoch]) -> Callable[[], Epoch]:
    def run_cold() -> Epoch:
        evict(case.workload.shard(case.folder), everything=not bench.args.quick)
        return run()

    return run_cold


def disk_epoch(case: Case, plan: np.ndarray, method: str, in_flight: int) -> Epoch:
    """The planned rows read past the page cache, as one epoch."""
    (array,) = map_shard(case.workload.shard(case.folder)).values()
    row_bytes = array.nbytes // len(array)
    offsets = array.offset + plan * row_bytes
    shard = str(case.workload.shard(case.folder))
    run = _core.bench_disk(shard, offsets, row_bytes, in_flight, method)
    seconds = run["seconds"]
    return Epoch(seconds, seconds / run["reads"], run["cpu_seconds"], 1, run["reads"], run["bytes"])


def methods_here(case: Case, plan: np.ndarray) -> dict[str, Callable[[], Epoch]]:
    """The ways to read that the kernel and the file system grant, said when one is refused."""
    granted: dict[str, Callable[[], Epoch]] = {}
    for method, in_flight in METHODS:
        try:
            disk_epoch(case, plan[:1], method, 1)
        except OSError as refused:
            print(f"{case.name}: {method} is refused here: {refused}")
            continue
        granted[f"{method} {in_flight}"] = lambda m=method, k=in_flight: disk_epoch(case, plan, m, k)
    return granted


def stock_loader(case: Case, plan: np.ndarray) -> DataLoader[Any]:
    """The stock loader over just the planned rows of the file, mapped anew, which it shuffles once more."""
    rows = Subset(Items(case.workload.shard(case.folder)), plan.tolist())
    return DataLoader(rows, case.workload.batch_size, shuffle=True, drop_last=True)


def cold_loader(case: Case, plan: np.ndarray, direct: bool | None = None) -> FastLoader[Any]:
    """FastLoader over just the planned rows of the file, mapped anew, which it shuffles once more."""
    return FastLoader(
        case.workload.open(case.folder).select(plan),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
        cast=case.workload.casts(case.variant),
        options=EngineOptions(direct=direct),
    )


def loaders(bench: Bench, case: Case, plan: np.ndarray) -> dict[str, Callable[[], Epoch]]:
    """memload and the stock loader over the same rows, the latter for as long as it is given."""
    seconds = 0.2 if bench.args.quick else STOCK_SECONDS
    return {
        "fast": cold(bench, case, lambda: run_epoch(cold_loader(case, plan))),
        "cached": cold(bench, case, lambda: run_epoch(cold_loader(case, plan, direct=False))),
        "stock": cold(bench, case, lambda: run_epoch(stock_loader(case, plan), seconds=seconds)),
    }


def megabytes(epochs: dict[str, list[Epoch]]) -> dict[str, Spread]:
    """10^6 bytes per second of each contestant."""
    return {f"MB/s {name}": Spread.of(e.gb_per_second * 1e3 for e in runs) for name, runs in epochs.items()}


def measure(bench: Bench, case: Case) -> None:
    """Random rows, few of the file: against the disk's own rate for such reads."""
    plan = shuffled(case.workload.rows, SEED)[:ROWS]
    disk = methods_here(case, plan)
    if not disk:
        raise OSError("neither O_DIRECT nor io_uring may be used here: there is no ceiling to compare with")
    contestants = {name: cold(bench, case, run) for name, run in disk.items()}
    epochs = in_turn({**contestants, **loaders(bench, case, plan)}, bench.rounds)
    best = max(disk, key=lambda name: Spread.of(rates(epochs[name])).median)
    of_disk, of_stock = share(epochs["fast"], epochs[best]), share(epochs["fast"], epochs["stock"])
    cached = share(epochs["cached"], epochs[best])
    rate = megabytes(epochs)[f"MB/s {best}"].median
    text = (
        f"{of_disk.median:.2f} ({of_disk.low:.2f} to {of_disk.high:.2f}) of {best} at {rate:,.0f} MB/s; "
        f"{cached.median:.2f} through the page cache; {of_stock.median:.1f}x stock over a memmap"
    )
    bench.add(case.name, text, of_disk=of_disk, cached=cached, of_stock=of_stock, best=best, **megabytes(epochs))


def measure_whole(bench: Bench, case: Case) -> None:
    """All rows of the file in random order: against the stock loader."""
    epochs = in_turn(loaders(bench, case, shuffled(case.workload.rows, SEED)), bench.rounds)
    of_stock = share(epochs["fast"], epochs["stock"])
    text = f"whole file: {of_stock.median:.1f}x ({of_stock.low:.1f} to {of_stock.high:.1f}) stock over a memmap"
    bench.add(f"{case.name} whole", text, of_stock=of_stock, **megabytes(epochs))


def measure_passes(bench: Bench, case: Case) -> None:
    """One loader, several passes over all rows: what each finds in the page cache is what the one before left there."""
    runs: dict[str, list[Epoch]] = {name: [] for name in PASSES}
    for _ in range(bench.rounds):
        evict(case.workload.shard(case.folder), everything=not bench.args.quick)
        loader = cold_loader(case, shuffled(case.workload.rows, SEED))
        for name in PASSES:
            runs[name].append(run_epoch(loader))
        del loader  # its mapping would keep the pages in the cache
    rates_in_turn = megabytes(runs)
    text = ", then ".join(f"{spread.median:,.0f} MB/s" for spread in rates_in_turn.values())
    bench.add(f"{case.name} passes", text, **rates_in_turn)


def main() -> None:
    parser = arguments("FastLoader on a cold disk", rounds=5, default=("W1", "C4"))
    parser.set_defaults(variants=["raw"])
    args = parser.parse_args()
    if not args.quick and not os.access(DROP_CACHES, os.W_OK):
        print("only root may drop the page cache: nothing was measured")
        return
    bench = Bench(args)
    with bench.cases(held=False) as cases:
        for case in cases:
            measure(bench, case)
            measure_whole(bench, case)
            measure_passes(bench, case)


if __name__ == "__main__":
    main()
