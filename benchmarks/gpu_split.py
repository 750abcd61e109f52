"""Rows that lie partly on the GPU and partly in pinned RAM: how fast does one kernel gather batches from both?

A quarter, half, three quarters and all of the rows lie on the GPU. What a batch cannot beat is the slower of two things
that take turns with it: a pinned copy of the bytes that lie in RAM, and a copy on the device that moves as many bytes
as the GPU's memory must. Then passes of the loader, in which the kernel reads the rows in RAM across the bus, take
turns with passes in which the copy engine moves them: native threads gather into pinned slots, in batches of as many
rows as a batch has in RAM. The rows on the GPU are left out of the latter, so the copy engine is seen at its best.
"""

from __future__ import annotations

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
        """Compares some batches with those of files."""
        device = self.bench.device
        compare_some(loader_of(self.case, device, self.near), loader_of(self.case, torch.device("cpu")), device)

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
        far = self.ds.select(range(self.kept, len(self.ds)))
        kernel = loader_of(case, device, self.near)
        through(kernel, device)
        often = times_to_last(through(kernel, device), quick=self.bench.args.quick)
        loaders = {
            "kernel": loader_of(case, device, lengthened(self.near, often)),
            "engine": loader_of(case, device, lengthened(far, often), batch_size=self.in_batch),
        }
        runs = {name: lambda one=one: through(one, device) / len(one) for name, one in loaders.items()}
        in_turn(runs, 1)
        times = in_turn(runs, rounds)
        found = faster(times["kernel"], times["engine"])
        rates = {name: Spread.of(case.workload.batch_size / s for s in seconds) for name, seconds in times.items()}
        first = "the kernel" if found.median >= 1 else "the copy engine"
        what = f"{self.words}, a pass by the kernel, times as fast as by the copy engine"
        self.bench.judge(case.name, what, found, None, rows_per_second=rates, faster=first, on_gpu=1 - self.beyond)


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
