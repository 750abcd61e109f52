"""Draws the images of README and docs from results/: docs/pictures/*.svg.

python benchmarks/pictures.py

tests/project/test_pictures.py compares the figures in the images with the results.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memload.cli.charts import BOUND, GREY, OURS, THEIRS, Bar, draw_bars, svg_of
from memload.monitoring.plots import new_figure

RESULTS = Path(__file__).parent / "results"
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"

Groups = dict[str, list[Bar]]


def results(name: str) -> dict[str, dict[str, Any]]:
    """The figures of a benchmark by case."""
    return {figure["case"]: figure for figure in json.loads((RESULTS / f"{name}.json").read_text())["figures"]}


def speed() -> tuple[Groups, str]:
    """FastLoader and stock loaders as shares of the ceiling, all of one run."""
    titles = {
        "W1 f32": "images 425 x 425 x 3, uint8 to normalised float32",
        "W2 f32": "movies 32 x 56 x 56, uint8 to float32, and 256 responses",
        "W3 raw": "float32 volumes of 9 MB",
        "W4 raw": "float32 rows of 256 bytes",
    }
    figures = results("speed")
    labels = {"rival": "DataLoader, tuned allocator", "stock": "DataLoader"}
    groups: Groups = {}
    for case, title in titles.items():
        shares, times = figures[case]["shares"], figures[case]["times"]
        groups[title] = [_share(shares["kept"], "FastLoader", f"{shares['kept']['median']:.2f}", OURS)]
        for name, label in labels.items():
            groups[title].append(_share(shares[name], label, f"FastLoader: {times[name]['median']:.1f}x", THEIRS))
    return groups, "share of the ceiling: the same gather and cast in C++, without a queue and without Python"


def _share(spread: dict[str, float], label: str, text: str, color: str) -> Bar:
    return Bar(label, spread["median"], spread["low"], spread["high"], text, color)


def memory() -> tuple[Groups, str]:
    """What worker processes take beside one loader with threads."""
    bars = []
    for case, figure in results("workers").items():
        peak = {key: figure["peak"][key] / 1e6 for key in ("median", "low", "high")}
        color = OURS if case == "FastLoader" else THEIRS
        label = case if case == "FastLoader" else f"DataLoader, {case}"
        bars.append(Bar(label, peak["median"], peak["low"], peak["high"], f"{peak['median']:,.0f} MB", color))
    return {"images 425 x 425 x 3 in RAM, to float32, batches of 32": bars}, "peak memory beyond the images, MB"


def cold() -> tuple[Groups, str]:
    """Random rows that are not in memory, read from a disk."""
    groups: Groups = {}
    for case, title in (("W1 raw", "rows of 542 KB"), ("C4 raw", "rows of 4 KB")):
        figure = results("cold")[case]
        best = figure[f"MB/s {figure['best']}"]
        rows = (
            ("FastLoader", figure["MB/s fast"], OURS),
            ("DataLoader over a memmap", figure["MB/s stock"], THEIRS),
            (f"the disk, by {figure['best'].replace('io_uring', 'io_uring, depth')}", best, BOUND),
        )
        bars = []
        for label, rate, color in rows:
            ends = [rate[key] / best["median"] for key in ("median", "low", "high")]
            bars.append(Bar(label, *ends, f"{rate['median']:,.0f} MB/s", color))
        groups[title] = bars
    return groups, "share of what the disk gives to reads in parallel"


PLOTS: dict[str, Callable[[], tuple[Groups, str]]] = {
    "speed": speed,
    "memory": memory,
    "cold": cold,
}


STEPS = (
    ("sampler", "order of rows"),
    ("gather", "native threads: copy,\ncast, crop, layout"),
    ("slots", "reused memory\nof a batch"),
    ("transform", "functions of yours"),
    ("copy stream", "to the GPU,\nwhere there is one"),
    ("batch", "tensors in the loop"),
)


def draw_pipeline() -> Any:
    """A figure of the way of a batch, and of the slot that comes back."""
    figure = new_figure(10.5, 2.0)
    axes = figure.add_subplot()
    for k, (title, words) in enumerate(STEPS):
        box = {"boxstyle": "round,pad=0.5", "facecolor": "none", "edgecolor": OURS, "linewidth": 1.5}
        axes.text(2 * k, 1, title, ha="center", va="center", color=OURS, weight="bold", bbox=box)
        axes.text(2 * k, 0.35, words, ha="center", va="center", color=GREY, fontsize=8.5)
        if k:
            _arrow(axes, (2 * k - 1.35, 1), (2 * k - 0.72, 1))
    _arrow(axes, (10, 1.35), (4, 1.35), "arc3,rad=0.18")
    axes.text(7, 1.98, "the slot is free again when the last tensor of its batch has died", ha="center", color=GREY)
    axes.set_xlim(-0.9, 10.9)
    axes.set_ylim(0, 2.2)
    axes.axis("off")
    return figure


def _arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float], way: str = "arc3") -> None:
    axes.annotate(
        "", xy=end, xytext=begin, arrowprops={"arrowstyle": "-|>", "color": GREY, "connectionstyle": way, "lw": 1.2}
    )


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, figures in PLOTS.items():
        (PICTURES / f"{name}.svg").write_text(svg_of(draw_bars(*figures())))
    (PICTURES / "pipeline.svg").write_text(svg_of(draw_pipeline()))


if __name__ == "__main__":
    main()
