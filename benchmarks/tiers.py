"""What does each tier reach of the disk, and how much does a cache of half the rows save?

Cold: the page cache is dropped before every run (with --quick: that of the one file). Each tier reads the same random
rows, and its rate is given as a share of the disk's own: the best of O_DIRECT and io_uring with several numbers of
reads of just these rows in flight.

Epochs: under a control group's limit of memory that leaves room for half of the rows, what a process reads from the
disk in each later epoch, as a share of the rows: through the page cache, and with a cache of half the rows in front of
reads past it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cold import DROP_CACHES, cold, disk_epoch, evict, megabytes
from harness import Bench, Case, arguments, rates, share
from loops import SEED

import memload
from memload.cli.bench import shuffled
from memload.cli.measure import Epoch, Spread, in_turn, run_epoch
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import parse_groups
from memload.sizes import format_size

METHODS = (("direct", 8), ("io_uring", 8), ("io_uring", 32), ("io_uring", 128))
READ_BYTES = 1_000_000_000  # of the rows of a case, at most
TIERS: dict[str, dict[str, Any]] = {"page cache": {}, "direct": {}, "hybrid": {}}
EPOCHS = 4
BESIDE = 96 << 20  # bytes of memory for slots and the interpreter, besides half of the rows


def tier_loader(case: Case, plan: np.ndarray, tier: str) -> FastLoader[Any]:
    """FastLoader over the planned rows of the file on a tier, mapped anew, which it shuffles once more."""
    name = "mmap" if tier == "page cache" else tier
    options = {"cache_bytes": max(1 << 20, len(plan) * case.workload.row_bytes // 2)} if tier == "hybrid" else {}
    return FastLoader(
        case.workload.open(case.folder).with_tier(name, **options).select(plan),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
    )


def methods_here(case: Case, plan: np.ndarray) -> dict[str, Callable[[], Epoch]]:
    """The ways to read that the kernel and the file system grant."""
    granted: dict[str, Callable[[], Epoch]] = {}
    for method, in_flight in METHODS:
        with contextlib.suppress(OSError):
            disk_epoch(case, plan[:1], method, 1)
            granted[f"{method} {in_flight}"] = lambda m=method, k=in_flight: disk_epoch(case, plan, m, k)
    return granted


def measure_cold(bench: Bench, case: Case) -> None:
    """Random rows on each tier, against the disk's own rate for such reads."""
    plan = shuffled(case.workload.rows, SEED)[: max(1, READ_BYTES // case.workload.row_bytes)]
    disk = methods_here(case, plan)
    if not disk:
        raise OSError("neither O_DIRECT nor io_uring may be used here: there is no ceiling to compare with")
    runs = {tier: (lambda t=tier: run_epoch(tier_loader(case, plan, t))) for tier in TIERS}
    epochs = in_turn({name: cold(bench, case, run) for name, run in {**disk, **runs}.items()}, bench.rounds)
    best = max(disk, key=lambda name: Spread.of(rates(epochs[name])).median)
    shares = {tier: share(epochs[tier], epochs[best]) for tier in TIERS}
    rate = megabytes(epochs)[f"MB/s {best}"].median
    said = ", ".join(f"{tier} {s.median:.2f} ({s.low:.2f} to {s.high:.2f})" for tier, s in shares.items())
    row = format_size(case.workload.row_bytes)
    bench.add(
        case.name, f"rows of {row}: {said} of {best} at {rate:,.0f} MB/s", best=best, **shares, **megabytes(epochs)
    )


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[Path]:
    """The file to which a process writes its number to be in a control group with so much memory.

    Raises:
        OSError: this user may make none here.
    """
    groups = parse_groups(Path("/proc/self/cgroup").read_text())
    version = "memory" if "memory" in groups else ""
    group = Path("/sys/fs/cgroup", version, groups[version].strip("/"), f"memload-bench-{os.getpid()}")
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version else "memory.max")).write_text(str(nbytes))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def read_bytes() -> int:
    """What this process has had the disk read so far."""
    return int(Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])


def epochs_of(path: Path, row_bytes: int, tier: str, procs: Path) -> list[float]:
    """Reads from the disk, as a share of the rows, of each epoch of a process within the limit."""
    nbytes = path.stat().st_size
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        procs.write_text(str(os.getpid()))
        options = {"cache_bytes": nbytes // 2} if tier == "hybrid" else {}
        ds = memload.open(path, dtype="uint8", shape=row_bytes).with_tier(tier, **options)
        loader, found = FastLoader(ds, max(1, (2 << 20) // row_bytes), shuffle=True), []
        for _ in range(EPOCHS):
            before = read_bytes()
            for _ in loader:
                pass
            found.append((read_bytes() - before) / nbytes)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the process on tier {tier} ended with status {status}")
    return list(json.loads(text))


def measure_epochs(bench: Bench, folder: Path) -> None:
    """A set of rows under a limit of half of it, on the page cache alone and with a cache of half of the rows."""
    row_bytes, rows = 131_072, 256 if bench.args.quick else 8192
    path = folder / f"epochs-{rows}.dat"
    if not path.exists():
        noise = np.random.default_rng(0).integers(0, 256, (64, row_bytes), np.uint8)
        with path.open("wb") as file:
            for _ in range(rows // 64):
                file.write(noise)
    shares: dict[str, Spread] = {}
    with memory_limit(rows * row_bytes // 2 + BESIDE) as procs:
        for tier in ("mmap", "hybrid"):
            evict(path, everything=False)
            shares[tier] = Spread.of(epochs_of(path, row_bytes, tier, procs)[1:])
    said = ", ".join(f"{tier} {s.median:.2f} ({s.low:.2f} to {s.high:.2f})" for tier, s in shares.items())
    bench.add("epochs", f"disk bytes of a later epoch, of all: {said}", **shares)


def main() -> None:
    """Measures what can be measured here."""
    parser = arguments("the tiers on a cold disk", rounds=5, default=("C4", "C100", "W1", "W3"))
    parser.set_defaults(variants=["raw"])
    args = parser.parse_args()
    if not args.quick and not os.access(DROP_CACHES, os.W_OK):
        print("only root may drop the page cache: nothing was measured")
        return
    bench = Bench(args)
    with bench.cases(held=False) as cases:
        try:
            measure_epochs(bench, cases[0].folder.parent)  # first: it forks, and has no threads yet
        except OSError as error:
            print(f"epochs: no control group can be made here: {error}")
        for case in cases:
            measure_cold(bench, case)


if __name__ == "__main__":
    main()
