"""A monitor's run as a plot."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from memload.monitoring.diagnosis import Finding
from memload.monitoring.log import LoggedRun, read_log
from memload.monitoring.metric_logs import rates
from memload.monitoring.samples import Sample

Curve = tuple[str, Callable[[Sample], float | None]]

_LEGIBLE = 4  # times the process's own memory: higher curves are left out, since they would flatten the others
_HOST: list[Curve] = [
    ("held", lambda s: s.held),
    ("PSS", lambda s: s.pss),
    ("RSS", lambda s: s.rss),
    ("page cache", lambda s: s.page_cache),
    ("control group", lambda s: s.group_used),
]


def plot_log(log: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Draw the run of a log that began last, as a PNG, and return its path.

    Raises:
        ImportError: matplotlib is not installed.
        FormatError: the log holds no sample.
    """
    run: LoggedRun = read_log(log)[-1]
    return plot_run(run.samples, run.warnings, path, run.command)


def plot_run(
    samples: Sequence[Sample],
    warnings: Sequence[tuple[float, Finding]],
    path: str | os.PathLike[str],
    title: str = "",
) -> Path:
    """Draw samples as a PNG, and return its path.

    Args:
        samples: in the order of their time.
        warnings: the findings, each with its time.
        path: the file to write; ".png" is added to a name without an ending.
        title: the title of the plot, such as the command.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("there are no samples to draw yet")
    gpus = sorted({gpu.index for sample in samples for gpu in sample.gpus})
    has_batches = samples[-1].batches > samples[0].batches
    figure = new_figure(10, 3.2 * (1 + len(gpus) + has_batches))
    panels = list(figure.subplots(1 + len(gpus) + has_batches, 1, sharex=True, squeeze=False)[:, 0])
    begin = samples[0].time
    _host(panels[0], samples, begin)
    for panel, index in zip(panels[1:], gpus, strict=False):
        _gpu(panel, samples, index, begin)
    if has_batches:
        _loader(panels[-1], samples, begin)
    for panel in panels:
        _events(panel, samples, warnings, begin)
    panels[0].set_title(title or "memory")
    panels[-1].set_xlabel("seconds")
    target = with_ending(path)
    figure.savefig(target, format="png", dpi=110)
    return target


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches that needs no display.

    It is made without pyplot, whose figures and windows belong to the whole process.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "memload[monitor]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def with_ending(path: str | os.PathLike[str]) -> Path:
    """Return the path of a plot; ".png" is added to a name without an ending."""
    return Path(path) if Path(path).suffix else Path(f"{path}.png")


def _host(panel: Any, samples: Sequence[Sample], begin: float) -> None:
    highest = _LEGIBLE * max(max(s.rss, s.held) for s in samples)
    for label, figure in _HOST:
        points = [(s.time - begin, figure(s)) for s in samples]
        if max(value or 0 for _, value in points) <= highest:
            _curve(panel, points, label)
    if samples[-1].limit <= highest:
        panel.axhline(samples[-1].limit / 1e9, color="black", linestyle="--", linewidth=1, label="limit")
    _finish(panel, "GB")


def _gpu(panel: Any, samples: Sequence[Sample], index: int, begin: float) -> None:
    own = [(s.time - begin, gpu) for s in samples for gpu in s.gpus if gpu.index == index]
    for label in ("allocated", "reserved", "own", "others"):
        _curve(panel, [(at, getattr(gpu, label)) for at, gpu in own], label)
    panel.axhline(own[-1][1].total / 1e9, color="black", linestyle="--", linewidth=1, label="total")
    _finish(panel, f"cuda:{index}, GB")


def _loader(panel: Any, samples: Sequence[Sample], begin: float) -> None:
    seen = [(now.time - begin, rates(before, now)) for before, now in pairwise(samples)]
    known = [(at, found) for at, found in seen if found]
    panel.plot([at for at, _ in known], [found["loader_rows_per_second"] for _, found in known], label="rows/s")
    _finish(panel, "rows/s")
    waiting = panel.twinx()
    shares = [found["loader_wait_share"] for _, found in known]
    waiting.plot([at for at, _ in known], shares, color="tab:red", linewidth=0.8)
    waiting.set_ylim(0, 1)
    waiting.set_ylabel("part of the time that the loop waits", color="tab:red")


def _curve(panel: Any, points: Sequence[tuple[float, float | None]], label: str) -> None:
    known = [(at, value / 1e9) for at, value in points if value is not None]
    if any(value for _, value in known):
        panel.plot([at for at, _ in known], [value for _, value in known], label=label, linewidth=1.2)


def _events(panel: Any, samples: Sequence[Sample], warnings: Sequence[tuple[float, Finding]], begin: float) -> None:
    for before, now in pairwise(samples):
        if now.epoch > before.epoch:
            panel.axvline(now.time - begin, color="lightgrey", linewidth=0.6, zorder=0)
    for at, finding in warnings:
        panel.axvline(at - begin, color="tab:red", linewidth=1)
        panel.annotate(
            f"{finding.cause} ({finding.place})",
            (at - begin, 0.98),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            ha="right",
            fontsize=7,
            color="tab:red",
        )


def _finish(panel: Any, unit: str) -> None:
    panel.set_ylabel(unit)
    panel.set_ylim(bottom=0)
    panel.legend(loc="lower right", fontsize=7)
