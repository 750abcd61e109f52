"""What is left of FastLoader's speed when a library builds a stock DataLoader of its attributes?

accelerate, HF Trainer and Ray Train do so. The loader that they build asks the dataset for whole batches (the second
fetcher), one at a time, in the loop's own thread. It is compared with FastLoader itself, with the stock loader at its
best, and, since some libraries collate by functions of their own, once more with a function that looks at every
sample; that one against the same over samples without the batch fetcher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from harness import Bench, Case, compete, each_case, rates, share
from loops import SEED, fast_loader, fast_loop, stock_loop
from torch.utils.data import DataLoader, Dataset

from memload.cli.measure import Epoch, Spread, run_epoch


class Plain(Dataset[Any]):
    """The same samples, without the batch fetcher."""

    def __init__(self, base: Any) -> None:
        self._base = base

    def __len__(self) -> int:
        return len(self._base)

    def __getitem__(self, row: int) -> Any:
        return self._base[row]


def rebuilt(case: Case, dataset: Any, collate: Callable[[list[Any]], Any]) -> DataLoader[Any]:
    """A stock loader as those libraries make it."""
    generator = torch.Generator().manual_seed(SEED)
    return DataLoader(
        dataset, case.workload.batch_size, shuffle=True, drop_last=True, generator=generator, collate_fn=collate
    )


def stacked(samples: list[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collate function as users and libraries write it."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def measure(bench: Bench, case: Case) -> None:
    dataset = case.workload.open(case.folder)
    fetcher = rebuilt(case, dataset, fast_loader(case).collate_fn)
    looked, plain = rebuilt(case, dataset, stacked), rebuilt(case, Plain(dataset), stacked)
    fast, stock = fast_loop(case), stock_loop(case, quick=bench.args.quick)
    few = None if bench.args.quick else 20  # batches of those that make samples
    contestants: dict[str, Callable[[], Epoch]] = {
        "fetcher": lambda: run_epoch(fetcher),
        "fast": lambda: fast.run(None),
        "stock": lambda: stock.run(None),
        "looked": lambda: run_epoch(looked, few),
        "plain": lambda: run_epoch(plain, few),
    }
    epochs = compete(contestants, bench.rounds)
    kept, gained = share(epochs["fetcher"], epochs["fast"]), share(epochs["fetcher"], epochs["stock"])
    samples = share(epochs["looked"], epochs["plain"])
    text = (
        f"{gained.median:.1f}x of stock, {kept.median:.0%} of FastLoader; {samples.median:.1f}x where samples are made"
    )
    figures = {name: Spread.of(rates(found)) for name, found in epochs.items()}
    bench.add(case.name, text, kept=kept, gained=gained, samples=samples, setting=stock.setting, **figures)


if __name__ == "__main__":
    each_case("a stock loader over a memload dataset", measure)
