"""What does the page cache cost beside rows that were loaded into RAM, when both are warm?

FastLoader over the same shard on tier "mmap", whose file is locked in memory, and on tier "ram", in turn; both keep
their slots between epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED

from memload.loader import FastLoader
from memload.measure import Spread, run_epoch
from memload.memory.budget import default_threads


def tier_loader(case: Case, tier: str) -> FastLoader[Any]:
    return FastLoader(
        case.workload.open(case.folder).with_tier(tier),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
        cast=case.workload.casts(case.variant),
        num_workers=default_threads(),
        persistent_workers=True,
    )


def measure(bench: Bench, case: Case) -> None:
    loaders = {tier: tier_loader(case, tier) for tier in ("mmap", "ram")}
    epochs = compete({tier: lambda it=loader: run_epoch(it) for tier, loader in loaders.items()}, bench.rounds)
    found = share(epochs["mmap"], epochs["ram"])
    text = f"mmap {found.median:.2f} ({found.low:.2f} to {found.high:.2f}) of ram"
    bench.add(case.name, text, share=found, **{tier: Spread.of(rates(runs)) for tier, runs in epochs.items()})


def main() -> None:
    bench = Bench(arguments("mapped rows beside loaded ones, warm", rounds=9, default=("W1", "W2")).parse_args())
    with bench.cases() as cases:
        for case in cases:
            measure(bench, case)


if __name__ == "__main__":
    main()
