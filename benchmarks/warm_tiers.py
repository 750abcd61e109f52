"""What does the page cache cost beside rows that were loaded into RAM, when both are warm?

FastLoader over the same shard on tier "mmap", whose file is locked in memory, and on tier "ram", in turn; all keep
their slots between epochs. Where in the machine's memory rows and slots happen to lie is worth a tenth, so every
round lays them anew: a fresh copy of the file, and two of the rows in RAM. What the second of these gives beside the
first is what the laying alone does.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED

from memload.loader import FastLoader
from memload.measure import Epoch, Spread, held_in_memory, ratio, run_epoch
from memload.memory.budget import default_threads

RUNS = 5  # of each, while the rows stay where they are
LAID = {"mmap": "mmap", "ram": "ram", "ram again": "ram"}  # tiers


@contextlib.contextmanager
def laid_anew(case: Case) -> Iterator[Case]:
    """The case with a copy of its file, in pages of its own."""
    with tempfile.TemporaryDirectory(prefix="laid-", dir=case.folder.parent) as folder:
        copy = replace(case, folder=Path(shutil.copytree(case.folder, Path(folder, case.folder.name))))
        with held_in_memory([case.workload.shard(copy.folder)]):
            yield copy


def tier_loader(case: Case, tier: str) -> FastLoader[Any]:
    return FastLoader(
        case.workload.open(case.folder).with_tier(tier, **({"progress": False} if tier == "ram" else {})),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
        cast=case.workload.casts(case.variant),
        num_workers=default_threads(),
        persistent_workers=True,
    )


def cpu_of(epochs: list[Epoch]) -> list[float]:
    return [epoch.cpu_per_gb for epoch in epochs]


def measure(bench: Bench, case: Case) -> None:
    epochs: dict[str, list[Epoch]] = {name: [] for name in LAID}
    for _ in range(bench.rounds):
        with laid_anew(case) as laid:
            loaders = {name: tier_loader(laid, tier) for name, tier in LAID.items()}
            runs = compete({name: lambda it=loader: run_epoch(it) for name, loader in loaders.items()}, RUNS)
            del loaders
        for name, found in runs.items():
            epochs[name] += found
    found, again = share(epochs["mmap"], epochs["ram"]), share(epochs["ram again"], epochs["ram"])
    cpu = ratio(cpu_of(epochs["mmap"]), cpu_of(epochs["ram"]))
    text = f"mmap {found} of ram, at {cpu} of its CPU time; ram laid elsewhere {again}"
    each = {name.replace(" ", "_"): Spread.of(rates(runs)) for name, runs in epochs.items()}
    bench.add(case.name, text, share=found, again=again, cpu=cpu, **each)


def main() -> None:
    bench = Bench(arguments("mapped rows beside loaded ones, warm", rounds=7, default=("W1", "W2")).parse_args())
    bench.pages = "each round had a copy of the file, locked in memory where that was allowed"
    with bench.cases(held=False) as cases:
        for case in cases:
            measure(bench, case)


if __name__ == "__main__":
    main()
