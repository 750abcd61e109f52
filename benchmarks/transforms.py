"""How many times as fast as the stock DataLoader at its best is FastLoader where users transform what is loaded?

Four transforms: of a batch that memload has cast on the way (random gain and flip, in place), of a batch as it is
stored (normalisation and flip), of a sample by numpy (the same), and of a sample by numpy, but cheap (a crop). Stock is
tried with 0, 1 and 2 workers, with plain items and, for batches, with batched __getitems__; its transform runs where
its batches are made, in the workers if there are any. Beside the ratio stands what the transform costs alone, in one
thread, and what the load costs without it, in the stock loader's best setting: 2x is wanted where the first is less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED, fast_loader
from torch.utils.data import DataLoader, Dataset, default_collate

from memload.cli import stock_loops
from memload.cli.measure import Epoch, Spread, run_epoch

Batch = dict[str, Any]


def gain_and_flip(batch: Batch) -> Batch:
    """In place: the batch is the transform's own."""
    x = batch["stim"]
    each = (len(x), *[1] * (x.dim() - 1))
    x.mul_(torch.rand(each).mul_(0.4).add_(0.8))
    for row in torch.rand(len(x)).lt(0.25).nonzero()[:, 0].tolist():
        x[row] = x[row].flip(-2)
    return batch


def normalise_and_flip(batch: Batch) -> Batch:
    """To float32, and every other image mirrored."""
    x = batch["stim"].float().sub_(127).div_(255)
    for row in torch.rand(len(x)).lt(0.5).nonzero()[:, 0].tolist():
        x[row] = x[row].flip(-2)
    return {**batch, "stim": x}


def normalise_sample(sample: Batch, rng: np.random.Generator) -> Batch:
    """The same for one sample, by numpy."""
    x = sample["stim"].numpy()
    if rng.random() < 0.5:
        x = x[..., ::-1, :]
    y = x.astype(np.float32)
    y -= 127
    y /= 255
    return {**sample, "stim": y}


def crop_sample(sample: Batch, rng: np.random.Generator) -> Batch:
    """A random half in each of the last two dimensions but the last, by numpy."""
    x = sample["stim"].numpy()
    top, left = (int(rng.integers(side // 2)) for side in x.shape[-3:-1])
    height, width = (side // 2 for side in x.shape[-3:-1])
    return {**sample, "stim": np.ascontiguousarray(x[..., top : top + height, left : left + width, :])}


@dataclass(frozen=True)
class Transform:
    """What is done, to a whole batch or to each sample of it."""

    fn: Callable[..., Batch]
    whole: bool
    cast: bool = False


TRANSFORMS = {
    "batch, cast by memload": Transform(gain_and_flip, whole=True, cast=True),
    "batch": Transform(normalise_and_flip, whole=True),
    "sample": Transform(normalise_sample, whole=False),
    "sample, cheap": Transform(crop_sample, whole=False),
}


class Samples(Dataset[Batch]):
    """Rows of a mapped shard, each through a function."""

    def __init__(self, shard: Path, fn: Callable[..., Batch]) -> None:
        self._items = stock_loops.Items(shard)
        self._fn = fn
        self._rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> Batch:
        if self._rng is None:
            self._rng = np.random.default_rng(torch.initial_seed() % 2**63)
        return self._fn(self._items[row], self._rng)


class Collate:
    """Makes a batch, casts it in place as memload would, and transforms it: where stock batches are made."""

    def __init__(self, fn: Callable[..., Batch] | None, cast: bool, batched: bool) -> None:
        self._fn, self._cast, self._batched = fn, cast, batched

    def __call__(self, samples: Any) -> Batch:
        """Return the batch."""
        batch: Batch = samples if self._batched else default_collate(samples)
        if self._cast:
            batch = {**batch, "stim": batch["stim"].float().sub_(127).div_(255)}
        return batch if self._fn is None else self._fn(batch)


def stock_loader(case: Case, how: Transform, batched: bool, workers: int, fn: bool = True) -> DataLoader[Any]:
    shard = case.workload.shard(case.folder)
    items: Dataset[Any] = stock_loops.BatchedItems(shard) if batched else stock_loops.Items(shard)
    if not how.whole and fn:
        items = Samples(shard, how.fn)
    return DataLoader(
        items,
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=Collate(how.fn if how.whole and fn else None, how.cast, batched),
        generator=torch.Generator().manual_seed(SEED),
    )


def best_stock(case: Case, how: Transform, seconds: float, quick: bool, fn: bool = True) -> tuple[str, Any]:
    """The fastest setting, tried for so long each, and what it is."""
    best, best_rate, named = None, -1.0, ""
    for batched in (False, True) if how.whole and not quick else (False,):
        for workers in (0,) if quick else stock_loops.WORKERS:
            loader = stock_loader(case, how, batched, workers, fn)
            run_epoch(loader, limit=2)
            rate = run_epoch(loader, seconds=seconds).rate
            if rate > best_rate:
                best, best_rate = loader, rate
                named = f"{'batched __getitems__' if batched else 'plain items'}, num_workers={workers}"
    return named, best


def cost_of(case: Case, how: Transform, batches: int = 3) -> float:
    """Seconds that the transform of one batch takes in one thread, made again and again from the same rows."""
    plain = stock_loader(case, how, batched=False, workers=0, fn=False)
    batch = next(iter(plain))
    rng = np.random.default_rng(SEED)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    spent = []
    for _ in range(batches):
        own = {name: value.clone() for name, value in batch.items()}
        begun = time.perf_counter()
        if how.whole:
            how.fn(own)
        else:
            default_collate([how.fn({k: v[i] for k, v in own.items()}, rng) for i in range(len(own["stim"]))])
        spent.append(time.perf_counter() - begun)
    torch.set_num_threads(threads)
    return min(spent)


def epoch_of(batches: Iterable[Any], seconds: float) -> Callable[[], Epoch]:
    return lambda: run_epoch(batches, seconds=seconds)


def measure(bench: Bench, case: Case, name: str, seconds: float) -> None:
    how, quick = TRANSFORMS[name], bench.args.quick
    setting, slow = best_stock(case, how, seconds / 3, quick)
    fast = fast_loader(
        case,
        None if how.whole else case.workload.open(case.folder).map(how.fn),
        persistent=True,
        cast=case.workload.casts("f32") if how.cast else None,
        batch_transform=how.fn if how.whole else None,
    )
    epochs = compete({"fast": epoch_of(fast, seconds), "stock": epoch_of(slow, seconds)}, bench.rounds)
    limit = fast.stats().limit
    del slow, fast
    _, plain = best_stock(case, how, seconds / 3, quick, fn=False)
    load = 1 / max(1e-9, run_epoch(plain, seconds=seconds).rate) * case.workload.batch_size
    cost = cost_of(case, how)
    found, rate = share(epochs["fast"], epochs["stock"]), Spread.of(rates(epochs["stock"]))
    text = (
        f"{found.median:.1f}x ({found.low:.1f} to {found.high:.1f}) of {rate.median:,.0f} samples/s: {setting}; "
        f"a batch costs {cost * 1e3:.1f} ms to transform, {load * 1e3:.1f} ms to load by stock. {limit}"
    )
    bench.add(
        f"{case.workload.name} {name}",
        text,
        speedup=found,
        setting=setting,
        fast=Spread.of(rates(epochs["fast"])),
        stock=rate,
        transform_seconds=cost,
        load_seconds=load,
    )


def main() -> None:
    parser = arguments("FastLoader with transforms against stock", rounds=5, default=("W1", "W2"))
    parser.add_argument("--transforms", nargs="+", choices=TRANSFORMS, default=list(TRANSFORMS), metavar="T")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each epoch (default %(default)s)")
    args = parser.parse_args()
    args.variants = ["f32"]  # of a workload once
    bench = Bench(args)
    with bench.cases() as cases:
        for case in cases:
            for name in args.transforms:
                measure(bench, case, name, 0.2 if args.quick else args.seconds)


if __name__ == "__main__":
    main()
