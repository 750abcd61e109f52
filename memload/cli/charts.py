"""Horizontal bars with their spreads, as figures of `memload bench` and of the documentation show them.

Text and lines are grey on nothing, so that they can be read on a light and on a dark page.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memload.cli.output import check_folder_of
from memload.monitoring.plots import new_figure, with_ending

GREY, OURS, THEIRS, BOUND = "#808080", "#0072B2", "#E69F00", "#999999"
"""Text; what is shown; what it is compared with; a bound. The colours are of Okabe and Ito's palette."""

_INCH_PER_BAR = 0.34
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "memload", "font.family": "sans-serif", "font.size": 10}


@dataclass(frozen=True)
class Bar:
    """A bar: its label, its length with the least and the greatest seen, the text behind it, and its colour."""

    label: str
    length: float
    low: float
    high: float
    text: str
    color: str = OURS


def draw_bars(groups: Mapping[str, Sequence[Bar]], axis_label: str) -> Any:
    """Return a figure of groups of bars below their titles.

    Raises:
        ImportError: matplotlib is not installed.
    """
    count = sum(len(bars) + 1 for bars in groups.values())
    figure = new_figure(8.5, _INCH_PER_BAR * count + 0.7)
    from matplotlib import rc_context

    with rc_context(_STYLE):
        axes = figure.add_subplot()
        _fill(axes, groups)
        axes.set_xlabel(axis_label, color=GREY)
    return figure


def svg_of(figure: Any) -> str:
    """Return a figure as an SVG image that has its texts as text; the same figure gives the same image."""
    from matplotlib import rc_context

    written = io.StringIO()
    with rc_context(_STYLE):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": "memload"})
    return written.getvalue()


def check_plot(path: Path | None, option: str) -> None:
    """Raise an error if no plot can be written to a path, the value of an option, before minutes of work.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib writes no such files.
        FileNotFoundError: the folder does not exist.
        IsADirectoryError: it is a folder itself.
        PermissionError: this process may not write there.
    """
    if path is None:
        return
    check_folder_of(path, option)
    figure = new_figure(1, 1)
    if with_ending(path).suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{option} {path}: an image ends in .png, .svg, .pdf, or another that matplotlib writes")


def save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure and return its path; the ending of `path` is the format, ".png" if it has none."""
    from matplotlib import rc_context

    target = with_ending(path)
    with rc_context(_STYLE):
        figure.savefig(target, dpi=110)
    return target


def _fill(axes: Any, groups: Mapping[str, Sequence[Bar]]) -> None:
    place = 0.0
    ticks: dict[float, str] = {}
    right = max(max(bar.high, bar.length) for bars in groups.values() for bar in bars) or 1
    for title, bars in groups.items():
        axes.text(0, place, title, color=GREY, va="center", weight="bold")
        for k, bar in enumerate(bars, 1):
            _draw_bar(axes, place + k, bar, right / 80)
            ticks[place + k] = bar.label
        place += len(bars) + 1.3
    axes.set_yticks([*ticks], ticks.values())
    axes.set_xlim(0, 1.22 * right)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(place - 0.7, -0.7)
    axes.tick_params(colors=GREY, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GREY)


def _draw_bar(axes: Any, place: float, bar: Bar, gap: float) -> None:
    axes.barh(place, bar.length, 0.7, color=bar.color)
    if bar.low < bar.high:
        axes.plot([bar.low, bar.high], [place, place], color=GREY, linewidth=1.2)
    axes.text(max(bar.high, bar.length) + gap, place, bar.text, color=GREY, va="center")
