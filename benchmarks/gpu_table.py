"""One table of what the GPU benchmarks found, each figure beside what it should reach.

    python gpu_table.py gpu_cast.json gpu_copy.json ...

Ends with status 0 whatever was found: a figure that was not met is a finding, no failure of the run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def lines(found: dict[str, Any]) -> Iterator[str]:
    for figure in found["figures"]:
        if "error" in figure:
            yield f"{found['benchmark']:13} {figure['case']:22} did not get to its end: {figure['error']}"
        if "found" not in figure:
            continue
        spread, target = figure["found"], figure["target"]
        wanted = "" if target is None else f"{'<=' if figure['at_most'] else '>='} {target:g}"
        verdict = {None: "", True: "met", False: "NOT MET"}[figure["met"]]
        middle = f"{spread['median']:8.3g} {spread['low']:8.3g} {spread['high']:8.3g}"
        yield f"{found['benchmark']:13} {figure['case']:22} {figure['what']:62} {middle}  {wanted:8} {verdict}"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    if results:
        print(f"{results[0]['gpu']['name']}, {results[0]['machine']['cpu']}")
        print(f"{'benchmark':13} {'case':22} {'figure':62} {'median':>8} {'low':>8} {'high':>8}  wanted")
    for found in results:
        print(*lines(found), sep="\n")
    for path in paths:
        if not path.exists():
            print(f"{path.name}: missing; the benchmark has not begun, or found nothing in its time: see above")


if __name__ == "__main__":
    main()
