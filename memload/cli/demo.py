"""`memload demo`: compares the stock DataLoader with FastLoader on photographs, with identical batches.

photographs -> crops -> shards in a temporary folder -> | stock DataLoader + compiled cast |
                                                        | FastLoader(cast=...)             | -> one table
                                                        | the ceiling                      |
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import memload
from memload.casts.rule import Cast
from memload.cli import stock_loops as stock
from memload.cli.bench import GatherCeiling, shuffled
from memload.cli.measure import (
    Epoch,
    Spread,
    held_in_memory,
    in_turn,
    machine,
    memcpy_gb_per_second,
    peak_memory,
    ratio,
    run_epoch,
)
from memload.cli.options import DEMO_CROPS, DEMO_ROUNDS
from memload.cli.output import answer, is_json
from memload.loader.fast_loader import FastLoader
from memload.memory import budget
from memload.progress import bar
from memload.sizes import counted, format_size

SIDE = 425
RESPONSES = 256
SEED = 8
PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)

NEXT = """
What next, with data of your own:
  memload init train.py          reads a script that has a DataLoader, and says line by line what to change
  memload info FILE              what a .npy, .h5, .zarr, .pt, .arrow or shards hold, and what reading a row costs
  memload write FILE shards/     converts what is slow to read; --images DIR takes folders of photographs
  memload plan FILE              RAM, GPU memory and disk that a loop over it takes, before it runs
In a loop:  loader = memload.FastLoader(memload.open("shards/"), batch_size=32, shuffle=True)"""

_ROW_BYTES = SIDE * SIDE * 3 + RESPONSES * 4
_MARGIN = 1.2  # free disk and memory required, for each byte needed
_WORKING_MEMORY = 1_500_000_000  # ring, ceiling and the stock loader's batches, bytes
_STOCK_SECONDS = 1.2  # for a round of the stock loader
_SEARCH_SECONDS = 0.25  # for each setting of the stock loader
_COMPARE_SECONDS = 4.0  # for comparing batches, if the stock loader is slow


@dataclass(frozen=True)
class Options:
    """The settings of the demo: `crops` crops, batches of `batch_size`, `rounds` rounds of every contestant in turn.

    `compiled` lets torch compile the stock loop's cast, which makes it faster and takes up to half a minute.
    """

    crops: int = DEMO_CROPS
    batch_size: int = 32
    rounds: int = DEMO_ROUNDS
    compiled: bool = True
    threads: int = field(default_factory=budget.default_threads)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.crops < 2 * self.batch_size or self.rounds < 1:
            raise ValueError(
                f"the demo needs at least 1 round and two batches of crops; got {counted(self.rounds, 'round')} and "
                f"{counted(self.crops, 'crop')} in batches of {self.batch_size}"
            )


@dataclass(frozen=True)
class Row:
    """One line of the table; `share` is of the ceiling, `extra_memory` in bytes, `first_batch` in seconds."""

    name: str
    rate: Spread
    gb_per_second: float
    share: float
    cpu_per_gb: float
    extra_memory: int | None
    first_batch: float | None


@dataclass(frozen=True)
class Result:
    """The results of the demo; `speedup` is FastLoader's rate divided by stock's, round by round."""

    rows: list[Row]
    speedup: Spread
    batches_compared: int
    identical: bool
    stock_setting: str
    pages: str
    memcpy_gb_per_second: float


def run(args: argparse.Namespace) -> int:
    """Run `memload demo`; 0 if the batches were identical."""
    options = Options(crops=args.crops, rounds=args.rounds, compiled=not args.no_compile)
    if args.folder and not args.folder.is_dir():
        raise FileNotFoundError(f"--folder {args.folder}: no such folder; name one that is there")
    check_room(args.folder or Path(tempfile.gettempdir()), options.crops)
    with (
        tempfile.TemporaryDirectory(prefix="memload-demo-", dir=args.folder) as folder,
        contextlib.redirect_stdout(sys.stderr if is_json(args) else sys.stdout),
    ):
        result = play(Path(folder) / "shards", options)
    answer(args, f"{table(result)}\n{NEXT}", {"machine": machine(), "options": options, **asdict(result)})
    return 0 if result.identical else 1


def play(path: Path, options: Options) -> Result:
    """Write the shards at `path`, run the contestants over them, and return the comparison."""
    what, images = pictures()
    say(f"writing {options.crops:,} crops of {what}, {options.crops * _ROW_BYTES / 1e9:.2f} GB, as shards")
    with ThreadPoolExecutor(1) as helper:
        cast = helper.submit(stock_cast, options)
        write_crops(path, images, options.crops)
        if not cast.done():
            say("compiling the stock loop's cast")
        chosen = cast.result()
    with held_in_memory([shard_of(path)]) as pages:
        return compare(path, options, chosen, pages)


def stock_cast(options: Options) -> tuple[stock.CastFn, str]:
    """Return the cast of the stock loop, and its name."""
    if not options.compiled:
        return stock.plain_cast(torch.float32, planes=True), "plain cast"
    example = torch.zeros(options.batch_size, SIDE, SIDE, 3, dtype=torch.uint8)
    return stock.best_cast(torch.float32, example, planes=True)


def shard_of(path: Path) -> Path:
    """Return the one shard of the demo's dataset."""
    (shard,) = path.glob("*.safetensors")
    return shard


def compare(path: Path, options: Options, cast: tuple[stock.CastFn, str], pages: str) -> Result:
    """Return all measurements, on existing shards."""
    say("looking for the stock loader's best setting")
    theirs = stock.find_best(shard_of(path), options.batch_size, {"stim": cast[0]}, seconds=_SEARCH_SECONDS, seed=SEED)
    ours = FastLoop(path, options)
    # Before all other measurements, since our loop keeps its memory after its first pass.
    memory = {name: peak_of(loop) for name, loop in (("stock", theirs), ("fast", ours))}
    say("comparing batch by batch")
    compared, identical = same_batches(theirs, ours)
    say(f"running both and the ceiling in turn, {counted(options.rounds, 'round')}")
    ceiling = ours.ceiling()
    contestants = {
        "stock": lambda: run_epoch(theirs, seconds=_STOCK_SECONDS),
        "fast": lambda: run_epoch(ours),
        "ceiling": ceiling.best,
    }
    with bar("rounds", options.rounds * len(contestants), None, unit=" runs") as shown:
        epochs = in_turn(contestants, options.rounds, shown)
    del ceiling
    names = {"stock": "stock DataLoader", "fast": "memload.FastLoader", "ceiling": "the ceiling"}
    rows = [row_of(title, epochs[name], epochs["ceiling"], memory.get(name)) for name, title in names.items()]
    speedup = ratio([e.rate for e in epochs["fast"]], [e.rate for e in epochs["stock"]])
    setting = f"{theirs.setting}, {cast[1]}"
    return Result(rows, speedup, compared, identical, setting, pages, memcpy_gb_per_second(options.threads))


def check_room(folder: Path, crops: int) -> None:
    """Raise OSError if `folder` or the memory cannot take the crops."""
    need = int(crops * _ROW_BYTES * _MARGIN)
    free = budget.disk_free(folder)
    if free < need:
        raise OSError(
            f"{folder}: the demo wants {format_size(need)} free (a fifth more than it writes), and "
            f"{format_size(free)} are free; "
            "name another folder with --folder, or fewer crops with --crops"
        )
    memory = budget.memory().free
    if memory < need + _WORKING_MEMORY:
        raise OSError(
            f"the demo needs {format_size(need + _WORKING_MEMORY)} of memory, and {format_size(memory)} are free; "
            "use fewer crops with --crops"
        )


def pictures() -> tuple[str, list[NDArray[np.uint8]]]:
    """Return what crops are cut from, each at least SIDE high and wide, as (H, W, 3), and what that is.

    It is the photographs in scikit-image's wheel, or else pictures that are drawn here. Rates do not depend on it,
    since nothing is compressed.
    """
    if found := photographs():
        return "real photographs", found
    drawn = [draw(number) for number in range(len(PHOTOGRAPHS))]
    return "drawn pictures (memload[demo] brings photographs)", drawn


def photographs() -> list[NDArray[np.uint8]]:
    """Return the photographs in scikit-image's wheel, which the extra `demo` brings; none without it."""
    found = importlib.util.find_spec("skimage")
    folder = Path(found.origin).parent / "data" if found and found.origin else Path()
    return [open_image(folder / name) for name in PHOTOGRAPHS if (folder / name).exists()]


def draw(number: int) -> NDArray[np.uint8]:
    """Return a picture of waves that cross each other, as (H, W, 3); each number has its own."""
    rng, axis = np.random.default_rng(number), np.arange(SIDE + 55)[:, None]
    waves = np.zeros((len(axis), len(axis), 3))
    for _ in range(6):
        down, right = (axis * rng.uniform(-0.1, 0.1, 3) for _ in range(2))
        waves += np.sin(down[:, None] + right)
    return (127 + 30 * waves).clip(0, 255).astype(np.uint8)


def open_image(path: Path) -> NDArray[np.uint8]:
    """Return an image as (H, W, 3), enlarged so that each side exceeds a crop's by 55 pixels or more."""
    from PIL import Image

    with Image.open(path) as file:
        image = file.convert("RGB")
    scale = (SIDE + 55) / min(image.size)
    if scale > 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    return np.asarray(image)


def crops_of(images: list[NDArray[np.uint8]], count: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield `count` rows: a random crop, every second one mirrored, and a response vector that depends on it."""
    rng = np.random.default_rng(SEED)
    for i in range(count):
        image = images[i % len(images)]
        top, left = (rng.integers(0, size - SIDE + 1) for size in image.shape[:2])
        crop = image[top : top + SIDE, left : left + SIDE][:, :: -1 if i % 2 else 1]
        response = rng.gamma(2.0, 1 + crop[::16, ::16].mean() / 64, RESPONSES)
        yield {"stim": np.ascontiguousarray(crop), "response": response.astype(np.float32)}


def write_crops(path: Path, images: list[NDArray[np.uint8]], count: int) -> None:
    """Write crops of these images as shards one by one, so that they are never in memory all at once."""
    with (
        memload.ShardWriter(path, shard_bytes="4GB", rows=count) as writer,
        bar("write", count, None, unit=" crops") as shown,
    ):
        for row in crops_of(images, count):
            writer.append(**row)
            shown.update(1)


class FastLoop:
    """The loop with FastLoader, over the same rows as the stock loop."""

    def __init__(self, path: Path, options: Options) -> None:
        self._options = options
        self._dataset = memload.open(path)
        casts = {"stim": Cast(torch.float32, norm_removed=True, channels=-1, layout="NCHW")}
        self._generator = torch.Generator()
        self.loader: FastLoader[stock.Batch] = FastLoader(
            self._dataset,
            options.batch_size,
            shuffle=True,
            drop_last=True,
            generator=self._generator,
            cast=casts,
            num_workers=options.threads,
            persistent_workers=True,
        )
        self._workers_are_seeded = False

    def __iter__(self) -> Iterator[stock.Batch]:
        stock.reseed(self._generator, SEED, workers_are_seeded=self._workers_are_seeded)
        self._workers_are_seeded = True
        return iter(self.loader)

    def ceiling(self) -> GatherCeiling:
        """Return the ceiling for the same rows, whose pixels stay where they are stored."""
        plan = shuffled(len(self._dataset), SEED)
        options = self._options
        casts = {"stim": Cast(torch.float32, norm_removed=True)}
        return GatherCeiling(self._dataset, plan, options.batch_size, threads=options.threads, cast=casts)


def same_batches(stock_loop: stock.StockLoop, fast_loop: FastLoop) -> tuple[int, bool]:
    """Compare batches until one differs or time is up; return how many were compared, and whether all were equal."""
    compared = 0
    until = time.perf_counter() + _COMPARE_SECONDS
    with bar("compare", None, None, unit=" batches") as shown:
        for theirs, ours in zip(stock_loop, fast_loop, strict=True):
            compared += 1
            if theirs.keys() != ours.keys() or not all(torch.equal(theirs[name], ours[name]) for name in theirs):
                return compared, False
            if time.perf_counter() > until:
                break
            shown.update(1)
    return compared, True


def peak_of(loop: stock.StockLoop | FastLoop) -> int:
    """Return the peak memory beyond what the process held before, over some batches."""
    with peak_memory() as peak:
        run_epoch(loop, limit=24)
        return peak()


def row_of(name: str, epochs: list[Epoch], ceiling: list[Epoch], extra_memory: int | None) -> Row:
    """Return the medians of one contestant."""

    def median(figure: Callable[[Epoch], float]) -> float:
        return Spread.of(map(figure, epochs)).median

    return Row(
        name,
        Spread.of(e.rate for e in epochs),
        median(lambda e: e.gb_per_second),
        ratio([e.rate for e in epochs], [c.rate for c in ceiling]).median,
        median(lambda e: e.cpu_per_gb),
        extra_memory,
        None if extra_memory is None else median(lambda e: e.first_batch),
    )


def table(result: Result) -> str:
    """Return the result as text."""
    head = ("", "samples/s", "GB/s", "of ceiling", "CPU s/GB", "extra memory", "first batch")
    lines = [head, *(cells(row) for row in result.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    verdict = "bit-identical" if result.identical else "NOT IDENTICAL"
    return "\n".join(
        [
            "",
            *text,
            "",
            f"FastLoader is {result.speedup.median:.1f} times as fast ({result.speedup.low:.1f} to "
            f"{result.speedup.high:.1f}, {counted(result.speedup.count, 'round')} in turn); "
            f"{counted(result.batches_compared, 'batch', 'batches')} compared: {verdict}.",
            f"Stock at its best here: {result.stock_setting}. Plain memcpy: {result.memcpy_gb_per_second:.1f} GB/s.",
            "Both hand out float32 crops as (B, C, H, W), shuffled from the same seed; the ceiling leaves pixels in",
            "their stored order. FastLoader keeps its slots between epochs (persistent_workers=True), as the ceiling",
            f"does; {result.pages}.",
        ]
    )


def cells(row: Row) -> tuple[str, ...]:
    """Return one line of the table."""
    return (
        row.name,
        f"{row.rate.median:,.0f}",
        f"{row.gb_per_second:.2f}",
        f"{row.share:.0%}",
        f"{row.cpu_per_gb:.3f}",
        "" if row.extra_memory is None else f"{row.extra_memory / 1e6:,.0f} MB",
        "" if row.first_batch is None else f"{row.first_batch * 1e3:,.0f} ms",
    )


_STARTED = time.perf_counter()


def say(what: str) -> None:
    """Print a line of progress, with the seconds since the start."""
    print(f"[{time.perf_counter() - _STARTED:5.1f} s] {what}", flush=True)
