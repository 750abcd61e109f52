"""How much faster are random-resized crops in a cast than in the stock loader at its best?

Stored uint8 images of 256 x 256 and 425 x 425 (H, W, C); a random part of 0.08 to 1 of the area, resized to 224 x 224
with antialiasing, mirrored by half, normalised: batches of 64, float32 (B, C, H, W). The stock loaders work in two
ways, each with 0 and 2 workers that stay between epochs: `v2` calls torchvision's RandomResizedCrop,
RandomHorizontalFlip, ToDtype and Normalize for each sample, as its documentation shows; `lean` calls torch's
interpolate on the uint8 part and flips it, stacks batches of uint8, and normalises each batch in place. Both read
images in memory. What is reported is FastLoader's rate over the best of these in the same round, and over each; and
`cpu`: samples for each second that processors computed, over the best of these, since other work on the machine
changes that less.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Bench, arguments, compete, rates, share
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, default_collate

import memload
from memload.cli.bench import default_threads
from memload.cli.measure import Epoch, Spread, held_in_memory, ratio, run_epoch

try:
    from torchvision.transforms import v2
except RuntimeError:  # built for another torch: its import describes two operators, which must be declared at least
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.transforms import v2

BATCH = 64
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


def stock(images: torch.Tensor, how: str, workers: int) -> Callable[[], Epoch]:
    """An epoch of the stock loader."""
    steps = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(
        Images(images, lean if how == "lean" else steps),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        collate_fn=normalised if how == "lean" else None,
        **options,
    )
    return lambda: run_epoch(loader)


def fast(path: Path) -> Callable[[], Epoch]:
    """An epoch of FastLoader."""
    augment = memload.Augment(resize=SIZE, scale=(0.08, 1), ratio=(3 / 4, 4 / 3), flip=0.5)
    rule = memload.Cast(torch.float32, scale=1 / 255, mean=MEAN, std=STD, channels=-1, layout="NCHW", augment=augment)
    threads = default_threads()
    loader = memload.FastLoader(
        memload.open(path),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=threads,
        persistent_workers=True,  # slots and threads are kept between epochs, as the workers are
        cast={"image": rule},
    )
    return lambda: run_epoch(loader)


def measure(bench: Bench, folder: Path, side: int, rows: int) -> None:
    """Compares on images of one size."""
    images = torch.randint(0, 256, (rows, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    path = folder / str(side)
    memload.write(path, {"image": images.numpy()}, shard_bytes="8GB", progress=False)
    contestants = {f"{how} {workers}": stock(images, how, workers) for how in ("v2", "lean") for workers in (0, 2)}
    with held_in_memory(set(path.glob("*.safetensors"))) as bench.pages:
        epochs = compete({"fast": fast(path), **contestants}, bench.rounds)
    best = [max((epochs[name][k] for name in contestants), key=lambda epoch: epoch.rate) for k in range(bench.rounds)]
    found, rate = share(epochs["fast"], best), Spread.of(rates(epochs["fast"]))
    frugal = [
        max(epochs[name][k].samples / epochs[name][k].cpu_seconds for name in contestants) for k in range(bench.rounds)
    ]
    cpu = ratio([epoch.samples / epoch.cpu_seconds for epoch in epochs["fast"]], frugal)
    peers = {name: share(epochs["fast"], epochs[name]) for name in contestants}
    text = f"{found.median:.1f} ({found.low:.1f} to {found.high:.1f}) times the best stock loader; "
    text += ", ".join(f"{name}: {spread.median:.1f}" for name, spread in peers.items())
    text += f"; {rate.median:,.0f} samples/s; cpu: {cpu.median:.1f} ({cpu.low:.1f} to {cpu.high:.1f})"
    every = {name: Spread.of(rates(epochs[name])) for name in contestants}
    bench.add(f"{side} x {side}", text, over_best=found, cpu=cpu, over={**peers}, fast=rate, stock=every)


def main() -> None:
    bench = Bench(arguments(__doc__ or "", rounds=7, default=()).parse_args())
    torch.set_num_threads(default_threads())
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        for side, rows in ((256, 1024), (425, 512)):
            measure(bench, Path(folder), side, 2 * BATCH if bench.args.quick else rows)
    bench.save()


if __name__ == "__main__":
    main()
