"""How many times as fast as what users write by hand are batches of many datasets?

By hand: a ConcatDataset of wrappers that add the number of their dataset, and a collate function that groups by it, in
the stock DataLoader at its best of num_workers 0, 1 and 2, with casts in place. memload: `concat` by name with
`group_collate`. The rows of a workload are dealt out to three datasets, once alike and once with other names for their
fields, so that each dataset has a pipeline of its own. Rows are shuffled over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import memload
from memload.cli import stock_loops
from memload.cli.measure import Epoch, Spread, run_epoch

MEMBERS = ("a", "b", "c")
Cast = Callable[[torch.Tensor], torch.Tensor]


class Tagged(Dataset[dict[str, Any]]):
    """Every third row of a mapped shard, with the number of its dataset."""

    def __init__(self, fields: Mapping[str, torch.Tensor], number: int) -> None:
        self._fields, self._number = fields, number

    def __len__(self) -> int:
        return len(next(iter(self._fields.values())))

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**{name: values[row] for name, values in self._fields.items()}, "dataset_idx": self._number}


def collate_by_dataset(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The collate function that users write."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        groups.setdefault(sample["dataset_idx"], []).append(sample)
    return [torch.utils.data.default_collate(group) for group in groups.values()]


class Casting:
    """A stock loader whose groups are cast behind it."""

    def __init__(self, loader: DataLoader[Any], casts: Mapping[str, torch.dtype]) -> None:
        self._loader, self._casts = loader, casts

    def __iter__(self) -> Iterator[Any]:
        for groups in self._loader:
            for group in groups:
                for name, dtype in self._casts.items():
                    if name in group:
                        group[name] = group[name].to(dtype).sub_(127).div_(255.0)
            yield groups


def renamed(name: str, number: int, alike: bool) -> str:
    """The name of a field in the dataset of this number."""
    return name if alike else f"{name}_{number}"


def by_hand(case: Case, alike: bool, workers: int) -> Casting:
    """The loop that users write."""
    shard = stock_loops.map_shard(case.workload.shard(case.folder))
    fields = {name: torch.from_numpy(array) for name, array in shard.items()}
    members = [
        Tagged({renamed(name, k, alike): values[k :: len(MEMBERS)] for name, values in fields.items()}, k)
        for k in range(len(MEMBERS))
    ]
    loader = DataLoader(
        ConcatDataset(members),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=collate_by_dataset,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(SEED),
    )
    return Casting(loader, {name: cast.dtype for name, cast in casts_of(case, alike).items()})


def fast(case: Case, alike: bool) -> memload.FastLoader[Any]:
    """memload's loop."""
    whole = case.workload.open(case.folder)
    members = {}
    for k, name in enumerate(MEMBERS):
        part = whole.select(range(k, len(whole), len(MEMBERS)))
        members[name] = memload.zip(**{renamed(field, k, alike): part.only(field) for field in part.fields})
    return memload.FastLoader(
        memload.concat(members),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=memload.group_collate,
        generator=torch.Generator().manual_seed(SEED),
        cast=casts_of(case, alike),
    )


def casts_of(case: Case, alike: bool) -> dict[str, memload.Cast]:
    """The casts of all fields of all datasets."""
    casts = case.workload.casts(case.variant)
    return {renamed(name, k, alike): cast for name, cast in casts.items() for k in range(len(MEMBERS))}


def measure(bench: Bench, case: Case, alike: bool) -> None:
    """Compares on one case."""

    def trial(loop: Casting) -> float:
        run_epoch(loop, limit=2)
        return run_epoch(loop, seconds=0.4).rate

    loops = {workers: by_hand(case, alike, workers) for workers in ((0,) if bench.args.quick else (0, 1, 2))}
    found = {workers: trial(loop) for workers, loop in loops.items()}
    workers = max(found, key=lambda count: found[count])
    theirs = loops[workers]
    del loops  # and with it the workers of the others
    loader = fast(case, alike)
    contestants: dict[str, Callable[[], Epoch]] = {
        "fast": lambda: run_epoch(loader),
        "stock": lambda: run_epoch(theirs),
    }
    epochs = compete(contestants, bench.rounds)
    speedup, rate = share(epochs["fast"], epochs["stock"]), Spread.of(rates(epochs["stock"]))
    setting = f"num_workers={workers}"
    kind = "alike" if alike else "differing"
    text = f"{speedup.median:.1f}x ({speedup.low:.1f} to {speedup.high:.1f}) of {rate.median:,.0f} samples/s: {setting}"
    fast_rate = Spread.of(rates(epochs["fast"]))
    bench.add(f"{case.name} {kind}", text, speedup=speedup, setting=setting, fast=fast_rate, stock=rate)


def main() -> None:
    parser = arguments("batches of many datasets, by hand and by memload", rounds=5, default=("W2", "W4"))
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            for alike in (True, False):
                measure(bench, case, alike)


if __name__ == "__main__":
    main()
