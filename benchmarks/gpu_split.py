"""Rows that lie partly on the GPU and partly in pinned RAM: how fast does one kernel gather batches from both?

A quarter, half, three quarters and all of the rows lie on the GPU. What a batch cannot beat is the slower of two things
that take turns with it: a pinned copy of the bytes that lie in RAM, and a copy on the device that moves as many bytes
as the GPU's memory must. Then passes of the loader, in which the kernel reads the rows in RAM across the bus, take
turns with passes in which the copy engine moves them. At last the loader itself tries both ways, as it does for its
users, and it is reported what it found.
The CPU time of the loop's thread for a batch tells whether a pass waits for that thread rather than for the bus.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from gpu_common import (
    GpuBench,
    PinnedCopies,
    device_copy,
    faster,
    gpu_arguments,
    lengthened,
    median,
    take_turns,
    times_to_last,
)
from gpu_data import compare_some
from gpu_loader import loader_of, through
from gpu_resident import bytes_moved, gatherer_of
from harness import Case

import memload
from memload.cli.measure import Spread, in_turn
from memload.dataset.dataset import Dataset
from memload.device.resident import ResidentField
from memload.device.split_tier import SplitColumn
from memload.device.transfer_choice import TransferChoice

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the rows, on the GPU


class Split:
    """A case's rows with a share of them on the device."""

    def __init__(self, bench: GpuBench, case: Case, ds: Dataset, share: float) -> None:
        self.bench, self.case, self.ds = bench, case, ds
        self.near = memload.to_device(ds, bench.device, bytes=int(ds.nbytes * share), progress=False)
        self.kept = rows_on_devices(self.near)
        self.beyond = 1 - self.kept / len(ds)
        self.in_batch = round(case.workload.batch_size * self.beyond)  # rows of a batch that lie in RAM
        self.words = f"{self.kept / len(ds):.0%} on the GPU"

    def compare(self) -> None:
        """Compares some batches with those of files, both ways."""
        device = self.bench.device
        for by_copies in (False, True):
            near = loader_of(self.case, device, self.near)
            decide(near, by_copies)
            compare_some(near, loader_of(self.case, torch.device("cpu")), device)

    def against_the_machine(self) -> None:
        """Which share of the lower of bus and GPU memory the kernel reaches, a batch after the other."""
        case, size, quick = self.case, self.case.workload.batch_size, self.bench.args.quick
        moved = size * bytes_moved(case) - self.in_batch * case.workload.row_bytes
        calls = {
            "kernel": gatherer_of(case, self.near, size),
            "GPU memory": device_copy(moved, self.bench.device),
        }
        if self.in_batch:
            calls["the bus"] = PinnedCopies(
                self.in_batch * case.workload.row_bytes, self.bench.device, quick=quick
            ).queue_one
        times = take_turns(calls, self.bench.device, self.bench.rounds)
        ours = times.pop("kernel")
        limit = max(times, key=lambda name: median(times[name]))
        slower = [max(turn) for turn in zip(*times.values(), strict=True)]
        rate = Spread.of(size / seconds for seconds in ours)
        what = f"{self.words}, the kernel, share of {limit}"
        self.bench.judge(case.name, what, faster(ours, slower), None, rows_per_second=rate, on_gpu=1 - self.beyond)

    def against_the_copy_engine(self) -> None:
        """How many times as fast batches come where the kernel reads the rows in RAM, not the copy engine."""
        case, device, rounds = self.case, self.bench.device, min(3, self.bench.rounds)
        kernel = loader_of(case, device, self.near)
        decide(kernel, by_copies=False)
        through(kernel, device)
        often = times_to_last(through(kernel, device), quick=self.bench.args.quick)
        loader = loader_of(case, device, lengthened(self.near, often))
        thread: dict[str, list[float]] = {"kernel": [], "copy engine": []}  # its CPU time, microseconds of a batch

        def run(name: str) -> float:
            decide(loader, by_copies=name == "copy engine")
            begun = time.thread_time()
            seconds = through(loader, device) / len(loader)
            thread[name].append((time.thread_time() - begun) / len(loader) * 1e6)
            return seconds

        runs = {name: partial(run, name) for name in thread}
        in_turn(runs, 1)
        times = in_turn(runs, rounds)
        took = {name: Spread.of(each[1:]) for name, each in thread.items()}
        found = faster(times["kernel"], times["copy engine"])
        rates = {name: Spread.of(case.workload.batch_size / s for s in seconds) for name, seconds in times.items()}
        first = "the kernel" if found.median >= 1 else "the copy engine"
        what = f"{self.words}, a pass by the kernel, times as fast as by the copy engine"
        chosen, ratios = tried(loader, device)
        more = {"rows_per_second": rates, "loop_thread_us": took, "faster": first, "on_gpu": 1 - self.beyond}
        self.bench.judge(case.name, what, found, None, **more, chosen=chosen, ratios=ratios)


def decide(loader: memload.FastLoader, by_copies: bool | None) -> TransferChoice | None:
    """Lets the rows in RAM of a loader's passes come this way; None: by that which a trial finds faster."""
    access = loader.__memload_loader__()
    plan = access.settings(access.cast_source()).transfer
    if plan is None:
        return None
    plan.choice.by_copies = by_copies
    plan.choice.ratios.clear()
    return plan.choice


def tried(loader: memload.FastLoader, device: torch.device) -> tuple[str, list[float]]:
    """What the loader's own trial finds, and its ratios; nothing on a CPU, which has no copy engine."""
    choice = decide(loader, None)
    if choice is None:
        return "", []
    for _ in range(3):
        through(loader, device)
    return str(choice), list(choice.ratios)


def rows_on_devices(near: Dataset) -> int:
    """Rows whose largest field lies on the device; others keep the same share of theirs."""
    field = max(near.fields.values(), key=lambda one: one.nbytes)
    assert isinstance(field, ResidentField)
    assert isinstance(field.column, SplitColumn)
    return sum(map(len, field.column.on_devices))


def measure(bench: GpuBench, case: Case, ds: Dataset, share: float) -> None:
    split = Split(bench, case, ds, share)
    split.compare()
    split.against_the_machine()
    if split.in_batch:
        split.against_the_copy_engine()


def main() -> None:
    parser = gpu_arguments("rows on the GPU and in pinned RAM", rounds=7, default=("W1", "W2"))
    parser.set_defaults(variants=["bf16"])
    bench = GpuBench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            ds = case.workload.open(case.folder)
            for share in SHARES:
                bench.attempt(f"{case.name}, {share:.0%}", measure, bench, case, ds, share)
                if bench.device.type == "cuda":
                    torch.cuda.empty_cache()
    bench.end()


if __name__ == "__main__":
    main()
