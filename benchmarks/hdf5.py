"""What does reading HDF5 in place give: of the ceiling of plain shards, and beside h5py in a stock DataLoader?

W1's rows in HDF5 files: contiguous, in a chunk for each row, and in such chunks behind gzip-4; noise does not shrink,
so gzip is measured on crops of photographs as well. h5py is tried with 0, 1 and 2 workers, row by row and by sorted
batches; the best of the six competes. Where chunks are inflated, the ceiling is zlib-ng alone on the same
chunks, into as much memory as the loader's slots; beside it stands zlib-ng into one buffer for each thread, which stays
in the processor's cache as no batch can. FastLoader with one thread shows what a second is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED, ceiling_of
from torch.utils.data import DataLoader, Dataset

import memload
from memload import _core
from memload.cli.demo import crops_of, photographs
from memload.cli.measure import Epoch, Spread, held_in_memory, run_epoch
from memload.engine.request import EngineOptions
from memload.memory.budget import default_threads

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "a chunk a row": {"chunks": True},
    "gzip-4": {"chunks": True, "compression": "gzip", "compression_opts": 4},
    "gzip-4, photographs": {"chunks": True, "compression": "gzip", "compression_opts": 4},
}
KEY = "stim"


def make_file(case: Case, layout: str) -> Path:
    """The case's rows, or as many crops of photographs, as one dataset of an HDF5 file."""
    dataset = case.workload.open(case.folder)
    path = case.folder.parent / f"{case.workload.name}-{layout.replace(', ', '-').replace(' ', '-')}-{len(dataset)}.h5"
    if path.exists():
        return path
    options = dict(LAYOUTS[layout])
    shape = dataset.fields[KEY].shape
    if options.pop("chunks", False):
        options["chunks"] = (1, *shape)
    if layout.endswith("photographs"):
        rows: Iterable[Any] = (row["stim"] for row in crops_of(photographs(), len(dataset)))
    else:
        rows = (dataset[k][KEY].numpy() for k in range(len(dataset)))
    unfinished = path.with_suffix(".part")
    with h5py.File(unfinished, "w") as file:
        stored = file.create_dataset(KEY, (len(dataset), *shape), np.uint8, **options)
        for number, row in enumerate(rows):
            stored[number] = row
    unfinished.rename(path)
    return path


class Rows(Dataset[dict[str, torch.Tensor]]):
    """What people write over h5py: the file is opened by whoever reads it first, in each process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stored: Any = None
        with h5py.File(path) as file:
            self._length = len(file[KEY])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {KEY: torch.from_numpy(self._open()[row])}

    def _open(self) -> Any:
        if self._stored is None:
            self._stored = h5py.File(self._path)[KEY]
        return self._stored


class SortedRows(Rows):
    """A batch by one call, which h5py takes in rising order."""

    def __getitems__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        order = np.argsort(rows)
        batch = np.empty((len(rows), *self._open().shape[1:]), np.uint8)
        batch[order] = self._open()[np.asarray(rows)[order]]
        return {KEY: torch.from_numpy(batch)}


def stock_loop(case: Case, path: Path, *, quick: bool) -> tuple[str, Callable[[], Epoch]]:
    """The fastest of the stock loaders over h5py, and which it is."""
    best: tuple[float, str, Callable[[], Epoch]] | None = None
    for workers in (
        (1,) if quick else (2, 1, 0)
    ):  # 0 last: no process is forked while h5py has the file open in this one
        for rows in (Rows, SortedRows):
            loader = DataLoader(
                rows(path),
                case.workload.batch_size,
                shuffle=True,
                drop_last=True,
                num_workers=workers,
                persistent_workers=workers > 0,
                generator=torch.Generator().manual_seed(SEED),
                collate_fn=_as_it_is if rows is SortedRows else None,
            )
            run_epoch(loader, limit=2)
            rate = run_epoch(loader, seconds=1.0).rate
            if best is None or rate > best[0]:
                best = rate, f"{rows.__name__}, num_workers={workers}", _epochs(loader)
    assert best is not None
    return best[1:]


def _as_it_is(batch: Any) -> Any:
    return batch


def _epochs(loader: Iterable[Any]) -> Callable[[], Epoch]:
    return lambda: run_epoch(loader)


def fast_loader(case: Case, path: Path, threads: int) -> memload.FastLoader[Any]:
    """FastLoader over the file, which keeps its slots and threads between epochs."""
    return memload.FastLoader(
        memload.open(path),
        case.workload.batch_size,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
        options=EngineOptions(threads=threads),
        num_workers=threads,
        persistent_workers=True,
    )


def inflate(case: Case, path: Path, threads: int, ring_bytes: int) -> Callable[[], Epoch]:
    """zlib-ng alone over all chunks of the file, into so much memory."""
    field = memload.open(path).fields[KEY]
    (grid,) = field.column.parts
    storage, offset, stored, _ = grid.table.T
    table = np.stack([storage, offset, stored, np.full_like(stored, grid.tile_bytes)], axis=1)

    def run() -> Epoch:
        done = _core.bench_decode(grid.storages, table, threads, 0.0, ring_bytes=ring_bytes)  # each chunk once
        batches = field.rows // case.workload.batch_size
        return Epoch(done["seconds"], 0.0, done["cpu_seconds"], batches, field.rows, done["bytes"])

    return run


def measure(bench: Bench, case: Case, layout: str) -> None:
    path = make_file(case, layout)
    threads = default_threads()
    with held_in_memory({path}):
        setting, stock = stock_loop(case, path, quick=bench.args.quick)
        fast = fast_loader(case, path, threads)
        contestants = {"stock": stock, "fast": _epochs(fast), "shards": ceiling_of(case).best}
        if "gzip" in layout:
            contestants["one"] = _epochs(fast_loader(case, path, 1))
            contestants["inflate"] = inflate(case, path, threads, fast.nbytes)
            contestants["inflate_in_cache"] = inflate(case, path, threads, 0)
        epochs = compete(contestants, bench.rounds)
    found = {name: share(epochs["fast"], epochs[name]) for name in contestants if name != "fast"}
    rate = Spread.of(rates(epochs["fast"]))
    words = [f"{rate.median:,.0f} samples/s, {found['stock'].median:.2f}x h5py ({setting})"]
    words.append(f"{found['shards'].median:.2f} of the ceiling of plain shards")
    if "inflate" in found:
        words.append(
            f"{found['inflate'].median:.2f} of zlib-ng alone ({found['inflate_in_cache'].median:.2f} in cache)"
        )
        words.append(f"{found['one'].median:.2f}x one thread")
    figures = {f"versus_{name}": spread for name, spread in found.items()}
    bench.add(f"{case.name}, {layout}", "; ".join(words), fast=rate, setting=setting, threads=threads, **figures)


def main() -> None:
    parser = arguments("HDF5 in place, beside h5py and beside the ceiling", rounds=5, default=("W1",))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for case in (case for case in cases if case.variant == "raw"):
            for layout in bench.args.layouts:
                measure(bench, case, layout)


if __name__ == "__main__":
    main()
