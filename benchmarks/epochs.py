"""Which share of the ceiling do short epochs reach, and what do kept slots and threads add to it?

Each round runs several epochs one after the other, as a training run does, with each contestant in turn:

- default: the loader as it is made without further arguments;
- fresh: the same, with all spare memory and threads freed before and after each epoch, as it was with the defaults
  before they were kept;
- persistent: with `persistent_workers=True`;
- train, valid: the default, with an epoch of a second loader of a fifth of the rows after each one, in both times;
- ceiling: the ceiling, whose buffers stay as well, with the kind of stores that is faster over the round.

An epoch counts from `iter()` until its iterator and its last batch are gone. "short" has as many rows as the ceiling
gathers in 0.3 seconds, some more than once where the workload has fewer; "whole" has all rows of the workload.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED

from memload import _core
from memload.cli.bench import GatherCeiling, shuffled
from memload.cli.measure import Epoch, Spread, run_epoch
from memload.dataset.dataset import Dataset
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import default_threads

SHORT = 0.3  # seconds of a short epoch at the ceiling
EPOCHS = 4  # of a round


@dataclass
class Epochs:
    """Epochs of one length of a case."""

    case: Case
    dataset: Dataset

    def loader(self, rows: int, *, persistent: bool = False) -> FastLoader[object]:
        """A loader of the first so many rows."""
        kept = {"num_workers": default_threads(), "persistent_workers": True} if persistent else {}
        return FastLoader(
            self.dataset.select(range(rows)),
            self.case.workload.batch_size,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(SEED),
            cast=self.case.workload.casts(self.case.variant),
            **kept,
        )

    def ceiling(self) -> GatherCeiling:
        """The ceiling of the same rows."""
        rows, casts = shuffled(len(self.dataset), SEED), self.case.workload.casts(self.case.variant)
        return GatherCeiling(self.dataset, rows, self.case.workload.batch_size, cast=casts)


def joined(epochs: list[Epoch]) -> Epoch:
    """Epochs as one."""
    return Epoch(
        sum(one.seconds for one in epochs),
        epochs[0].first_batch,
        sum(one.cpu_seconds for one in epochs),
        sum(one.batches for one in epochs),
        sum(one.samples for one in epochs),
        sum(one.nbytes for one in epochs),
    )


def repeated(epoch: Callable[[], Epoch], between: Callable[[], None] = lambda: None) -> Callable[[], Epoch]:
    """A round of epochs, with something before and after each that does not count."""

    def run() -> Epoch:
        found = []
        for _ in range(EPOCHS):
            between()
            found.append(epoch())
        between()
        return joined(found)

    return run


def best_round(ceiling: GatherCeiling) -> Epoch:
    """A round of the ceiling with streaming stores or one with ordinary stores, whichever is faster."""
    of_stores = [repeated(functools.partial(ceiling.run, streaming=streaming))() for streaming in (False, True)]
    return max(of_stores, key=lambda epoch: epoch.rate)


def measure(bench: Bench, case: Case, length: str) -> None:
    whole = case.workload.open(case.folder)
    batch = case.workload.batch_size
    if length == "short":
        rate = Epochs(case, whole).ceiling().best().rate
        whole = whole.select(np.arange(max(2, round(rate * SHORT / batch)) * batch) % len(whole))
    epochs, rows = Epochs(case, whole), len(whole)
    default, fresh, train = (epochs.loader(rows) for _ in range(3))
    persistent, valid = epochs.loader(rows, persistent=True), epochs.loader(max(batch, rows // 5))
    ceiling = epochs.ceiling()
    found = compete(
        {
            "default": repeated(lambda: run_epoch(default)),
            "fresh": repeated(lambda: run_epoch(fresh), _core.free_spares),
            "persistent": repeated(lambda: run_epoch(persistent)),
            "train, valid": repeated(lambda: joined([run_epoch(train), run_epoch(valid)])),
            "ceiling": lambda: best_round(ceiling),
        },
        bench.rounds,
    )
    kept = {name: share(found[name], found["ceiling"]) for name in found if name != "ceiling"}
    seconds = Spread.of(one.seconds / EPOCHS for one in found["ceiling"])
    told = ", ".join(f"{name} {one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for name, one in kept.items())
    speed = {name: Spread.of(rates(each)) for name, each in found.items()}
    text = f"{length:5} {told} of the ceiling, {seconds.median:.2f} s an epoch"
    bench.add(case.name, text, length=length, rows=rows, epoch=seconds, share=kept, rate=speed)


def main() -> None:
    parser = arguments("Short epochs against the ceiling", rounds=7, default=("W1",))
    parser.add_argument("--lengths", nargs="+", choices=("short", "whole"), default=["short", "whole"])
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            for length in bench.args.lengths:
                measure(bench, case, length)


if __name__ == "__main__":
    main()
