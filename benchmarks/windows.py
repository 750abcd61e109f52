"""How near to the ceiling are overlapping windows of frames that are stored once?

Windows of 32 lags of a movie (frames of 56 x 56 uint8), batch 256, as they are and cast; and windows of 32 steps of a
spectrogram (steps of 128 float32), a hop of 4 apart. The ceiling gathers the same frames, one by one in the same order,
with the same number of threads into reused memory. The memory figure is the peak of an epoch above that before the data
set was opened, over `loader.nbytes`; the windows cut out beforehand would take `materialised` bytes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from harness import Bench, arguments, compete, rates, share

import memload
from memload.cli.bench import GatherCeiling, default_threads
from memload.cli.measure import Epoch, Spread, held_in_memory, peak_memory, run_epoch
from memload.dataset.dataset import Dataset

LAGS = 32
BATCH = 256
SHAPES = {"movie": ((56, 56), np.uint8), "spectrum": ((128,), np.float32)}


def make(folder: Path, name: str, frames: int) -> Path:
    """A recording of so many frames, as one shard."""
    shape, dtype = SHAPES[name]
    rng = np.random.default_rng(0)
    data = (
        rng.integers(0, 256, (frames, *shape), np.uint8) if dtype == np.uint8 else rng.random((frames, *shape), dtype)
    )
    memload.write(folder / name, {"x": data}, shard_bytes="8GB", progress=False)
    return folder / name


def cut(frames: Dataset, name: str) -> Dataset:
    """The windows."""
    return frames.with_lags(x=range(LAGS)) if name == "movie" else frames.windows(window=LAGS, hop=4)


def frames_of(name: str, rows: np.ndarray) -> np.ndarray:
    """The frames of these windows, in the order of a batch."""
    steps = np.arange(LAGS)
    first = rows[:, None] + (LAGS - 1 - steps) if name == "movie" else rows[:, None] * 4 + steps
    return np.ascontiguousarray(first.reshape(-1))


def measure(bench: Bench, path: Path, name: str, dtype: torch.dtype | None) -> None:
    """Compares on one recording."""
    frames = memload.open(path)
    casts = {} if dtype is None else {"x": memload.Cast(dtype, norm_removed=True)}
    with peak_memory() as peak:
        windows = cut(memload.open(path), name)
        loader = memload.FastLoader(
            windows,
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=default_threads(),
            persistent_workers=True,  # slots and threads are kept between epochs, as the ceiling keeps its buffers
            cast=casts,
            generator=torch.Generator().manual_seed(0),
        )
        run_epoch(loader, limit=4)
        memory = peak()
    rows = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0)).numpy()
    ceiling = GatherCeiling(frames, frames_of(name, rows[: len(rows) // BATCH * BATCH]), BATCH * LAGS, cast=casts)
    streaming = max((False, True), key=lambda s: ceiling.run(streaming=s).rate)
    epochs: dict[str, list[Epoch]] = compete(
        {"fast": lambda: run_epoch(loader), "ceiling": lambda: ceiling.run(streaming=streaming)}, bench.rounds
    )
    found = share(epochs["fast"], epochs["ceiling"])
    part = Spread(found.median * LAGS, found.low * LAGS, found.high * LAGS, found.count)  # its samples are frames
    kept, whole = memory / loader.nbytes, windows.nbytes
    variant = "raw" if dtype is None else str(dtype).removeprefix("torch.")
    text = f"{part.median:.2f} ({part.low:.2f} to {part.high:.2f}) of the ceiling; peak memory {kept:.2f} of nbytes"
    bench.add(
        f"{name} {variant}",
        text,
        share=part,
        fast=Spread.of(rates(epochs["fast"])),
        memory_of_nbytes=kept,
        nbytes=loader.nbytes,
        frames=frames.nbytes,
        materialised=whole,
    )


def main() -> None:
    parser = arguments("overlapping windows beside the ceiling of their frames", rounds=9, default=())
    bench = Bench(parser.parse_args())
    count = 4_000 if bench.args.quick else 60_000
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        cache = bench.args.cache or Path(folder)
        for name, frames in (("movie", count), ("spectrum", 2 * count)):
            path = cache / "windows" / str(count)
            if not (path / name).exists():
                make(path, name, frames)
            (shard,) = (path / name).glob("*.safetensors")
            with held_in_memory({shard}) as pages:
                bench.pages = pages
                for dtype in (None, torch.bfloat16) if name == "movie" else (None,):
                    measure(bench, path / name, name, dtype)
    bench.save()


if __name__ == "__main__":
    main()
