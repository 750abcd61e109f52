"""What do compressed shards save, and how fast are they loaded?

Four kinds of data, each plain and with every codec and shuffle: photographs (scikit-image, cut to 425 x 425), low-pass
movies, int16 betas (percent times 300, smooth over voxels) and spectrograms. Rows come in random order from the page
cache. Beside the loader of each codec stands the raw rate of its decoder: the same blocks, decoded into one buffer for
each of as many threads, and nothing else. A codec pays where a disk gives fewer bytes per second than its rows bring.

`--page docs/compression.md` puts the table of a run, or of one that is kept (`--kept FILE`), into the page.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Bench, arguments, compete, rates, share
from numpy.typing import NDArray

import memload
from memload import _core
from memload.cli.bench import default_threads
from memload.cli.demo import crops_of, photographs
from memload.cli.measure import Epoch, Spread, held_in_memory, ratio, run_epoch
from memload.dataset.dataset import Dataset
from memload.formats.codecs.codec import Codec

CODECS = [Codec(name, shuffle=shuffle) for name in ("lz4", "zstd", "blosc2") for shuffle in ("none", "byte", "bit")]
BEGIN, END = "<!-- figures: benchmarks/codecs.py -->", "<!-- end of figures -->"


def make_photographs(rows: int) -> NDArray[Any]:
    return np.stack([crop["stim"] for crop in crops_of(photographs(), rows)])


def make_movies(rows: int) -> NDArray[Any]:
    """Noise without its upper seven eighths of frequencies in space and time: 32 frames of 56 x 56."""
    rng = np.random.default_rng(1)
    movies = np.empty((rows, 32, 56, 56), np.uint8)
    keep = [np.abs(np.fft.fftfreq(n)) < 1 / 16 for n in movies.shape[1:]]
    for row in movies:
        spectrum = np.fft.fftn(rng.standard_normal(row.shape))
        smooth = np.fft.ifftn(spectrum * keep[0][:, None, None] * keep[1][:, None] * keep[2]).real
        row[:] = np.clip(127 + 50 * smooth / smooth.std(), 0, 255)
    return movies


def make_betas(rows: int) -> NDArray[Any]:
    """Responses of 20,000 voxels in percent, correlated over neighbours, times 300."""
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((rows, 20_000 + 8)).astype(np.float32)
    smooth = np.lib.stride_tricks.sliding_window_view(noise, 9, axis=1).mean(axis=2) * 3
    return np.round(smooth * 300).astype(np.int16)


def make_spectrograms(rows: int) -> NDArray[Any]:
    """Log power of gliding harmonics in noise: 128 bands of 128 steps, float32."""
    rng = np.random.default_rng(3)
    bands, steps = np.arange(128)[:, None], np.arange(128)
    made = np.empty((rows, 128, 128), np.float32)
    for row in made:
        base = rng.uniform(8, 24) * (1 + 0.3 * np.sin(steps * rng.uniform(0.02, 0.1)))
        tones = sum(np.exp(-(((bands - base * k) / 1.5) ** 2)) / k for k in range(1, 6))
        row[:] = np.log(1e-3 + tones + 0.05 * rng.standard_exponential((128, 128)))
    return made


KINDS: dict[str, tuple[Callable[[int], NDArray[Any]], int, int]] = {  # rows of a full run, and of a batch
    "photographs": (make_photographs, 600, 32),
    "low-pass movies": (make_movies, 2_000, 64),
    "int16 betas": (make_betas, 5_000, 256),
    "spectrograms": (make_spectrograms, 3_000, 64),
}


def loop_of(dataset: Dataset, batch: int) -> Callable[[], Epoch]:
    loader = memload.FastLoader(
        dataset,
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=default_threads(),
        persistent_workers=True,
        generator=torch.Generator().manual_seed(0),
    )
    return lambda: run_epoch(loader)


def decoding_of(dataset: Dataset) -> Callable[[], Epoch]:
    """A pass of the decoder alone over all blocks, as many at once as the loader has threads."""
    (grid,) = dataset.fields["x"].column.parts
    starts = np.arange(len(grid.table)) * grid.tile_shape[0]
    rows = np.minimum(grid.tile_shape[0], grid.rows - starts)
    table = np.column_stack([grid.table[:, :3], rows * grid.row_bytes])

    def run() -> Epoch:
        done = _core.bench_decode(grid.storages, table, default_threads(), 0.0, grid.chain)
        return Epoch(done["seconds"], 0.0, done["cpu_seconds"], 1, grid.rows, done["bytes"])

    return run


def measure(bench: Bench, kind: str, data: NDArray[Any], batch: int, folder: Path) -> None:
    """Compares all codecs on one kind of data."""
    paths = {"plain": folder / "plain"}
    memload.write(paths["plain"], {"x": data}, shard_bytes="64GB", progress=False)
    encoding = {}
    codecs = [codec for codec in CODECS if data.dtype.itemsize > 1 or codec.shuffle != "byte"]
    for codec in codecs[:: 4 if bench.args.quick else 1]:
        name = f"{codec.name} {codec.shuffle}"
        begin = time.perf_counter()
        memload.write(folder / name, {"x": data}, codec={"x": codec}, shard_bytes="64GB", progress=False)
        encoding[name] = data.nbytes / (time.perf_counter() - begin)
        paths[name] = folder / name
    shards = {name: next(path.glob("*.safetensors")) for name, path in paths.items()}
    with held_in_memory(shards.values()) as pages:
        bench.pages = pages
        opened = {name: memload.open(path) for name, path in paths.items()}
        loops = {name: loop_of(dataset, batch) for name, dataset in opened.items()}
        raw = {f"{name}, decoder": decoding_of(opened[name]) for name in encoding}
        epochs = compete({**loops, **raw}, bench.rounds)
        for name in encoding:
            of_plain = share(epochs[name], epochs["plain"])
            of_decoder = ratio(
                [e.gb_per_second for e in epochs[name]], [e.gb_per_second for e in epochs[f"{name}, decoder"]]
            )
            loading = Spread.of(e.gb_per_second for e in epochs[name])
            smaller = data.nbytes / shards[name].stat().st_size
            text = f"{name:12} {smaller:.2f} times smaller, {loading.median:.2f} GB/s, {of_plain.median:.2f} of plain, "
            bench.add(
                kind,
                text + f"{of_decoder.median:.2f} of its decoder",
                codec=name,
                ratio=smaller,
                gb_per_second=loading,
                rows_per_second=Spread.of(rates(epochs[name])),
                of_plain=of_plain,
                of_decoder=of_decoder,
                encoding=encoding[name],
                threads=default_threads(),
            )


def table(kept: Mapping[str, Any]) -> str:
    """The figures of a run as the page shows them."""
    date, cpu, threads = kept["machine"]["date"][:10], kept["machine"]["cpu"], kept["figures"][0]["threads"]
    lines = [
        f"Measured {date} on {cpu}, {threads} threads; medians of {kept['rounds']} rounds, rows in random order, files "
        "in the page cache. GB are of rows as the loop gets them.",
        "",
        "| data | codec, shuffle | times smaller | loading, GB/s | of plain shards | of the decoder alone |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for figure in kept["figures"]:
        shares = [f"{figure[name]['median']:.2f}" for name in ("gb_per_second", "of_plain", "of_decoder")]
        lines.append(f"| {figure['case']} | {figure['codec']} | {figure['ratio']:.2f} | {' | '.join(shares)} |")
    return "\n".join(lines)


def put_into(page: Path, kept: Mapping[str, Any]) -> None:
    """Replaces the table of the page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(kept)}\n{END}{after}")


def run(args: argparse.Namespace) -> None:
    bench = Bench(args)
    for kind in args.kinds:
        make, rows, batch = KINDS[kind]
        if args.quick:
            rows, batch = min(rows // 20, 60), max(4, batch // 16)
        folder = Path(tempfile.mkdtemp(prefix="memload-bench-", dir=args.cache))
        try:
            measure(bench, kind, make(rows), batch, folder)
        finally:
            shutil.rmtree(folder)
    bench.save()


def main() -> None:
    parser = arguments("ratio and loading rate of compressed shards", rounds=5, default=())
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--page", type=Path, help="the page whose table is replaced, by the figures of --out or --kept")
    parser.add_argument("--kept", type=Path, help="figures of an earlier run, instead of a new one")
    args = parser.parse_args()
    if args.kept is None:
        run(args)
    if args.page is not None:
        put_into(args.page, json.loads((args.kept or args.out).read_text()))


if __name__ == "__main__":
    main()
