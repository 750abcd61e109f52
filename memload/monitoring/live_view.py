"""The memory of a process as lines of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from memload.monitoring.samples import Sample
from memload.sizes import format_size

_BLOCKS = " ▁▂▃▄▅▆▇█"
_TREND_SECONDS = 60.0


def screen(series: Sequence[Sample], command: str, width: int) -> list[str]:
    """Return the lines that a terminal of `width` columns shows after the latest sample."""
    now = series[-1]
    lines = [
        f"{command[: width - 1]}",
        f"held     {format_size(now.held):>9}   {trend(series)}   {bar(now.share, 20)} {now.share:.0%} of "
        f"{format_size(now.limit)} taken",
        f"RSS      {format_size(now.rss):>9}   PSS {_pss(now)}   processes {now.processes}",
        f"cache    {format_size(now.page_cache):>9}   available {format_size(now.available)}"
        + ("" if now.group_used is None else f"   control group {format_size(now.group_used)}"),
    ]
    for gpu in now.gpus:
        own = "unknown" if gpu.own is None else format_size(gpu.own)
        others = "" if gpu.others is None else f"   others {format_size(gpu.others)}"
        lines.append(
            f"GPU {gpu.index}    {own:>9}{others}   {bar(gpu.share, 20)} {gpu.share:.0%} of {format_size(gpu.total)}"
        )
    lines.append(f"held     {curve([sample.held for sample in series], width - 10)}")
    return [line[: width - 1] for line in lines]


def line(series: Sequence[Sample]) -> str:
    """Return the latest sample as one line, for output that is not a terminal."""
    now = series[-1]
    pss = "" if now.pss is None else f" PSS {_pss(now)}"
    gpus = "".join(f" GPU{gpu.index} {format_size(gpu.own or 0)}" for gpu in now.gpus)
    return (
        f"{now.time - series[0].time:8.1f} s  held {format_size(now.held)} RSS {format_size(now.rss)}{pss} "
        f"processes {now.processes} taken {now.share:.0%} of {format_size(now.limit)}{gpus}"
    )


def trend(series: Sequence[Sample]) -> str:
    """Return the change of `held` within the last minute, per minute."""
    now = series[-1]
    first = next(sample for sample in series if sample.time >= now.time - _TREND_SECONDS)
    seconds = now.time - first.time
    if seconds <= 0:
        return "+0 B/min"
    grown = (now.held - first.held) / seconds * 60
    return f"{'-' if grown < 0 else '+'}{format_size(abs(grown))}/min"


def bar(share: float, width: int) -> str:
    """Return a share from 0 to 1 as a bar."""
    full = round(min(1.0, max(0.0, share)) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


def curve(values: Sequence[int], width: int) -> str:
    """Return the latest values as blocks of different heights; a flat line where they hardly differ."""
    shown = values[-max(1, width) :]
    low, high = min(shown), max(shown)
    if high - low <= 0.01 * high:
        return _BLOCKS[1] * len(shown)
    return "".join(_BLOCKS[1 + (value - low) * (len(_BLOCKS) - 2) // (high - low)] for value in shown)


def _pss(now: Sample) -> str:
    """Return PSS, and its age if it is older than the other figures."""
    if now.pss is None:
        return "not permitted"
    return format_size(now.pss) + (f" ({now.pss_age:.0f} s ago)" if now.pss_age >= 0.5 else "")
