"""What `memload bench` found as a chart, and as one HTML page that needs no other file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from memload.cli.charts import BOUND, OURS, Bar, draw_bars, svg_of
from memload.cli.measure import Spread

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 0.25rem 1rem 0.25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
pre {{ overflow-x: auto; padding: 0.75rem; background: #8881; }}
svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
_MEANING = (
    "The ceiling is the same gather and cast by the same number of threads into reused memory, in native code, without "
    "a queue and without Python. FastLoader and the ceiling ran in turn; figures are medians, with the least and the "
    "greatest in brackets."
)


@dataclass(frozen=True)
class BenchLine:
    """The figures of one variant: the ceiling with each kind of store, and FastLoader's share of the better one.

    Fields whose rows differ in length or are compressed have no ceiling.
    """

    variant: str
    ordinary: Spread | None
    streaming: Spread | None
    gb_per_second: float
    loader: Spread | None
    share: Spread | None


def chart(lines: Sequence[BenchLine], whole: Sequence[BenchLine]) -> Any:
    """Return a figure of the samples per second of each variant; `whole` are those without a ceiling.

    Raises:
        ImportError: matplotlib is not installed.
    """
    groups = {_title(line): _bars(line) for line in lines}
    groups |= {f"{_title(line)}, all fields": _bars(line) for line in whole}
    return draw_bars(groups, "samples per second")


def page(dataset: object, figure: Any, lines: Sequence[BenchLine], facts: Iterable[tuple[str, str, str]]) -> str:
    """Return the HTML page.

    Args:
        dataset: what was measured; its text is shown.
        figure: the chart.
        lines: the figures of all variants.
        facts: names, values and meanings of the machine's facts.
    """
    svg = svg_of(figure)
    command = shlex.join(["memload", *sys.argv[1:]])
    rows = [_cells(line) for line in lines]
    parts = [
        "<h1>memload bench</h1>",
        f"<pre>{escape(command)}</pre>",
        svg[svg.index("<svg") :],
        f"<p>{_MEANING}</p>",
        _table(
            ("variant", "ceiling, rows/s", "GB/s", "FastLoader, rows/s", "share of the ceiling"), rows, numbers=True
        ),
        f"<h2>The data</h2><pre>{escape(str(dataset))}</pre>",
        f"<h2>The machine</h2>{_table(('fact', 'value', 'what it means for loading'), facts)}",
    ]
    return _PAGE.format(title="memload bench", body="\n".join(parts))


def write_page(path: Path, text: str) -> None:
    """Write a page; a page that was there is replaced as a whole."""
    written = path.with_name(f"{path.name}.part")
    written.write_text(text)
    written.replace(path)


def _title(line: BenchLine) -> str:
    return {"raw": "as stored", "f32": "cast to float32", "bf16": "cast to bfloat16"}.get(line.variant, line.variant)


def _bars(line: BenchLine) -> list[Bar]:
    share = "" if line.share is None else f", {line.share.median:.2f} of the ceiling"
    found = [
        ("FastLoader", line.loader, share, OURS),
        ("ceiling, streaming stores", line.streaming, "", BOUND),
        ("ceiling, ordinary stores", line.ordinary, "", BOUND),
    ]
    return [
        Bar(label, rate.median, rate.low, rate.high, f"{rate.median:,.0f}{more}", color)
        for label, rate, more, color in found
        if rate is not None
    ]


def _cells(line: BenchLine) -> tuple[str, ...]:
    best = max((rate for rate in (line.ordinary, line.streaming) if rate), key=lambda rate: rate.median, default=None)
    return (_title(line), _words(best, 0), f"{line.gb_per_second:.2f}", _words(line.loader, 0), _words(line.share, 2))


def _words(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return ""
    return f"{spread.median:,.{digits}f} ({spread.low:,.{digits}f} to {spread.high:,.{digits}f})"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return an HTML table; with `numbers`, all columns but the first are set as numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        classes = ["", *([' class="number"'] * (len(cells) - 1) if numbers else [""] * (len(cells) - 1))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, classes, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>\n" for row in rows)
    return f"<table>\n<tr>{line(heads, 'th')}</tr>\n{body}</table>"
