"""Cases of `memory_truth.py`: training with a batch size that memload chose for the control group around it.

Each run asks `memload.compute_batch_size` inside its group, with nothing but what a loop has, and makes 20 steps of
batches of that size, some runs 200 or 400, with a loader or with batches that it draws itself. The models are narrow,
so that memory, not arithmetic, bounds the batch. What it states: the process before, and all that the budget counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from truth_case import Case
from truth_graphs import Stack, make_graphs
from truth_training import BLOCKS, Distilled

import memload
from memload.memory.budget import process_bytes
from memload.memory.c_heap import trim_heap

STEPS, MORE_STEPS, MOST_STEPS, ROWS, LENGTH, FEATURES = 20, 200, 400, 8192, 64, 64
GRAPHS = 6000  # more than a batch has
SAMPLE = {"GAT": 256}  # rows of the sample without a loader, else 16: so many graphs have about the mean of all
LIMITS = {"0.5 GB": 500_000_000, "1.2 GB": 1_200_000_000, "2.5 GB": 2_500_000_000}


class Vit(nn.Module):
    """Four layers of width 64 over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(FEATURES, 2, 256, batch_first=True, dropout=0.0) for _ in range(4))
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(FEATURES, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes."""
        found: torch.Tensor = self.head(self.layers(x).mean(1))
        return found


class Recurrent(nn.Module):
    """Two layers of width 64 over the rows of an image."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.head = kind(FEATURES, 64, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes."""
        found: torch.Tensor = self.head(self.layers(x)[0][:, -1])
        return found


def cnn() -> nn.Module:
    """Three convolutions of 8 channels."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, LENGTH))]
    for before in (1, 8, 8):
        layers += [nn.Conv2d(before, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Unet(nn.Module):
    """Two levels of convolutions, and their results side by side on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner, self.up = _convolutions(1, 8), _convolutions(8, 16), _convolutions(24, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes."""
        first = self.down(x.unsqueeze(1))
        second = self.inner(nn.functional.max_pool2d(first, 2))
        joined = torch.cat([first, nn.functional.interpolate(second, scale_factor=2.0)], 1)
        found: torch.Tensor = self.head(self.up(joined).mean((2, 3)))
        return found


def _convolutions(before: int, after: int) -> nn.Module:
    layers = [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.SiLU())


def mlp() -> nn.Module:
    """Four layers of width 256 over the rows of an image, of which nearly all memory is results."""
    layers: list[nn.Module] = []
    for before in (FEATURES, 256, 256, 256):
        layers += [nn.Linear(before, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * LENGTH, 10))


class Distances(nn.Module):
    """Distances between all pairs of a batch: what it takes grows with the square of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES * LENGTH, 64), nn.ReLU(), nn.Linear(64, 32))

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """A mean over pairs."""
        found = self.embed(x)
        return torch.cdist(found, found).clamp(max=5).exp().mean()


def gat() -> nn.Module:
    """Three layers of attention."""
    from torch_geometric.nn import GATConv

    return Stack(GATConv)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "CNN": cnn,
    "GAT": gat,
    "ViT": Vit,
    "LSTM": functools.partial(Recurrent, nn.LSTM),
    "GRU": functools.partial(Recurrent, nn.GRU),
    "U-Net": Unet,
    "MLP": mlp,
    "Distillation": functools.partial(Distilled, FEATURES, 64, 256),
    "Distances": Distances,
}


def make_rows(folder: Path) -> None:
    """Images of 64 x 64 float16 and their classes."""
    draw = np.random.default_rng(0)
    x = draw.random((ROWS, LENGTH, FEATURES), dtype=np.float32).astype(np.float16)
    memload.write(folder / "rows", {"x": x, "y": draw.integers(0, 10, ROWS)}, progress=False)


def loss_of(net: nn.Module, batch: Any) -> torch.Tensor:
    """Cross entropy, or the model's own loss."""
    if isinstance(net, Distilled | Distances):
        return net.loss(batch["x"])
    if not isinstance(batch, dict):
        found: torch.Tensor = net(batch)
        return found
    return nn.functional.cross_entropy(net(batch["x"]), batch["y"])


def loader_of(folder: Path, model: str, size: int) -> Any:
    """The loader of a model's data."""
    if model == "GAT":
        graphs = memload.open_graphs(folder / "graphs")
        return memload.FastLoader(graphs, size, shuffle=True, collate_fn=memload.graph_collate)
    return memload.FastLoader(memload.open(folder / "rows"), size, shuffle=True, cast={"x": torch.float32})


def drawn(folder: Path, model: str, size: int) -> Iterator[Any]:
    """Batches without a loader."""
    if model == "GAT":
        graphs, draw = memload.open_graphs(folder / "graphs"), np.random.default_rng(1)
        while True:
            yield memload.graph_collate([graphs[int(row)] for row in draw.integers(0, len(graphs), size)])
    while True:
        yield {"x": torch.rand(size, LENGTH, FEATURES), "y": torch.randint(0, 10, (size,))}


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Pass after pass."""
    while True:
        yield from loader


def run(folder: Path, model: str, *, loads: bool, share: float, sample: int, steps: int) -> dict[str, Any]:
    """Chooses a batch size for this share of what is free, and trains with it."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    net = MODELS[model]()
    optimizer = torch.optim.AdamW(net.parameters())
    trim_heap()  # as compute_batch_size does
    before = process_bytes()
    loader = loader_of(folder, model, 16)
    found = memload.compute_batch_size(
        net,
        next(iter(loader)) if loads else next(drawn(folder, model, sample)),
        optimizer=optimizer,
        loss=functools.partial(loss_of, net),
        loader=loader if loads else None,
        max_batch_size=ROWS,
        target_utilization=share,
    )
    print(found, flush=True)
    batches = endless(loader_of(folder, model, found.batch_size)) if loads else drawn(folder, model, found.batch_size)
    del loader
    for _, batch in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
    return {"predicted": before - found.static.params + found.used}


def case(
    model: str, limit: str, *, loads: bool, as_it_is: bool = False, share: float | None = None, steps: int = STEPS
) -> Case:
    """A run in a group of this limit, with the thresholds that the budget names, or with glibc's heap as it is.

    Those of which a share is given run in the tests, too: a machine whose libraries take more does not end them.
    """
    heap = ", heap as it is" if as_it_is else ""
    of_it = "" if share is None else f", {share} of what is free"
    longer = "" if steps == STEPS else f", {steps} steps"
    return Case(
        f"limit: {model}, {limit}{heap}{longer}{of_it}, {'with' if loads else 'without'} a loader",
        functools.partial(run, model=model, loads=loads, share=share or 0.9, sample=SAMPLE.get(model, 16), steps=steps),
        make=functools.partial(make_graphs, graphs=GRAPHS) if model == "GAT" else make_rows,
        limit=LIMITS[limit],
        environment={} if as_it_is else BLOCKS,
        quick=share is not None,
    )


MIXED = ("U-Net", "MLP", "Distillation", "Distances")  # for the heap alone, which has some of their tensors only
CASES = [
    case(model, limit, loads=loads)
    for limit in LIMITS
    for model in MODELS
    for loads in (True, False)
    if model not in MIXED
]
CASES += [
    case(model, limit, loads=loads, as_it_is=True) for limit in LIMITS for model in MODELS for loads in (True, False)
]
CASES += [
    case("GAT", limit, loads=loads, as_it_is=True, steps=MORE_STEPS)
    for limit in ("0.5 GB", "1.2 GB")
    for loads in (True, False)
]
CASES += [case("GRU", "0.5 GB", loads=loads, as_it_is=True, steps=MOST_STEPS) for loads in (True, False)]
CASES.append(case("GRU", "2.5 GB", loads=True, as_it_is=True, steps=MORE_STEPS))
CASES.append(case("GAT", "0.5 GB", loads=True, share=0.8))
