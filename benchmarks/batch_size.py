"""How far from the truth is the predicted peak of a training step, and does the computed batch size run?

Models of several kinds, each predicted from steps with 2 to 5 rows ("measured") and from shapes alone ("static"),
against the peak of a real step with a batch that fills a given memory, as torch's own profiler tells it. The quotient
is predicted over measured; 1 is right, below 1 a step would run out of memory that was thought to suffice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Bench, arguments
from torch import nn
from torch.utils.checkpoint import checkpoint

import memload
from memload.cli.measure import Spread
from memload.planning.variants import kind_of

LIMIT = 256 << 20


class Transformer(nn.Module):
    """A few layers over tokens, with checkpointing or without."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.embed = nn.Embedding(1000, 128)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).layers
        self.again = again

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x @ self.embed.weight.t()


class LargeTable(nn.Module):
    """An embedding whose gradient is larger than what small batches take."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(200_000, 64), nn.Linear(64, 64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """One row for each list of words."""
        return self.head(self.table(words).mean(1)).tanh()


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convolutional": lambda: (convolutional(), torch.rand(2, 3, 64, 64)),
    "transformer": lambda: (Transformer(again=False), torch.randint(1000, (2, 64))),
    "checkpointed": lambda: (Transformer(again=True), torch.randint(1000, (2, 64))),
    "embedding": lambda: (LargeTable(), torch.randint(200_000, (2, 32))),
}


def profiled_peak(step: Callable[[], Any]) -> int:
    """The most bytes that were alive at one time beyond what was there, as torch's profiler saw its CPU allocator."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    told = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    live = torch.tensor([event["args"]["Bytes"] for event in told], dtype=torch.int64).cumsum(0)
    return int(live.max())


def step_of(model: nn.Module, sample: torch.Tensor, rows: int, optimizer: torch.optim.Optimizer) -> None:
    """A step as a loop has it."""
    batch = kind_of(sample).resized(rows)  # type: ignore[attr-defined]
    out = model(batch)
    out.mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(bench: Bench, name: str, limit: int) -> None:
    model, sample = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    weights = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    for mode in ("measured", "static"):
        found = memload.compute_batch_size(
            model, sample, mode=mode, optimizer=optimizer, limit=limit + 6 * weights, target_utilization=1.0
        )
        step_of(model, sample, 2, optimizer)  # the optimizer's state is there from now on
        lasting = found.static.total - found.static.gradients
        peaks = [
            profiled_peak(lambda rows=found.batch_size: step_of(model, sample, rows, optimizer))
            for _ in range(bench.rounds)
        ]
        quotient = Spread.of([found.used / (peak + lasting) for peak in peaks])
        within = (peaks[0] + lasting) / found.total
        bench.add(
            name,
            f"{mode}: batch size {found.batch_size:,}; predicted {found.used / 1e6:.1f} MB, {quotient.median:.3f} of "
            f"the real peak, which is {within:.1%} of the memory planned for",
            mode=mode,
            batch_size=found.batch_size,
            predicted=found.used,
            predicted_over_real=quotient,
            real_over_planned=within,
        )


def main() -> None:
    args: argparse.Namespace = arguments("prediction errors of batch sizes", rounds=3).parse_args()
    bench = Bench(args)
    torch.set_num_threads(1)
    for name in MODELS:
        measure(bench, name, LIMIT >> 5 if args.quick else LIMIT)
    bench.save()


if __name__ == "__main__":
    main()
