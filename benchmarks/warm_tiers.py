"""What does the page cache cost beside rows that were loaded into RAM, when both are warm?

FastLoader over the same shard on tier "mmap", whose file is locked in memory, and on tier "ram", in turn; all keep
their slots between epochs. Two things beside the tier are told apart:

- Where in the machine's memory rows and slots happen to lie is worth some percent. So every round lays them anew: the
  rows in RAM twice, of which the second beside the first shows what the laying alone does.
- The page cache keeps a file in the pages in which it came. One that was written in large pieces, as memload writes, is
  mapped in huge pages where the file system has them (ext4 from Linux 6.16 on, XFS); one that came in small pieces, as
  copies do, in pages of 4 KB.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED

from memload.cli.measure import Epoch, Spread, held_in_memory, ratio, run_epoch
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import default_threads

RUNS = 5  # of each, while the rows stay where they are
LAID = {"mmap": "mmap", "small pages": "mmap", "ram": "ram", "ram again": "ram"}  # tiers
PIECE = 64 << 20  # bytes that are written at once


@contextlib.contextmanager
def laid_anew(case: Case) -> Iterator[dict[str, Case]]:
    """The case with copies of its file in pages of their own: one written in large pieces, and one in small ones."""
    with tempfile.TemporaryDirectory(prefix="laid-", dir=case.folder.parent) as folder:
        laid = {}
        for name, size in (("mmap", PIECE), ("small pages", 4096)):
            laid[name] = replace(case, folder=Path(folder, name))
            shutil.copytree(case.folder, laid[name].folder, copy_function=lambda a, b, n=size: copied(a, b, n))
        with held_in_memory({case.workload.shard(one.folder) for one in laid.values()}):
            yield laid


def copied(source: str, target: str, piece: int) -> None:
    with Path(source).open("rb") as reader, Path(target).open("wb", buffering=0) as writer:
        while data := reader.read(piece):
            writer.write(data)


def huge_share(path: Path) -> float:
    """What part of the mappings of a file lies in huge pages."""
    areas = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    own = [area for area in areas if area.partition("\n")[0].endswith(str(path))]
    size, huge = (sum(int(kb) for a in own for kb in re.findall(rf"{k}:\s+(\d+)", a)) for k in ("Rss", "FilePmdMapped"))
    return huge / max(1, size)


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
    huge: dict[str, list[float]] = {"mmap": [], "small pages": []}
    for _ in range(bench.rounds):
        with laid_anew(case) as laid:
            loaders = {name: tier_loader(laid.get(name, laid["mmap"]), tier) for name, tier in LAID.items()}
            runs = compete({name: lambda it=loader: run_epoch(it) for name, loader in loaders.items()}, RUNS)
            for name, found in huge.items():
                found.append(huge_share(case.workload.shard(laid[name].folder)))
            del loaders
        for name, seen in runs.items():
            epochs[name] += seen
    shares = {name: share(epochs[name], epochs["ram"]) for name in LAID if name != "ram"}
    cpu = {name: ratio(cpu_of(epochs[name]), cpu_of(epochs["ram"])) for name in shares}
    text = ", ".join(f"{name} {found}, CPU {cpu[name]}" for name, found in shares.items())
    parts = {name: Spread.of(found) for name, found in huge.items()}
    lies = f"{parts['mmap'].median:.0%} and {parts['small pages'].median:.0%} in huge pages"
    each = {name: Spread.of(rates(runs)) for name, runs in epochs.items()}
    bench.add(case.name, f"of ram: {text}; {lies}", share=shares["mmap"], shares=shares, cpu=cpu, huge=parts, each=each)


def main() -> None:
    bench = Bench(arguments("mapped rows beside loaded ones, warm", rounds=7, default=("W1", "W2")).parse_args())
    bench.pages = "each round had a copy of the file, locked in memory where that was allowed"
    with bench.cases(held=False) as cases:
        for case in cases:
            measure(bench, case)


if __name__ == "__main__":
    main()
