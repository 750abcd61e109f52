"""Which share of what pinned copies can reach does the loader's way to the GPU reach, by size of batch?

The rows lie in a table that is small enough for the CPU's cache, so that gathering is no limit; nothing is cast. The
ceiling is the best of plain loops of asynchronous copies of the same size, from 1, 2 and 4 pinned buffers. Beside it
stands what a copy from memory that is not pinned reaches, as `.to("cuda")` of an ordinary batch does, what the loop's
thread does for a batch, and how fast RAM is pinned at all.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from gpu_common import (
    MB,
    VARIED,
    GpuBench,
    PinnedCopies,
    clocked,
    finish,
    gpu_arguments,
    lengthened,
    random_bytes,
    times_to_last,
)
from gpu_data import compare

import memload
from memload.cli.measure import Spread, in_turn, ratio
from memload.dataset.dataset import Dataset
from memload.device.pinned_memory import PinnedMemory
from memload.memory.budget import default_threads

MEGABYTES = (1, 4, 16, 64, 256)
WANTED = {1: 0.5, 4: 0.85}  # of a plain loop's rate, by megabytes of a batch; larger ones: 0.95
ROWS = 64  # of a batch
STORED = 4  # rows, of which batches are made: 16 MB for the largest
PINNED = 1 << 30  # bytes that are pinned at once
TRIED = 1 << 29  # bytes of the batches that tell how long one takes


def table_of(nbytes: int) -> Dataset:
    """Random rows, of which 64 make a batch of so many bytes."""
    return memload.from_arrays(x=random_bytes(STORED * nbytes // ROWS).view(STORED, -1)).only("x")


def loader_of(
    rows: Dataset, device: torch.device | None, options: memload.EngineOptions | None = None
) -> memload.FastLoader[torch.Tensor]:
    kept = {"num_workers": default_threads(), "persistent_workers": True}
    return memload.FastLoader(rows, ROWS, device=device, options=options, **kept)


def through(loader: memload.FastLoader[torch.Tensor]) -> None:
    for _ in loader:
        pass


def seconds_of_a_batch(table: Dataset, nbytes: int, bench: GpuBench) -> float:
    """Seconds of one of the loader's batches, which may be several times those of a plain copy."""
    some = max(8, TRIED // nbytes)
    loader = loader_of(lengthened(table, ROWS // STORED * some), bench.device)
    through(loader)  # which pins the slots
    return clocked(lambda: through(loader), bench.device) / some


def measure(bench: GpuBench, nbytes: int) -> None:
    table = table_of(nbytes)
    some = lengthened(table, ROWS // STORED * 8)
    compare(({"x": x} for x in loader_of(some, bench.device)), ({"x": x} for x in loader_of(some, None)), bench.device)
    copies = PinnedCopies(nbytes, bench.device, quick=bench.args.quick)
    batches = 4 if bench.args.quick else max(8, times_to_last(seconds_of_a_batch(table, nbytes, bench), quick=False))
    rows = lengthened(table, ROWS // STORED * batches)
    loader = loader_of(rows, bench.device)
    through(loader)
    settings = VARIED if nbytes <= MB else {}  # where the loop's own thread is the limit
    varied = {name: loader_of(rows, bench.device, options) for name, options in settings.items()}
    ordinary = random_bytes(nbytes)
    thread: list[float] = []  # CPU seconds of the loop's thread, of a batch

    def timed(one: memload.FastLoader[torch.Tensor]) -> float:
        return clocked(lambda: through(one), bench.device) / batches

    def ours() -> float:
        begun = time.thread_time()
        seconds = timed(loader)
        thread.append((time.thread_time() - begun) / batches)
        return seconds

    times = in_turn(
        {
            "loader": ours,
            **{name: partial(timed, one) for name, one in varied.items()},
            "plain": copies.seconds,
            "ordinary": lambda: clocked(lambda: [ordinary.to(bench.device) for _ in range(4)], bench.device) / 4,
        },
        bench.rounds,
    )
    rates = {name: Spread.of(nbytes / seconds / 1e9 for seconds in found) for name, found in times.items()}
    case = f"{nbytes / MB:g} MB"
    share = ratio(times["plain"], times["loader"])
    target = WANTED.get(nbytes // MB, 0.95)
    stats = loader.stats()
    bench.judge(case, "the loader's copies, share of a plain loop's", share, target, gb_per_s=rates, stats=str(stats))
    waited = Spread.of([stats.device_wait_seconds / stats.wall_seconds])
    bench.judge(case, "share of the time that next() waited for the device", waited, None)
    for name in varied:
        bench.judge(case, f"with {name}, share of a plain loop's", ratio(times["plain"], times[name]), None)
    busy = Spread.of(seconds * 1e6 for seconds in thread)
    bench.judge(case, "us of CPU time of the loop's thread for a batch", busy, 25, at_most=True)
    bench.judge(case, "GB/s of plain pinned copies", rates["plain"], None)
    bench.judge(case, "GB/s of copies from ordinary memory", rates["ordinary"], None)


def pin(bench: GpuBench) -> None:
    """How fast the driver pins RAM: what torch allocates so, and huge pages that are filled already, as memload's."""
    nbytes = MB if bench.args.quick else PINNED

    kept = []  # given back, torch would hand them out again without pinning anything

    def by_torch() -> float:
        on = bench.device.type == "cuda"
        return clocked(lambda: kept.append(torch.empty(nbytes, dtype=torch.uint8, pin_memory=on)), cpu)

    def registered() -> float:
        memory = PinnedMemory(1, nbytes, bench.device)
        memory.table.fill_(1)
        return clocked(memory.pin, cpu)

    cpu = torch.device("cpu")
    finish(bench.device)
    for what, found in in_turn({"torch's": by_torch, "filled huge pages": registered}, bench.rounds).items():
        rate = Spread.of(nbytes / seconds / 1e9 for seconds in found)
        bench.judge("pinning", f"GB/s at which RAM is pinned, {what}", rate, None)


def main() -> None:
    bench = GpuBench(gpu_arguments("pinned copies", rounds=3).parse_args())
    bench.attempt("pinning", pin, bench)
    for megabytes in (0.25,) if bench.args.quick else MEGABYTES:
        bench.attempt(f"{megabytes:g} MB", measure, bench, int(megabytes * MB))
    bench.save()
    bench.end()


if __name__ == "__main__":
    main()
