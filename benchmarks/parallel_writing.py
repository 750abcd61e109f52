"""How much faster is a set written by 2 or 4 processes than by one, and what does sealing cost?

Each contestant converts the same .npy file into the same rows: `memload.write` in one process, and `memload.write_part`
in 1, 2 and 4 processes that are running already, followed by `memload.seal`. The ceiling of plain shards is the rate at
which one process writes the same bytes to the same disk and waits for them (fsync).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from harness import Bench, arguments

import memload
from memload.cli.measure import Spread, ratio

PROCESSES = (1, 2, 4)
PARTS = 8
CODECS = {"plain": None, "zstd": "zstd"}


def source(folder: Path, rows: int) -> Path:
    """A file of int16 volumes as scanners have them: smooth, with noise in the low bits."""
    path = folder / "betas.npy"
    smooth = np.sin(np.linspace(0, 60, 48 * 48 * 16)).reshape(48, 48, 16) * 1000
    made = np.lib.format.open_memmap(path, "w+", np.int16, (rows, 48, 48, 16))
    rng = np.random.default_rng(0)
    for k in range(rows):
        made[k] = smooth + rng.integers(-8, 8, smooth.shape)
    made.flush()
    return path


def write_one(path: str, target: str, part: int, codec: str | None) -> int:
    """Write one part of the file."""
    ds = memload.open(path, field="betas")
    rows = range(len(ds) * part // PARTS, len(ds) * (part + 1) // PARTS)
    return memload.write_part(
        target, ds, part=part, parts=PARTS, rows=rows, codec=codec, shard_bytes="64MB", progress=False
    ).rows


def in_parts(pool: ProcessPoolExecutor, path: Path, target: Path, codec: str | None) -> tuple[float, float]:
    """Return the seconds of writing and sealing, and those of sealing alone."""
    begun = time.perf_counter()
    jobs = [pool.submit(write_one, str(path), str(target), part, codec) for part in range(PARTS)]
    assert sum(job.result() for job in jobs) > 0
    written = time.perf_counter()
    memload.seal(target)
    return time.perf_counter() - begun, time.perf_counter() - written


def alone(path: Path, target: Path, codec: str | None) -> float:
    """Return the seconds of `memload.write`."""
    begun = time.perf_counter()
    ds = memload.open(path, field="betas")
    memload.write(target, ds, codec=codec, shard_bytes="64MB", resume=False, progress=False)
    return time.perf_counter() - begun


def ceiling(path: Path, target: Path) -> float:
    """Return the seconds of writing the bytes of the file once, and waiting for the disk."""
    content = np.load(path, mmap_mode="r").reshape(-1).view(np.uint8)
    begun = time.perf_counter()
    with target.open("wb", buffering=0) as file:
        for at in range(0, len(content), 1 << 24):
            file.write(content[at : at + (1 << 24)].data)
        os.fsync(file.fileno())
    return time.perf_counter() - begun


def measure(bench: Bench, folder: Path, path: Path) -> None:
    """Run all contestants in turn, round by round."""
    pools = {n: ProcessPoolExecutor(n, mp_context=get_context("forkserver")) for n in PROCESSES}
    for pool in pools.values():
        list(pool.map(abs, range(8)))
    nbytes = path.stat().st_size
    for name, codec in CODECS.items():
        seconds: dict[str, list[float]] = {key: [] for key in ["write", "ceiling", *map(str, PROCESSES)]}
        sealing: list[float] = []
        for number in range(-1, bench.rounds):  # the first round warms up
            found: dict[str, float] = {}
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                found["ceiling"] = ceiling(path, Path(scratch) / "bytes")
            for n, pool in pools.items():
                found[str(n)], sealed = in_parts(pool, path, folder / "set", codec)
                sealing += [sealed] if number >= 0 else []
                shutil.rmtree(folder / "set")
            found["write"] = alone(path, folder / "set", codec)
            shutil.rmtree(folder / "set")
            for key, value in found.items() if number >= 0 else ():
                seconds[key].append(value)
        report(bench, name, nbytes, seconds, sealing)
    for pool in pools.values():
        pool.shutdown()


def report(bench: Bench, name: str, nbytes: int, seconds: dict[str, list[float]], sealing: list[float]) -> None:
    """Keep the quotients of the same rounds."""
    rates = {key: [nbytes / value for value in values] for key, values in seconds.items()}
    over_one: dict[str, Spread] = {key: ratio(rates[key], rates["1"]) for key in ("2", "4", "write")}
    figures: dict[str, Any] = {
        "processes_over_one": over_one,
        "bytes_per_second": {key: Spread.of(values) for key, values in rates.items()},
        "seal_seconds": Spread.of(sealing),
    }
    if name == "plain":
        figures["of_ceiling"] = {key: ratio(rates[key], rates["ceiling"]) for key in ("1", "2", "4", "write")}
    texts = [f"{key} {spread}" for key, spread in over_one.items()]
    bench.add(
        name, f"over one process: {', '.join(texts)}; sealing {figures['seal_seconds'].median * 1e3:.1f} ms", **figures
    )


def main() -> None:
    args = arguments(__doc__ or "", rounds=5).parse_args()
    bench = Bench(args)
    with tempfile.TemporaryDirectory(prefix="memload-bench-", dir=args.cache) as folder:
        path = source(Path(folder), 200 if args.quick else 3000)
        measure(bench, Path(folder), path)
    bench.save()


if __name__ == "__main__":
    main()
