"""When do stores that pass by the cache pay, for a consumer that reads each batch?

Rings (slots x batch bytes) of 8 to 256 MB, ordinary and streaming stores in turn, and what FastLoader chose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from harness import Bench, Case, arguments, compete, share
from loops import fast_loader

from memload.cli.measure import Epoch, run_epoch
from memload.loader.fast_loader import FastLoader

RINGS_MB = (8, 16, 32, 64, 128, 256)
DEPTH = 2
SLOTS = DEPTH + 1


class Reading:
    """A loader whose batches are read, every byte of them, before they are handed on."""

    def __init__(self, loader: FastLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        for batch in self._loader:
            for tensor in batch.values():
                np.add.reduce(tensor.view(torch.uint8).reshape(-1).numpy()[: tensor.nbytes // 8 * 8].view(np.int64))
            yield batch


def measure(bench: Bench, case: Case, ring_mb: int) -> None:
    row_bytes = fast_loader(case, batch_size=1).dataset.nbytes // case.workload.rows * 4  # uint8 becomes f32
    batch_size = max(1, round(ring_mb * 1e6 / SLOTS / row_bytes))
    loaders = {
        name: fast_loader(case, batch_size=batch_size, depth=DEPTH, streaming=streaming)
        for name, streaming in (("ordinary", False), ("streaming", True), ("chosen", None))
    }

    def runner(loader: FastLoader[Any]) -> Any:
        def run() -> Epoch:
            return run_epoch(Reading(loader))

        return run

    epochs = compete({name: runner(loader) for name, loader in loaders.items()}, bench.rounds)
    found = share(epochs["streaming"], epochs["ordinary"])
    chosen = "streaming" if loaders["chosen"].stats().streaming else "ordinary"
    text = f"streaming is {found.median:.2f}x ({found.low:.2f} to {found.high:.2f}) ordinary; chosen: {chosen}"
    bench.add(f"{ring_mb} MB", text, ring_mb=ring_mb, batch_size=batch_size, ratio=found, chosen=chosen)


def main() -> None:
    parser = arguments("streaming against ordinary stores, by the size of the ring", rounds=5, default=("W2",))
    parser.set_defaults(variants=["f32"])
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            for ring_mb in RINGS_MB[:2] if bench.args.quick else RINGS_MB:
                measure(bench, case, ring_mb)


if __name__ == "__main__":
    main()
