"""What does it cost to take up an epoch: does it depend on how far the epoch is, and how does it compare with randperm?

A shuffled loader over many rows of one byte is stopped after some share of the epoch. The time counts from
`load_state_dict` to the first batch of another loader. Beside it stands one `torch.randperm` of as many rows, which a
fresh epoch pays as well, and the time to the first batch of that. The size of the state is that of its JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import Any

import torch
from harness import Bench, arguments

import memload
from memload.cli.measure import Spread, ratio

BATCH = 1000
SHARES = (0.0, 0.5, 0.99)


def loader_over(rows: int) -> memload.FastLoader[Any]:
    dataset = memload.from_arrays(x=torch.zeros(rows, dtype=torch.uint8))
    return memload.FastLoader(dataset, BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))


def first_batch_seconds(loader: memload.FastLoader[Any], state: dict[str, Any]) -> float:
    gc.collect()
    begin = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - begin


def randperm_seconds(rows: int) -> float:
    begin = time.perf_counter()
    torch.randperm(rows)
    return time.perf_counter() - begin


def states_at(rows: int) -> dict[float, dict[str, Any]]:
    """States as they are after each share of one epoch."""
    loader, found = loader_over(rows), {}
    iterator = iter(loader)
    for batch in range(rows // BATCH):
        next(iterator)
        for share in SHARES:
            if batch == int(share * (rows // BATCH - 1)):
                found[share] = loader.state_dict()
    return found


def measure(bench: Bench, rows: int) -> None:
    states = states_at(rows)
    loader = loader_over(rows)
    taken: dict[float, list[float]] = {share: [] for share in SHARES}
    permutations, fresh = [], []
    for _ in range(bench.rounds):
        permutations.append(randperm_seconds(rows))
        fresh.append(first_batch_seconds(loader, {}))
        for share in SHARES:
            taken[share].append(first_batch_seconds(loader, states[share]))
    permutation = Spread.of(permutations)
    for share in SHARES:
        against = ratio(taken[share], permutations)
        kept = len(json.dumps(states[share]))
        text = (
            f"after {share:.0%}: {Spread.of(taken[share]).median:.3f} s, {against.median:.2f} of a randperm "
            f"({permutation.median:.3f} s), a fresh epoch {Spread.of(fresh).median:.3f} s; state {kept:,} bytes"
        )
        figures = {"seconds": Spread.of(taken[share]), "of_randperm": against, "fresh": Spread.of(fresh)}
        bench.add(f"{rows:,} rows", text, share=share, state_bytes=kept, randperm=permutation, **figures)


def main() -> None:
    parser: argparse.ArgumentParser = arguments("what it costs to take up an epoch", rounds=5, default=())
    bench = Bench(parser.parse_args())
    for rows in (100_000,) if bench.args.quick else (1_000_000, 100_000_000):
        measure(bench, rows)
    bench.save()


if __name__ == "__main__":
    main()
