"""Plans as bars: RAM, GPU and disk by cause beside the free bytes, and a monitor's log over the prediction.

plans          a panel for each kind of memory, a bar for each plan, a segment for each line of its account
plan and log   a panel for each kind of memory, a band for each line, and the measured bytes over time
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memload.monitoring.log import read_log
from memload.monitoring.plots import new_figure, with_ending
from memload.monitoring.samples import Sample
from memload.planning.account import Account, Line, size_in_words, sum_in_words
from memload.sizes import format_size

if TYPE_CHECKING:
    from memload.planning.result import Plan

_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Colours that people with colour blindness tell apart.

Source: Okabe and Ito, "Color Universal Design", https://jfly.uni-koeln.de/color/
"""

_HATCHES = ("", "//", "..")  # for more causes than colours
_WHITE_TEXT = frozenset({"#0072B2", "#009E73", "#D55E00"})  # of the colours, the dark ones
_LEGIBLE = 4  # times the longest bar: a limit further away is named, not drawn, since it would flatten the bars
_NARROW = 0.07  # of a panel's width: segments below it have no room for their size
_GAP = (
    5  # times the usual time between two samples: nothing is known of a longer one, such as of a process that stopped
)
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

Figures = Callable[[Sample], float | None]


def plot_plans(plans: Mapping[str, Plan], path: str | os.PathLike[str] | None = None) -> Any:
    """Return a figure of plans side by side, each under its name, and write it to `path` if given.

    Args:
        plans: the plans by name. For a single plan, torch's own loader has a bar as well.
        path: the file; its ending is the format, ".png" if it has none.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panels = _panels(plans)
    heights = [0.75 + 0.16 * max(3.2 * len(bars), _entries(bars)) for bars in panels.values()]
    figure = new_figure(10, sum(heights) + 0.3)
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axis, (place, bars) in zip(axes, panels.items(), strict=True):
        _draw_bars(axis, place, bars)
    return _written(figure, path)


def plot_over_log(
    plan: Plan, log: str | os.PathLike[str], name: str, path: str | os.PathLike[str] | None = None
) -> Any:
    """Return a figure of the log's last run over the prediction of a plan, and write it to `path` if given.

    RAM is the log's ``held``: memory without a file behind it, of the process and its children. A GPU's is what the
    driver counts for the process, or what the allocator reserved where the driver does not say. Disk is what the file
    system of the log has lost since the first sample, to whichever process.

    Raises:
        ImportError: matplotlib is not installed.
        FileNotFoundError, FormatError: there is no such log, or no sample in it.
    """
    samples = read_log(log)[-1].samples
    measured: list[tuple[Account, list[tuple[str, Figures]]]] = [(plan.ram, [("held", lambda s: s.held)])]
    gpus = sorted({gpu.index for sample in samples for gpu in sample.gpus})
    if plan.gpu is not None and gpus:
        measured.append((plan.gpu, [(f"cuda:{index}", _on_gpu(index)) for index in gpus]))
    if plan.disk is not None and any(sample.disk_free is not None for sample in samples):
        measured.append((plan.disk, [("taken", _on_disk(samples))]))
    figure = new_figure(10, 3.4 * len(measured) + 0.3)
    axes = figure.subplots(len(measured), 1, squeeze=False, sharex=True)[:, 0]
    for axis, (account, curves) in zip(axes, measured, strict=True):
        _draw_bands(axis, account, samples, curves)
        axis.set_title(f"{account.place}: {name}", loc="left", fontsize=11)
    axes[-1].set_xlabel("seconds")
    return _written(figure, path)


def _panels(plans: Mapping[str, Plan]) -> dict[str, dict[str, Account]]:
    """Return the accounts of plans by place and name."""
    panels: dict[str, dict[str, Account]] = {}
    for name, plan in plans.items():
        for account in plan.accounts:
            panels.setdefault(account.place, {})[name] = account
    if len(plans) == 1:
        (plan,) = plans.values()
        panels[plan.ram.place]["stock loader"] = plan.stock
    return panels


def _entries(bars: Mapping[str, Account]) -> int:
    return len(_styles(bars.values()))


def _styles(accounts: Any) -> dict[str, dict[str, str]]:
    """Return colour and hatch of each cause, the same in all accounts of a panel."""
    names = dict.fromkeys(
        line.name for account in accounts for line in account.lines if line.predicted or not line.known
    )
    return {
        name: {"facecolor": _COLORS[k % len(_COLORS)], "hatch": _HATCHES[k // len(_COLORS) % len(_HATCHES)]}
        for k, name in enumerate(names)
    }


def _draw_bars(axis: Any, place: str, bars: Mapping[str, Account]) -> None:
    styles = _styles(bars.values())
    longest = max(account.predicted for account in bars.values())
    frees = {account.free: account for account in bars.values() if account.free is not None}
    near = [free for free in frees if 0 < free <= _LEGIBLE * longest]
    width = max([longest, *near]) * 1.12 or 1
    scale, unit = _unit(width)
    for row, account in enumerate(bars.values()):
        _draw_bar(axis, row, account, styles, width / scale, scale)
    for free in near:
        axis.axvline(free / scale, color="black", linestyle="--", linewidth=1.4, gid="free")
    axis.set_xlim(0, width / scale)
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.set_yticks(range(len(bars)), list(bars))
    axis.set_xlabel(unit)
    axis.set_title(place, loc="left", fontsize=11, fontweight="bold")
    axis.set_title(_free_text(frees, near), loc="right", fontsize=9)
    _clean(axis)
    _legend(
        axis, _handles(styles, bars), " | ".join(name.replace("\n", ", ") for name in bars) if len(bars) > 1 else ""
    )


def _draw_bar(
    axis: Any, row: int, account: Account, styles: Mapping[str, Mapping[str, str]], width: float, scale: float
) -> None:
    at = 0.0
    for line in (one for one in account.lines if one.counted and one.predicted):
        size = line.predicted / scale
        style = styles[line.name]
        axis.barh(row, size, left=at, height=0.62, edgecolor="white", linewidth=0.8, label=line.name, **style)
        if size > _NARROW * width:
            text = "white" if style["facecolor"] in _WHITE_TEXT else "black"
            axis.text(at + size / 2, row, format_size(line.predicted), ha="center", va="center", fontsize=8, color=text)
        at += size
    for line in (one for one in account.lines if not one.counted and one.predicted):
        size = line.predicted / scale  # memory that gives way: an outline, cut off at the panel's edge
        outline = {"fill": False, "hatch": "////", "edgecolor": "#aaaaaa", "linewidth": 0.8}
        axis.barh(row, size, left=at, height=0.62, label=f"{line.name}, not counted", clip_on=True, **outline)
        at += size
    missing = account.left is not None and account.left < 0
    verdict = f", {'may' if account.is_bound else 'does'} not fit" if missing else ""
    sum_text = f"{sum_in_words(account)}{verdict}"
    wide = account.predicted / scale > 0.25 * width  # the sum stands at the bar's end, or begins where the bar does
    axis.annotate(
        sum_text, (account.predicted / scale if wide else 0, row - 0.31), xytext=(-2 if wide else 2, 1),
        textcoords="offset points", ha="right" if wide else "left", va="bottom", fontsize=8, fontweight="bold",
        color="#B22200" if missing else "black",
    )  # fmt: skip


def _free_text(frees: Mapping[int, Account], near: Sequence[int]) -> str:
    """Return the free bytes, and the limit that sets them."""
    parts = []
    for free, account in frees.items():
        limit = f" ({account.limit})" if account.limit else ""
        line = "dashed line: " if free in near else ""
        parts.append(f"{line}{format_size(max(0, free))} free{limit}")
    return ", ".join(dict.fromkeys(parts)) or "free bytes unknown"


def _total(lines: list[Line]) -> Line | None:
    """Return the line of one name, or the sum of those of several data sets; None if there is none."""
    return replace(lines[0], predicted=sum(one.predicted for one in lines)) if lines else None


def _handles(styles: Mapping[str, Mapping[str, str]], bars: Mapping[str, Account]) -> list[Any]:
    """Return the entries of a legend, with the bytes of each cause in each bar."""
    from matplotlib.patches import Patch

    handles = []
    for name, style in styles.items():
        found = [_total([one for one in account.lines if one.name == name]) for account in bars.values()]
        sizes = " | ".join("-" if one is None else _size(one) for one in found)
        counted = all(one.counted for one in found if one is not None)
        look: dict[str, Any] = {**style, "edgecolor": "white"} if counted else _OUTLINE
        handles.append(Patch(label=f"{name}: {sizes}", **look))
    return handles


_OUTLINE: dict[str, Any] = {"fill": False, "hatch": "////", "edgecolor": "#aaaaaa"}


def _size(line: Line) -> str:
    if not line.known:
        return "unknown"
    size = size_in_words(line.predicted, line.bound)
    return size if line.counted else f"({size})"


def _draw_bands(axis: Any, account: Account, samples: Sequence[Sample], curves: Sequence[tuple[str, Figures]]) -> None:
    lines = tuple(sorted(account.lines, key=lambda one: one.name != "process"))  # which is there from the beginning
    account = replace(account, lines=lines)
    styles = _styles([account])
    begin = samples[0].time
    points = {name: [(s.time - begin, value) for s in samples if (value := of(s)) is not None] for name, of in curves}
    highest = max([account.predicted, *(value for one in points.values() for _, value in one)])
    near = account.free is not None and account.free <= _LEGIBLE * highest
    top = max(highest, account.free or 0 if near else 0) * 1.1
    scale, unit = _unit(top)
    at = 0.0
    for line in (one for one in account.lines if one.counted and one.predicted):
        size = line.predicted / scale
        axis.axhspan(at, at + size, alpha=0.55, edgecolor="white", linewidth=0.8, label=line.name,
                     facecolor=styles[line.name]["facecolor"], hatch=styles[line.name]["hatch"])  # fmt: skip
        at += size
    axis.axhline(at, color="#444444", linewidth=1.2, linestyle=":", gid="predicted")
    drawn = [
        axis.plot(*_with_gaps([x for x, _ in one], [y / scale for _, y in one]), color="black", linewidth=2, gid=name,
                  linestyle=("-", "--", "-.", ":")[k % 4],
                  label=f"{name}, measured: at most {format_size(max(y for _, y in one))}")[0]
        for k, (name, one) in enumerate(points.items()) if one
    ]  # fmt: skip
    if near and account.free is not None:
        axis.axhline(account.free / scale, color="black", linestyle="--", linewidth=1.4, gid="free")
    axis.set_ylim(0, top / scale)
    axis.set_xlim(0, max(samples[-1].time - begin, 1e-3))
    axis.set_ylabel(unit)
    frees = {} if account.free is None else {account.free: account}
    free_text = _free_text(frees, [account.free] if near and account.free else [])
    axis.set_title(f"{sum_in_words(account)} predicted (dotted), {free_text}", loc="right", fontsize=9)
    _clean(axis)
    handles = [*drawn, *reversed(_handles(styles, {account.place: account}))]  # in the order of the bands
    _legend(axis, handles)


def _with_gaps(seconds: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points of a curve, with a point that is not drawn where samples are missing between two of them."""
    steps = [after - before for before, after in itertools.pairwise(seconds)]
    usual = sorted(steps)[len(steps) // 2] if steps else 0.0
    x, y = list(seconds[:1]), list(values[:1])
    for step, second, value in zip(steps, seconds[1:], values[1:], strict=True):
        if step > _GAP * usual:
            x.append(second)
            y.append(math.nan)
        x.append(second)
        y.append(value)
    return x, y


def _on_gpu(index: int) -> Figures:
    def taken(sample: Sample) -> float | None:
        found = next((gpu for gpu in sample.gpus if gpu.index == index), None)
        return None if found is None else found.own if found.own is not None else found.reserved

    return taken


def _on_disk(samples: Sequence[Sample]) -> Figures:
    before = next(sample.disk_free for sample in samples if sample.disk_free is not None)

    def taken(sample: Sample) -> float | None:
        return None if sample.disk_free is None else max(0.0, float(before - sample.disk_free))

    return taken


def _unit(nbytes: float) -> tuple[float, str]:
    return next(((scale, name) for scale, name in _UNITS if nbytes >= scale), (1.0, "bytes"))


def _legend(axis: Any, handles: list[Any], title: str = "") -> None:
    axis.legend(handles=handles, title=title or None, loc="upper left", bbox_to_anchor=(1.01, 1.0),
                         fontsize=8, title_fontsize=8, alignment="left", frameon=False)  # fmt: skip


def _clean(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=9)


def _written(figure: Any, path: str | os.PathLike[str] | None) -> Any:
    if path is not None:
        figure.savefig(with_ending(path), dpi=130, facecolor="white")
    return figure
