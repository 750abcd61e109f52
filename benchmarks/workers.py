"""How much memory do worker processes take for what one loader does with threads?

The data set is an array of 425 x 425 x 3 uint8 images in RAM, wanted as normalised float32 in batches of 32. The stock
loader has a dataset that reads and casts one image, as most are written, and 0 to 8 workers. FastLoader casts while it
gathers. Each runs an epoch in a process of its own; memory is the peak of what that process, its workers and their
shared memory hold beyond the array, without mapped files. What imports take in the process itself came before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from harness import Bench, arguments
from torch.utils.data import DataLoader, Dataset

import memload
from memload.cli.measure import Spread, in_turn, peak_memory, run_epoch

SHAPE = (425, 425, 3)
BATCH = 32
CONTESTANTS = {"FastLoader": None, **{f"{n} workers": n for n in (0, 2, 4, 8)}}


class Images(Dataset[torch.Tensor]):
    """One normalised image per item."""

    def __init__(self, images: torch.Tensor) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, row: int) -> torch.Tensor:
        return (self._images[row].float() - 127) / 255.0


def loader_of(images: torch.Tensor, workers: int | None) -> Iterable[Any]:
    """FastLoader, or the stock loader with so many workers."""
    if workers is not None:
        return DataLoader(Images(images), BATCH, shuffle=True, num_workers=workers)
    rule = memload.Cast(torch.float32, norm_removed=True)
    return memload.FastLoader(memload.from_arrays(image=images), BATCH, shuffle=True, cast={"image": rule})


def peak_of(contestant: str, rows: int) -> int:
    """The peak of a contestant, measured in a process of its own."""
    call = [sys.executable, __file__, "--one", contestant, str(rows)]
    return int(json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout))


def peak_here(contestant: str, rows: int) -> int:
    """The peak of one epoch in this process."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (rows, *SHAPE), np.uint8))
    torch.set_num_threads(1)
    with peak_memory() as peak:
        run_epoch(loader_of(images, CONTESTANTS[contestant]))
        return peak()


def main() -> None:
    bench = Bench(arguments(__doc__.partition("\n")[0], rounds=3).parse_args())
    rows = 4 * BATCH if bench.args.quick else 1024
    peaks = in_turn({name: lambda name=name: peak_of(name, rows) for name in CONTESTANTS}, bench.rounds)
    for name, found in peaks.items():
        peak = Spread.of(found)
        bench.add(name, f"{peak.median / 1e6:,.0f} MB ({peak.low / 1e6:,.0f} to {peak.high / 1e6:,.0f})", peak=peak)
    bench.save()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(peak_here(sys.argv[2], int(sys.argv[3])))
    else:
        main()
