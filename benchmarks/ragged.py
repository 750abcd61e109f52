"""How near to the ceiling are batches of rows that differ in length, and how far from what users write by hand?

Token sequences of 10 to 2,000 int64 items and small graphs' edges of 2 x 2 to 2 x 60, batch 256, shuffled. The ceiling
gathers rows of one length, with the same number of threads into reused memory: for joined batches rows that have as
many bytes in all, for padded ones rows that are stored padded. By hand: sequences in a memmap, cut out by their
offsets, and a collate function that concatenates, or pads, in the stock DataLoader at its best of num_workers 0, 1, 2.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Bench, arguments, compete, rates, share
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import memload
from memload.bench import Ceiling, default_threads
from memload.measure import Epoch, Spread, held_in_memory, run_epoch

BATCH = 256
KINDS = {"tokens": (10, 2_000, 1), "edges": (2, 60, 2)}  # the least and the most items, and runs of items a row


def make(folder: Path, name: str, rows: int) -> Path:
    """Rows of lengths that are spread evenly over their logarithm, as one shard; and the same bytes for users."""
    least, most, planes = KINDS[name]
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(least), np.log(most), rows)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items = int(offsets[-1])
    values = rng.integers(0, 30_000, (planes, items) if planes > 1 else items)
    path = folder / name
    path.mkdir(parents=True)
    np.save(path / "values.npy", values)
    np.save(path / "offsets.npy", offsets)
    ragged = memload.ragged(values, offsets, axis=int(planes > 1))
    memload.write(path / "set", {"x": ragged}, shard_bytes="8GB", progress=False)
    equal = np.zeros((rows, items * planes // rows), dtype=np.int64)  # rows of one length that have as many bytes
    memload.write(path / "offsets", {"x": equal}, shard_bytes="8GB", progress=False)
    if planes == 1:
        stored_padded = np.zeros((rows, most), dtype=np.int64)
        memload.write(path / "padded", {"x": stored_padded}, shard_bytes="8GB", progress=False)
    return path


class ByHand(Dataset[torch.Tensor]):
    """What users write: the rows of a memmap."""

    def __init__(self, path: Path) -> None:
        self._values = torch.from_numpy(np.load(path / "values.npy", mmap_mode="c"))
        self._offsets = np.load(path / "offsets.npy").tolist()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        return self._values[..., self._offsets[row] : self._offsets[row + 1]]


def joined(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The collate function that users write."""
    lengths = torch.tensor([0, *(row.shape[-1] for row in rows)])
    return torch.cat(rows, dim=-1), lengths.cumsum(0)


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, padded."""
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


class Counted:
    """A loop whose batches `run_epoch` can count: the rows and bytes of each."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        for values, numbers in self._loader:
            yield numbers[:BATCH], values


def fast(path: Path, form: str) -> memload.FastLoader[Any]:
    """memload's loop."""
    return memload.FastLoader(
        memload.open(path / "set").only("x").with_ragged(form),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=default_threads(),
        persistent_workers=True,  # slots and threads are kept between epochs, as the ceiling keeps its buffers
        generator=torch.Generator().manual_seed(0),
    )


def by_hand(path: Path, form: str, workers: int) -> Counted:
    """The loop that users write."""
    loader = DataLoader(
        ByHand(path),
        BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=padded if form == "padded" else joined,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(0),
    )
    return Counted(loader)


def measure(bench: Bench, path: Path, name: str, form: str) -> None:
    """Compares on one set."""
    loader = fast(path, form)
    equal = memload.open(path / form)
    rows = torch.randperm(len(equal), generator=torch.Generator().manual_seed(0)).numpy()
    ceiling = Ceiling(equal, rows[: len(rows) // BATCH * BATCH], BATCH)
    streaming = max((False, True), key=lambda s: ceiling.run(streaming=s).rate)

    def trial(loop: Counted) -> float:
        run_epoch(loop, limit=2)
        return run_epoch(loop, seconds=0.5).rate

    loops = {workers: by_hand(path, form, workers) for workers in ((0,) if bench.args.quick else (0, 1, 2))}
    found = {workers: trial(loop) for workers, loop in loops.items()}
    workers = max(found, key=lambda count: found[count])
    theirs = loops[workers]
    del loops  # and with it the workers of the others
    contestants: dict[str, Callable[[], Epoch]] = {
        "fast": lambda: run_epoch(Counted(loader)),
        "ceiling": lambda: ceiling.run(streaming=streaming),
        "stock": lambda: run_epoch(theirs, seconds=3.0),
    }
    epochs = compete(contestants, bench.rounds)
    part, speedup = share(epochs["fast"], epochs["ceiling"]), share(epochs["fast"], epochs["stock"])
    text = f"{part.median:.2f} ({part.low:.2f} to {part.high:.2f}) of the ceiling, {speedup.median:.1f}x by hand"
    bench.add(
        f"{name} {form}",
        f"{text} (num_workers={workers})",
        share=part,
        speedup=speedup,
        setting=f"num_workers={workers}",
        fast=Spread.of(rates(epochs["fast"])),
        stock=Spread.of(rates(epochs["stock"])),
        nbytes=loader.nbytes,
    )


def main() -> None:
    parser = arguments("rows that differ in length beside rows of one length, and beside loops by hand", rounds=9)
    bench = Bench(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        cache = bench.args.cache or Path(folder)
        for name, count in (("tokens", 30_000), ("edges", 400_000)):
            count //= 20 if bench.args.quick else 1
            path = cache / "ragged" / str(count)
            if not (path / name).exists():
                make(path, name, count)
            files = {*(path / name).rglob("*.safetensors"), path / name / "values.npy"}
            with held_in_memory(files) as pages:
                bench.pages = pages
                for form in ("offsets", "padded") if name == "tokens" else ("offsets",):
                    measure(bench, path / name, name, form)
    bench.save()


if __name__ == "__main__":
    main()
