"""Prints the tables of docs/peers.md from the figures that compare.py kept.

python benchmarks/peers/page.py [benchmarks/results/peers.json]
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from known import PEERS

RESULTS = Path(__file__).resolve().parent.parent / "results" / "peers.json"


def rows(kept: dict[str, Any]) -> list[str]:
    """A line for each peer, the fastest first: its rate, memload's beside it, the recommended setting, memory."""
    ours = kept["results"]["memload"]["best"]["rates"]
    lines = []
    for name, kinds in kept["results"].items():
        rates, peer = kinds["best"]["rates"], PEERS.get(name)
        shares = sorted(a / b for a, b in zip(ours, rates, strict=True))
        recommended = kept["search"][name]["tried"][0]
        cells = (
            peer.title if peer else name,
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
            "" if name == "memload" else f"{statistics.median(shares):.1f} ({shares[0]:.1f} to {shares[-1]:.1f})",
            _setting(kinds["best"]["setting"]),
            "the same"
            if recommended["setting"] == kinds["best"]["setting"]
            else f"{recommended['rate']:,.0f} ({_setting(recommended['setting'])})",
            f"{kinds['best']['peak'] / 1e6:,.0f} MB",
        )
        lines.append((statistics.median(rates), f"| {' | '.join(cells)} |"))
    return [line for _, line in sorted(lines, reverse=True)]


def _setting(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "default"


def speed(kept: dict[str, Any]) -> str:
    heads = (
        "",
        "images/s",
        "memload, times as fast",
        "best setting",
        "as recommended, images/s",
        "peak memory",
    )
    align = "| --- | ---: | ---: | --- | ---: | ---: |"
    return "\n".join([f"| {' | '.join(heads)} |", align, *rows(kept)])


def beside() -> str:
    lines = [f"| {peer.title} | {peer.reads} | {peer.beside} |" for name, peer in PEERS.items() if name != "memload"]
    return "\n".join(["| | form of the data here | what it can do beside |", "| --- | --- | --- |", *lines])


if __name__ == "__main__":
    kept_results = json.loads(Path(*(sys.argv[1:2] or [RESULTS])).read_text())
    print(speed(kept_results), beside(), sep="\n\n")
