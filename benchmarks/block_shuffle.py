"""What does shuffling with locality gain on chunked files, and what does it cost a model on sorted labels?

An HDF5 file of images in gzip chunks of 32 rows, sorted by label: the worst case for shuffling by blocks, since all
rows of most chunks have one label. Full shuffling and `memload.BlockShuffle` with windows of several sizes load the
same rows. Told are samples per second, bytes read, chunks decoded, and the loss of a small network on rows that it was
not trained on, after each pass, from the same initial weights.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from harness import Bench, arguments

import memload
from memload.cli.measure import Spread, ratio

CHUNK, BATCH, LABELS, EPOCHS = 32, 64, 10, 5
WINDOWS = (2, 8, 32)


def images(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images (rows, 3, 32, 32) with a weak pattern of their label in strong noise, and the labels, sorted."""
    patterns = np.random.default_rng(0).normal(size=(LABELS, 3, 32, 32))
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, LABELS, rows))
    made = np.empty((rows, 3, 32, 32), np.uint8)
    for k, label in enumerate(labels):
        made[k] = (
            np.clip(128 + 6 * patterns[label] + 24 * rng.normal(size=(3, 32, 32)), 0, 255).astype(np.uint8) // 8 * 8
        )
    return made, labels.astype(np.int64)


def write_file(path: Path, rows: int) -> None:
    """Write the training rows."""
    stim, labels = images(rows, 1)
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=stim, chunks=(CHUNK, 3, 32, 32), compression="gzip")
        file.create_dataset("label", data=labels)


def samplers(ds: memload.Dataset) -> dict[str, Any]:
    """The contestants: None is full shuffling."""
    return {"full": None, **{f"window {n}": memload.BlockShuffle(ds, block=CHUNK, window=n, seed=0) for n in WINDOWS}}


def loader_of(ds: memload.Dataset, sampler: Any) -> memload.FastLoader:
    """A loader with the cast that a training takes."""
    return memload.FastLoader(
        ds,
        BATCH,
        shuffle=sampler is None,
        sampler=sampler,
        cast={"image": memload.Cast(torch.float32, norm_removed=True)},
    )


def throughput(bench: Bench, ds: memload.Dataset) -> dict[str, dict[str, Any]]:
    """Passes in turn: samples per second, and what was read in the latest pass."""
    contestants = {name: loader_of(ds, sampler) for name, sampler in samplers(ds).items()}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-1, bench.rounds):
        for name, loader in contestants.items():
            begun = time.perf_counter()
            rows = sum(len(batch["label"]) for batch in loader)
            if number >= 0:
                rates[name].append(rows / (time.perf_counter() - begun))
    found = {}
    for name, loader in contestants.items():
        stats, passes = loader.stats(), bench.rounds + 1
        found[name] = {
            "rows_per_second": Spread.of(rates[name]),
            "over_full": ratio(rates[name], rates["full"]),
            "bytes_read_per_pass": (stats.bytes_in - stats.reused_bytes) // passes,
            "decoded_chunks_per_pass": stats.decoded_chunks / passes,
            "loader_bytes": loader.nbytes,
        }
    return found


def curve(ds: memload.Dataset, sampler: Any, test: tuple[torch.Tensor, torch.Tensor], seed: int) -> list[float]:
    """The loss on the test rows after each pass of a small network, trained from the same weights."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3072, 64), torch.nn.ReLU(), torch.nn.Linear(64, LABELS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader, losses = loader_of(ds, sampler), []
    for epoch in range(EPOCHS):
        if sampler is not None:
            sampler.seed = seed  # another order for each training
            sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(model(test[0]), test[1])))
    return losses


def main() -> None:
    bench = Bench(arguments(__doc__ or "", rounds=5).parse_args())
    rows = 1280 if bench.args.quick else 12800
    with tempfile.TemporaryDirectory(prefix="memload-bench-", dir=bench.args.cache) as folder:
        path = Path(folder) / "sorted.h5"
        write_file(path, rows)
        ds = memload.open(path, key=["image", "label"])
        found = throughput(bench, ds)
        stim, labels = images(1000, 2)
        test = (torch.from_numpy(stim).float().sub(127).div(255), torch.from_numpy(labels))
        for name, sampler in samplers(ds).items():
            curves = [curve(ds, sampler, test, seed) for seed in range(1 if bench.args.quick else 3)]
            losses = [Spread.of(values) for values in zip(*curves, strict=True)]
            mixing = 1.0 if sampler is None else sampler.mixing
            told = found[name]
            bench.add(
                name,
                f"{told['over_full']} times full shuffling, {told['bytes_read_per_pass'] / 1e6:.1f} MB read, "
                f"{told['decoded_chunks_per_pass']:.0f} of {-(-rows // CHUNK)} chunks decoded; mixing {mixing:.3f}, "
                f"loss after {EPOCHS} passes {losses[-1]}",
                **told,
                chunks=-(-rows // CHUNK),
                mixing=mixing,
                losses=losses,
            )
    bench.save()


if __name__ == "__main__":
    main()
