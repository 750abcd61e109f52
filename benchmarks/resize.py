"""How much faster are random-resized crops in a cast than in other loaders at their best?

Stored uint8 images of 256 x 256 and 425 x 425 (H, W, C); a random part of 0.08 to 1 of the area, resized to 224 x 224,
mirrored by half, normalised: batches of 64, float32 (B, C, H, W). All read images in memory.

The stock loaders work in three ways, each without workers on one thread of torch and on all, and with 1 and 2 workers
that stay between epochs. `v2` calls torchvision's RandomResizedCrop, RandomHorizontalFlip, ToDtype and Normalize for
each sample, as its documentation shows. `lean` calls torch's interpolate on the uint8 part and flips it, stacks batches
of uint8, and normalises each batch in place. `batch` calls v2 once for each batch, whose images then share one draw:
less work, and not the same augmentation. All of these average over all pixels where an image shrinks (antialias).
Settings that stay below half of the best in a first epoch are dropped; their rate is kept.

`turbo` is `TblRawImageLoader` of TurboLoader, where it is installed. It does not
average, so `fast, antialias=False` is compared with it, too.

What is reported is FastLoader's rate over the best stock loader in the same round, over each, and over `turbo`; and
`cpu`: samples for each second that processors computed, over the best of these, since other work on the machine
changes that less.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from harness import Bench, arguments, rates, share
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, default_collate

import memload
from memload.cli.bench import default_threads
from memload.cli.measure import Epoch, Spread, held_in_memory, in_turn, ratio, run_epoch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests/support"))
from vision import v2  # torchvision's, also where its operators are for another torch

try:
    import turboloader
except ImportError:
    turboloader = None

BATCH = 64
HOPEFUL = 0.5  # a setting of the stock loader below this share of the best in the first epoch goes no further
SIZE = (224, 224)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(Dataset[torch.Tensor]):
    """Images in memory, each through a function."""

    def __init__(self, images: torch.Tensor, transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> torch.Tensor:
        return self.transform(self.images[row].permute(2, 0, 1))


class Batches(Images):
    """The same, through a function of whole batches."""

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return self.transform(self.images[rows].permute(0, 3, 1, 2))


def lean(image: torch.Tensor) -> torch.Tensor:
    """A random part in uint8, as torchvision draws it."""
    top, left, height, width = part(image.shape[1], image.shape[2])
    cut = image[None, :, top : top + height, left : left + width]
    made = interpolate(cut, SIZE, mode="bilinear", antialias=True)[0]
    return made.flip(-1) if random.random() < 0.5 else made


def part(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random part, by plain Python."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return random.randint(0, height - high), random.randint(0, width - wide), high, wide
    return 0, 0, height, width


def normalised(images: list[torch.Tensor]) -> torch.Tensor:
    """A batch of uint8 images as float32."""
    batch: torch.Tensor = default_collate(images).to(torch.float32)
    mean, std = (torch.tensor(given).view(3, 1, 1) * 255 for given in (MEAN, STD))
    return batch.sub_(mean).div_(std)


def as_it_is(batch: torch.Tensor) -> torch.Tensor:
    """A batch of a dataset that makes batches."""
    return batch


STEPS = v2.Compose(
    [
        v2.RandomResizedCrop(SIZE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)
WAYS = {"v2": (Images, STEPS, None), "lean": (Images, lean, normalised), "batch": (Batches, STEPS, as_it_is)}


def stock(images: torch.Tensor, how: str, workers: int, threads: int) -> Callable[[], Epoch]:
    """An epoch of the stock loader, with so many threads of torch in the main process; workers have one."""
    kind, transform, collate = WAYS[how]
    options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(
        kind(images, transform), BATCH, shuffle=True, drop_last=True, num_workers=workers, collate_fn=collate, **options
    )

    def epoch() -> Epoch:
        torch.set_num_threads(threads)
        try:
            return run_epoch(loader)
        finally:
            torch.set_num_threads(default_threads())

    return epoch


def stocks(images: torch.Tensor, hows: Iterable[str]) -> dict[str, Callable[[], Epoch]]:
    """These ways, with each number of workers and threads."""
    threads = default_threads()
    ways = {"0 workers, 1 thread": (0, 1), f"0 workers, {threads} threads": (0, threads)}
    ways |= {"1 worker": (1, threads), "2 workers": (2, threads)}
    return {f"{how} {name}": stock(images, how, *way) for how in hows for name, way in ways.items()}


class Turbo:
    """TurboLoader's batches as tensors."""

    def __init__(self, images: torch.Tensor, path: Path) -> None:
        writer = turboloader.TblWriterV2(str(path), enable_compression=False)
        for image in images.numpy():
            writer.add_sample(
                image.tobytes(), turboloader.SampleFormat.RAW_U8, width=image.shape[1], height=image.shape[0]
            )
        writer.finalize()
        self.loader = turboloader.TblRawImageLoader(
            path, BATCH, mean=MEAN, std=STD, drop_last=True, hflip_prob=0.5, train_aug=True, image_size=SIZE
        )

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.from_numpy(batch) for batch, _ in self.loader)


def fast(path: Path, antialias: bool = True) -> Callable[[], Epoch]:
    """An epoch of FastLoader."""
    augment = memload.Augment(resize=SIZE, scale=(0.08, 1), ratio=(3 / 4, 4 / 3), flip=0.5, antialias=antialias)
    rule = memload.Cast(torch.float32, scale=1 / 255, mean=MEAN, std=STD, channels=-1, layout="NCHW", augment=augment)
    loader = memload.FastLoader(memload.open(path), BATCH, shuffle=True, drop_last=True, cast={"image": rule})
    return lambda: run_epoch(loader)


def measure(bench: Bench, folder: Path, side: int, rows: int) -> None:
    """Compares on images of one size."""
    images = torch.randint(0, 256, (rows, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    path = folder / str(side)
    memload.write(path, {"image": images.numpy()}, shard_bytes="8GB", progress=False)
    others = stocks(images, ("batch",) if bench.args.quick else WAYS)
    contestants = {"fast": fast(path), **others}
    if turboloader is not None:
        turbo = Turbo(images, folder / f"{side}.tbl")
        contestants |= {"turbo": lambda: run_epoch(turbo), "fast, antialias=False": fast(path, antialias=False)}
    with held_in_memory(set(path.glob("*.safetensors"))) as bench.pages:
        first = in_turn(contestants, 1)
        fastest = max(first[name][0].rate for name in others)
        others = {name: epoch for name, epoch in others.items() if first[name][0].rate > HOPEFUL * fastest}
        contestants = {
            name: epoch for name, epoch in contestants.items() if name in others or "fast" in name or name == "turbo"
        }
        epochs = in_turn(contestants, bench.rounds)
    best = [max((epochs[name][k] for name in others), key=lambda epoch: epoch.rate) for k in range(bench.rounds)]
    found, rate = share(epochs["fast"], best), Spread.of(rates(epochs["fast"]))
    frugal = [
        max(epochs[name][k].samples / epochs[name][k].cpu_seconds for name in others) for k in range(bench.rounds)
    ]
    cpu = ratio([epoch.samples / epoch.cpu_seconds for epoch in epochs["fast"]], frugal)
    peers = {name: share(epochs["fast"], epochs[name]) for name in others}
    text = f"{found.median:.1f} ({found.low:.1f} to {found.high:.1f}) times the best stock loader; "
    text += ", ".join(f"{name}: {spread.median:.1f}" for name, spread in peers.items())
    text += f"; {rate.median:,.0f} samples/s; cpu: {cpu.median:.1f} ({cpu.low:.1f} to {cpu.high:.1f})"
    if turboloader is not None:
        for name in ("fast", "fast, antialias=False"):
            spread = peers[f"{name} over turbo"] = share(epochs[name], epochs["turbo"])
            text += f"; {name} over turbo: {spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"
    every = {name: Spread.of(rates(epochs[name])) for name in contestants if name != "fast"}
    dropped = {name: epoch[0].rate for name, epoch in first.items() if name not in contestants}
    bench.add(
        f"{side} x {side}", text, over_best=found, cpu=cpu, over={**peers}, fast=rate, others=every, dropped=dropped
    )


def main() -> None:
    bench = Bench(arguments(__doc__ or "", rounds=7, default=()).parse_args())
    torch.set_num_threads(default_threads())
    bench.about["turboloader"] = None if turboloader is None else turboloader.__version__
    bench.about["torch"] = torch.__version__
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        for side, rows in ((256, 1024),) if bench.args.quick else ((256, 1024), (425, 512)):
            measure(bench, Path(folder), side, 2 * BATCH if bench.args.quick else rows)
    bench.save()


if __name__ == "__main__":
    main()
