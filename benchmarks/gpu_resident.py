"""Data that lies nearer: how fast are batches gathered and cast on the GPU, and across the bus by the GPU?

From device memory the ceiling is a copy on the device that moves equally many bytes, read and written together. What
the kernel reaches shows in batches of 512 MB; those of the workload are done in the time that a launch takes, and are
told beside. From pinned RAM the ceiling is the copy engine's rate for batches of that size; two thirds of it is what
others have published for gathers by kernels. A pass out of pinned RAM, gathered by the GPU, is told beside one of the
same data through the ring, whose slots native threads fill: which of them is faster decides whether the default of
docs/design/device.md is right. Then the time to the first batch, and what is really allocated and pinned against what
is stated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_common import (
    MB,
    GpuBench,
    PinnedCopies,
    clocked,
    device_copy,
    faster,
    finish,
    gpu_arguments,
    lengthened,
    take_turns,
    times_to_last,
)
from gpu_data import compare_some
from gpu_loader import loader_of, through
from harness import Case

import memload
from memload.cli.measure import Spread, in_turn
from memload.dataset.dataset import Dataset
from memload.device.batch_maker import BatchMaker
from memload.device.destination_buffers import TransferredBatches
from memload.device.pinned_memory import resident_fields
from memload.engine.readers import resolve

BATCHES = 16  # of which the rows are drawn beforehand
LARGE_BYTES = 512 * MB  # of a batch, as it is stored


def gatherer_of(case: Case, ds: Dataset, size: int) -> Callable[[], Any]:
    """Gathers and casts one batch after another of random rows, as the loader does in its loop's own stream."""
    make = BatchMaker(resolve(ds).with_casts(case.workload.casts(case.variant)))
    rng = np.random.default_rng(0)
    plans = [rng.integers(0, len(ds), size) for _ in range(BATCHES)]
    turn = 0

    def gather() -> Any:
        nonlocal turn
        turn += 1
        return make(plans[turn % BATCHES])

    return gather


def bytes_moved(case: Case) -> int:
    """Bytes of a row as they are stored, read, and as the loop gets them, written."""
    casts = case.workload.casts(case.variant)
    row = 0
    for name, shape, dtype in case.workload.fields:
        stored = int(np.prod(shape)) * np.dtype(dtype).itemsize
        row += stored + (int(np.prod(shape)) * casts[name].dtype.itemsize if name in casts else stored)
    return row


def compare_data(bench: GpuBench, case: Case, near: Dataset) -> None:
    """Compares some batches of data that lies nearer with those of files."""
    compare_some(loader_of(case, bench.device, near), loader_of(case, torch.device("cpu")), bench.device)


def measure_device(bench: GpuBench, case: Case, ds: Dataset) -> None:
    bring(bench, case, ds)
    near = memload.to_device(ds, bench.device, progress=False)
    compare_data(bench, case, near)
    size = case.workload.batch_size
    for rows, target in ((LARGE_BYTES // case.workload.row_bytes, 0.85), (size, None)):
        if bench.args.quick and rows != size:
            continue
        moved = rows * bytes_moved(case)
        calls = {"gather": gatherer_of(case, near, rows), "copy": device_copy(moved, bench.device)}
        times = take_turns(calls, bench.device, bench.rounds)
        share = faster(times["gather"], times["copy"])
        figures = {
            "gb_per_s": Spread.of(moved / s / 1e9 for s in times["gather"]),
            "seconds": Spread.of(times["gather"]),
        }
        bench.judge(
            case.name, f"gather and cast {rows} rows on the device, share of a device copy", share, target, **figures
        )


def bring(bench: GpuBench, case: Case, ds: Dataset) -> None:
    """How fast the rows get to the device, beside plain copies of 64 MB."""
    copies = PinnedCopies(min(64 * MB, ds.nbytes), bench.device, quick=bench.args.quick)

    def once() -> object:
        return memload.to_device(ds, bench.device, progress=False)

    often = min(8, times_to_last(clocked(once, bench.device), quick=bench.args.quick))
    times = in_turn(
        {
            "bring": lambda: clocked(lambda: [once() and None for _ in range(often)], bench.device) / often,
            "copy": lambda: copies.seconds() * ds.nbytes / copies.nbytes,
        },
        min(3, bench.rounds),
    )
    rate = Spread.of(ds.nbytes / seconds / 1e9 for seconds in times["bring"])
    share = faster(times["bring"], times["copy"])
    bench.judge(case.name, "to_device, share of pinned copies", share, 0.85, gb_per_s=rate)


def measure_pinned(bench: GpuBench, case: Case, ds: Dataset) -> None:
    pinned = memload.to_device(ds, bench.device, tier="pinned", progress=False)
    compare_data(bench, case, pinned)
    seen = resident_fields(pinned.fields, bench.device)
    assert seen is not None
    nbytes = case.workload.batch_size * case.workload.row_bytes
    copies = PinnedCopies(nbytes, bench.device, quick=bench.args.quick)
    calls = {"gather": gatherer_of(case, Dataset(seen), case.workload.batch_size), "copy": copies.queue_one}
    times = take_turns(calls, bench.device, bench.rounds)
    share = faster(times["gather"], times["copy"])
    bench.judge(case.name, "gathered by the GPU out of pinned RAM, share of pinned copies", share, None)
    often = times_to_last(ds.nbytes / nbytes * min(times["copy"]), quick=bench.args.quick)
    passes = {
        name: loader_of(case, bench.device, lengthened(of, often)) for name, of in (("gpu", pinned), ("ring", ds))
    }
    seconds = in_turn(
        {name: lambda one=one: through(one, bench.device) for name, one in passes.items()}, min(3, bench.rounds)
    )
    share = faster(seconds["gpu"], seconds["ring"])
    bench.judge(case.name, "a pass out of pinned RAM gathered by the GPU, rate of the ring's", share, None)


def measure_first_batch(bench: GpuBench, case: Case, ds: Dataset) -> None:
    near = memload.to_device(ds, bench.device, progress=False)
    made = {"from files": ds, "from the device": near}
    firsts = {name: lambda one=one: next(iter(loader_of(case, bench.device, one))) for name, one in made.items()}
    times = in_turn({name: lambda f=first: clocked(f, bench.device) for name, first in firsts.items()}, bench.rounds)
    for name, found in times.items():
        bench.judge(case.name, f"ms to the first batch, {name}", Spread.of(1e3 * seconds for seconds in found), None)


def measure_memory(bench: GpuBench, case: Case, ds: Dataset) -> None:
    """What a pass takes of the device's memory at its peak, and pins, against what the loader states."""
    if bench.device.type != "cuda":
        return
    loader = loader_of(case, bench.device, ds)
    finish(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    for _ in loader:
        pass
    finish(bench.device)
    taken = torch.cuda.max_memory_allocated(bench.device) - before
    found = Spread.of([taken / loader.device_nbytes])
    stated = {"taken": taken, "stated": loader.device_nbytes}
    bench.judge(case.name, "device bytes taken, of those stated", found, 1.05, at_most=True, **stated)
    layers = loader.__memload_loader__().history.kept
    assert layers is not None
    kept = layers.gathers
    assert isinstance(kept, TransferredBatches)
    pinned = kept.pinned_bytes
    figures = {"taken": pinned, "stated": loader.nbytes}
    bench.judge(
        case.name, "pinned bytes, of those stated", Spread.of([pinned / loader.nbytes]), 1.05, at_most=True, **figures
    )


def main() -> None:
    parser = gpu_arguments("data that lies nearer", rounds=7, default=("W1", "W2"))
    parser.set_defaults(variants=["bf16"])
    bench = GpuBench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            ds = case.workload.open(case.folder)
            for measure in (measure_device, measure_pinned, measure_first_batch, measure_memory):
                bench.attempt(case.name, measure, bench, case, ds)
                if bench.device.type == "cuda":
                    torch.cuda.empty_cache()
    bench.end()


if __name__ == "__main__":
    main()
