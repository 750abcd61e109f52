"""How far off is memload.plan from the memory that fresh processes take?

Each loader and tier runs in a process of its own, over rows of 512 KB of uint8: the peak of its private memory, what is
shared counted once and the page cache left out, beside what was predicted before it began. The stock loader, too, whose
batches on their way from a worker to the loop are no process's: what /dev/shm gained is taken for them, so that nobody
else should use it meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Bench, arguments
from torch.utils.data import DataLoader, Dataset

import memload
from memload.cli.measure import Spread
from memload.cli.prediction import Prediction, measured

ROW_BYTES = 1 << 19
BATCHES = 13  # of a pass: enough to fill slots and cache
CAST = {"data": memload.Cast(torch.float32, norm_removed=True)}
HALVES = {"data": memload.Cast(torch.bfloat16, norm_removed=True)}
LOADERS: dict[str, dict[str, Any]] = {
    "as stored": {"batch_size": 64, "shuffle": True},
    "cast": {"batch_size": 16, "shuffle": True, "cast": CAST},
    "deep": {"batch_size": 8, "depth": 8, "threads": 1, "cast": CAST},
    "widened": {"batch_size": 16, "threads": 2, "depth": 2, "batch_transform": lambda batch: batch["data"].float() - 1},
    "transformed": {
        "batch_size": 16,
        "options": memload.EngineOptions(threads=2, depth=2, transform_threads=2, direct=False),
        "cast": CAST,
        "batch_transform": lambda batch: {"data": batch["data"] * 2},
    },
}
FLOATS = lambda sample: {"data": sample["data"].float()}  # noqa: E731
NORMALISED = lambda sample: {"data": (sample["data"].float() - 127) / 255}  # noqa: E731
SQUARES = lambda sample: {"data": sample["data"].float(), "squares": sample["data"].float() ** 2}  # noqa: E731
ARRAYS = lambda sample: {"data": sample["data"].numpy().astype(np.float32) / 255}  # noqa: E731
MAPPED: dict[str, tuple[int, int, Callable[[Any], Any]]] = {  # bytes of a row, rows of a batch, function of a sample
    "mapped, 4 KB": (4096, 1024, FLOATS),
    "mapped, 100 KB": (102_400, 32, FLOATS),
    "mapped, 500 KB": (ROW_BYTES, 8, FLOATS),
    "mapped, 500 KB, longer": (ROW_BYTES, 8, NORMALISED),
    "mapped, 500 KB, numpy": (ROW_BYTES, 8, ARRAYS),
}
MANY = "mapped, many passes"  # with more threads that gather than threads that transform
FEW_PASSES, PASSES = 4, 8  # until all arenas of the C library that can hold samples do
SLOTS = {"batch_size": 16, "shuffle": True, "cast": CAST}
TIERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tier direct": ({"tier": "direct"}, SLOTS),
    "tier hybrid": ({"tier": "hybrid", "cache_bytes": "100MB"}, SLOTS),
    "tier ram": ({"tier": "ram"}, SLOTS),
    "tier ram, cast": ({"tier": "ram", "ram_dtype": HALVES}, {"batch_size": 32, "shuffle": True}),
}
STOCK = {"stock, 0 workers": 0, "stock, 2 workers": 2}


class Floats(Dataset[torch.Tensor]):
    """Rows of a mapped file as float32."""

    def __init__(self, path: str) -> None:
        self._rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(self._rows[row].copy()).float()


def native(path: str, name: str) -> Prediction:
    """One pass of FastLoader."""
    tier, settings = TIERS.get(name) or ({}, LOADERS[name])
    plan = memload.plan(memload.open(path), **tier, **settings)
    quiet = {"progress": False} if tier else {}
    return measured(plan, lambda: memload.FastLoader(memload.open(path, **tier, **quiet), **settings), BATCHES)


def mapped(path: str, name: str) -> Prediction:
    """Passes of FastLoader over ``map`` of a function of one sample."""
    row_bytes, rows, fn, threads = (ROW_BYTES, 8, SQUARES, 6) if name == MANY else (*MAPPED[name], 2)
    data = memload.from_arrays(data=np.load(path, mmap_mode="r").reshape(-1, row_bytes)).map(fn)
    options = memload.EngineOptions(threads=threads, depth=2, transform_threads=2, direct=False)
    settings: dict[str, Any] = {"batch_size": rows, "shuffle": True, "options": options}

    def passes() -> Iterator[Any]:
        loader = memload.FastLoader(data, **settings)
        for _ in range(PASSES if name == MANY else FEW_PASSES):
            yield from islice(loader, BATCHES)

    return measured(memload.plan(data, **settings), passes)


def stock(path: str, name: str) -> Prediction:
    """One pass of torch's loader."""
    workers = STOCK[name]
    plan = memload.plan(memload.open(path), batch_size=16, cast=CAST, num_workers=workers)
    with shared_memory() as gained:
        loader = DataLoader(Floats(path), 16, shuffle=True, num_workers=workers)
        found = measured(plan, lambda: loader, BATCHES)
        return Prediction(plan.stock.predicted, found.measured + gained(), found.start, found.batches)


class shared_memory:  # noqa: N801 - used as a function
    """Watches what /dev/shm gains; calling the result gives the most."""

    def __enter__(self) -> Callable[[], int]:
        self._stop, self._start, self._most = threading.Event(), _shared(), 0
        threading.Thread(target=self._watch, daemon=True).start()
        return lambda: self._most

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, _shared() - self._start)


def _shared() -> int:
    found = os.statvfs("/dev/shm")
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def child(path: str, *names: str) -> None:
    """What runs in a fresh process: passes by name, one after the other."""
    of_kind = {**dict.fromkeys(STOCK, stock), **dict.fromkeys([*MAPPED, MANY], mapped)}
    found = {name: asdict(of_kind.get(name, native)(path, name)) for name in names}
    print(json.dumps(found))


def in_fresh_process(path: Path, *names: str) -> dict[str, Prediction]:
    """Run passes in a process of their own, and return what it found."""
    command = [sys.executable, __file__, "--child", str(path), *names]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {name: Prediction(**figures) for name, figures in json.loads(done.stdout).items()}


def make(folder: Path, rows: int) -> Path:
    """The file of rows, written if it is not there."""
    path = folder / f"prediction-{rows}.npy"
    if not path.exists():
        data = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, ROW_BYTES))
        data[:] = np.arange(ROW_BYTES) % 251
    return path


def measure(bench: Bench, path: Path, name: str) -> None:
    passes = [in_fresh_process(path, name)[name] for _ in range(bench.rounds)]
    error, own = Spread.of(one.error for one in passes), Spread.of(one.own_error for one in passes)
    text = (
        f"off by {error.median:+.1%} ({error.low:+.1%} to {error.high:+.1%}); of what the pass took {own.median:+.1%}"
    )
    bench.add(name, text, error=error, own_error=own, predicted=passes[-1].predicted, measured=passes[-1].measured)


def main() -> None:
    parser = arguments("how far off predictions of memory are", rounds=3)
    parser.add_argument("--child", nargs="+", metavar="PATH, NAME", help="run these passes here, and print JSON")
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    bench = Bench(args)
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        path = make(args.cache or Path(folder), 64 if args.quick else 800)
        for name in ["cast"] if args.quick else [*LOADERS, *MAPPED, MANY, *TIERS, *STOCK]:
            measure(bench, path, name)
    bench.save()


if __name__ == "__main__":
    main()
