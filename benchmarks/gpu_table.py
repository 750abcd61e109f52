"""Makes one JSON and one table of what the GPU benchmarks found, each figure beside what it should reach.

    python gpu_table.py ALL.json gpu_cast.json gpu_copy.json ...

The table has at most 10,000 characters, so that the end of a log shows all of it; figures that are only told, without
anything that they should reach, are left out where there is no room, one benchmark after the other: those that have
other figures come first, and of these the one with the most. Ends with status 0 whatever was found: a figure
that was not met is a finding, no failure of the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOM = 10_000  # characters


def lines(part: dict[str, Any], *, told: bool) -> Iterator[str]:
    """A line for each figure and each part that failed; `told`: also for figures without anything to reach."""
    for figure in part["figures"]:
        if "error" in figure:
            yield f"  {figure['case']}: did not get to its end: {figure['error']}"[:200]
        if "found" not in figure or (figure["target"] is None and not told):
            continue
        spread, target = figure["found"], figure["target"]
        wanted = "" if target is None else f" {'<=' if figure['at_most'] else '>='} {target:g}"
        verdict = {None: "", True: " met", False: " NOT MET"}[figure["met"]]
        middle = f"{spread['median']:.3g} ({spread['low']:.3g} to {spread['high']:.3g})"
        yield f"  {figure['case']}: {figure['what']}: {middle}{wanted}{verdict}"


def told_last(part: dict[str, Any]) -> tuple[bool, int]:
    """Sorts benchmarks: those that have nothing but figures that are told lose them last."""
    targets = [figure["target"] for figure in part["figures"] if "found" in figure]
    return all(target is None for target in targets), -targets.count(None)


def table(parts: list[dict[str, Any]], missing: list[str]) -> str:
    """The table, within its room."""
    if not parts:
        head, tail = ["no benchmark found anything"], []
    else:
        gpu, machine = parts[0]["gpu"], parts[0]["machine"]
        head = [f"{gpu['name']}, {machine['cpu']}, commit {gpu['commit']}", "median (least to greatest), wanted"]
        tail = [f"{name}: missing; it has not begun, or found nothing in its time: see above" for name in missing]
    shown: list[str] = []
    briefer = sorted(parts, key=told_last)
    for count in range(len(parts) + 1):
        brief = briefer[:count]
        body = [line for part in parts for line in (part["benchmark"], *lines(part, told=part not in brief))]
        names = ", ".join(part["benchmark"] for part in brief)
        without = [f"figures without anything to reach are in the JSON alone: {names}"] if brief else []
        shown = [*head, *body, *without, *tail]
        if len("\n".join(shown)) < ROOM:
            break
    text = "\n".join(shown)
    return text if len(text) < ROOM else f"{text[: ROOM - 60]}\nand more, which the JSON has"


def main() -> None:
    merged, paths = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    parts = [json.loads(path.read_text()) for path in paths if path.exists()]
    written = merged.with_suffix(".part")
    written.write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    written.replace(merged)
    print(table(parts, [path.stem for path in paths if not path.exists()]))


if __name__ == "__main__":
    main()
