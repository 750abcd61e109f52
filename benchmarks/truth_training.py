"""Cases of `memory_truth.py`: whole runs on the CPU, with data, model, optimizer, activations and libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from truth_case import Case

import memload

STEPS = 4
ROWS = 512


class Vit(nn.Module):
    """Patches of 8 x 8, six layers of width 512."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 512, 8, 8)
        layers = (nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(6))
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes."""
        found: torch.Tensor = self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return found


class Recurrent(nn.Module):
    """The rows of an image as steps of time, through two layers."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layers = kind(192, 512, num_layers=2, batch_first=True, **options)
        self.head = nn.Linear(512 * (1 + self.layers.bidirectional), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes."""
        found: torch.Tensor = self.head(self.layers(x.flatten(1).view(len(x), 64, 192))[0][:, -1])
        return found


class Distilled(nn.Module):
    """A student of two layers over the rows of an image, and a frozen teacher of wider layers in its loss."""

    def __init__(self, features: int, width: int, wide: int) -> None:
        super().__init__()
        self.features = features
        self.student = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))
        layers = [nn.Linear(features, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, width)]
        self.teacher = nn.Sequential(*layers).requires_grad_(False)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """The divergence between both."""
        rows = x.reshape(len(x), -1, self.features)
        with torch.no_grad():
            wanted = self.teacher(rows).softmax(-1)
        return nn.functional.kl_div(self.student(rows).log_softmax(-1), wanted, reduction="batchmean")


def mlp() -> nn.Module:
    """53 million parameters."""
    layers = [nn.Flatten(), nn.Linear(3 * 64 * 64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 10))


def cnn() -> nn.Module:
    """Two convolutions of 64 channels."""
    first = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "MLP": mlp,
    "CNN": cnn,
    "ViT": Vit,
    "LSTM": functools.partial(Recurrent, nn.LSTM),
    "LSTM both ways": functools.partial(Recurrent, nn.LSTM, bidirectional=True, dropout=0.1),
    "GRU": functools.partial(Recurrent, nn.GRU),
    "RNN": functools.partial(Recurrent, nn.RNN),
    "Distillation": functools.partial(Distilled, 192, 192, 1024),
}


def make_rows(folder: Path) -> None:
    """Images of 64 x 64 and their classes."""
    draw = np.random.default_rng(0)
    arrays = {
        "x": draw.integers(0, 255, (ROWS, 3, 64, 64), dtype=np.uint8),
        "y": draw.integers(0, 10, (ROWS,), dtype=np.int64),
    }
    memload.write(folder / "rows", arrays, progress=False)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Cross entropy, or the model's own loss."""
    if isinstance(model, Distilled):
        return model.loss(batch["x"])
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def plan_of(folder: Path, model: str, batch: int, optimizer: str, precision: str, accumulate: int) -> memload.Plan:
    """The plan, with a model that takes no memory, for a machine that is described."""
    with torch.device("meta"):
        made = MODELS[model]()
    return memload.plan(
        memload.open(folder / "rows"),
        batch,
        shuffle=True,
        cast={"x": torch.float32},
        device="cpu",
        model=made,
        optimizer=getattr(torch.optim, optimizer),
        loss=lambda one: loss_of(made, one),
        precision=precision,
        accumulate=accumulate,
        ram="16GB",
    )


def predict(folder: Path, *, exact: bool, **settings: Any) -> dict[str, Any]:
    """What the plan states; with `exact`, the run is in a group of the bytes that ``--mem`` asks for."""
    plan = plan_of(folder, **settings)
    gibibytes = int(plan.mem.removeprefix("--mem=").removesuffix("G"))
    return {"predicted": plan.ram.predicted, **({"limit": gibibytes << 30} if exact else {})}


def run(folder: Path, model: str, batch: int, optimizer: str, precision: str, accumulate: int) -> None:
    """Some steps of training, with a learning rate that grows."""
    torch.set_num_threads(2)
    net = MODELS[model]()
    stepper = getattr(torch.optim, optimizer)(net.parameters())
    loader = memload.FastLoader(memload.open(folder / "rows"), batch, shuffle=True, cast={"x": torch.float32})
    warm_up = torch.optim.lr_scheduler.LinearLR(stepper)
    half, batches = precision == "bf16-mixed", 0
    while batches < STEPS * accumulate:
        for one in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = loss_of(net, one)
            loss.backward()
            batches += 1
            if batches % accumulate == 0:
                stepper.step()
                stepper.zero_grad()
                warm_up.step()


BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}


def case(
    model: str,
    batch: int,
    optimizer: str = "AdamW",
    precision: str = "float32",
    accumulate: int = 1,
    *,
    as_it_is: bool = False,
    quick: bool = False,
) -> Case:
    """A run in a group of the size that its plan asks for, with the variables that it names, or with glibc's heap."""
    settings: dict[str, Any] = {"model": model, "batch": batch, "optimizer": optimizer, "precision": precision}
    half = "" if precision == "float32" else f", {precision}"
    several = "" if accumulate == 1 else f", {accumulate} batches a step"
    heap = ", heap as it is" if as_it_is else ""
    return Case(
        f"train: {model}, {batch} rows, {optimizer}{half}{several}{heap}",
        functools.partial(run, accumulate=accumulate, **settings),
        functools.partial(predict, exact=True, accumulate=accumulate, **settings),
        make_rows,
        environment={} if as_it_is else BLOCKS,
        quick=quick,
    )


CASES = [
    case("MLP", 256, quick=True),
    case("MLP", 256, "SGD"),
    case("CNN", 64),
    case("CNN", 16),
    case("CNN", 64, "SGD"),
    case("CNN", 64, precision="bf16-mixed"),
    case("CNN", 16, accumulate=4),
    case("ViT", 64),
    case("ViT", 16),
    case("ViT", 64, "SGD"),
    case("ViT", 64, precision="bf16-mixed"),
    case("ViT", 64, "SGD", precision="bf16-mixed"),
    case("ViT", 16, accumulate=4),
    case("LSTM", 64),
    case("LSTM", 256),
    case("LSTM", 256, precision="bf16-mixed"),
    case("LSTM both ways", 64),
    case("GRU", 64),
    case("RNN", 128),
    case("MLP", 256, as_it_is=True),
    case("CNN", 64, as_it_is=True),
    case("CNN", 16, as_it_is=True),
    case("ViT", 64, as_it_is=True),
    case("ViT", 16, as_it_is=True),
    case("LSTM", 64, as_it_is=True),
    case("LSTM", 256, as_it_is=True),
    case("GRU", 64, as_it_is=True),
    case("Distillation", 32, as_it_is=True),
    case("Distillation", 128, as_it_is=True),
]
