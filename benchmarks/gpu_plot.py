"""Draws what the GPU check found, each figure as a share of what it should reach: one image for each JSON.

    python gpu_plot.py results/gpu_nvidia-h100-80gb-hbm3_2026-01-31.json ...

It needs matplotlib, and writes an .svg beside each JSON, or into --out. A bar that reaches 1 met its target. Of figures
that should stay below a bound, the bound is divided by the figure. Bars end at 2, whatever is beyond. Figures without
a target are in the table alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from memload.cli.charts import OURS, THEIRS, Bar, draw_bars, svg_of

LONGEST = 2.0  # times the target; one figure far beyond would make dots of all others


def groups_of(parts: list[dict[str, Any]]) -> dict[str, list[Bar]]:
    """The bars of each benchmark that has figures with a target."""
    groups = {part["benchmark"]: [bar_of(figure) for figure in part["figures"] if is_judged(figure)] for part in parts}
    return {name: bars for name, bars in groups.items() if bars}


def is_judged(figure: dict[str, Any]) -> bool:
    """Whether a figure has a target of which it can be a share."""
    return bool(figure.get("target")) and "found" in figure


def bar_of(figure: dict[str, Any]) -> Bar:
    """The bar of a figure: how often it has what it should reach."""
    found, target = figure["found"], figure["target"]
    ends = [found[which] for which in ("median", "low", "high")]
    if figure["at_most"]:
        shares = [target / max(end, 1e-9) for end in (ends[0], ends[2], ends[1])]
    else:
        shares = [end / target for end in ends]
    shares = [min(share, LONGEST) for share in shares]
    text = f"{ends[0]:.3g}, wanted {'<=' if figure['at_most'] else '>='} {target:g}"
    return Bar(f"{figure['case']}: {figure['what']}"[:80], *shares, text, OURS if figure["met"] else THEIRS)


def image_of(path: Path) -> str:
    """The image of the figures of a check, as SVG.

    Raises:
        ValueError: no figure has anything to reach, as in a rehearsal that was cut short.
    """
    parts = json.loads(path.read_text())["parts"]
    groups = groups_of(parts)
    if not groups:
        raise ValueError(f"{path} has no figure with a target: a plot needs a check that ran")
    gpu = parts[0]["gpu"]
    return svg_of(draw_bars(groups, f"share of what it should reach; {gpu['name']}, commit {gpu['commit'][:10]}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="gpu_<device>_<date>.json of gpu_check.sh")
    parser.add_argument("--out", type=Path, help="the folder of the images (default: that of each JSON)")
    given = parser.parse_args()
    for path in given.results:
        target = (given.out or path.parent) / f"{path.stem}.svg"
        try:
            target.write_text(image_of(path))
        except ValueError as error:
            sys.exit(f"gpu_plot.py: {error}")
        print(target)


if __name__ == "__main__":
    main()
