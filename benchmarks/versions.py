"""Has a loop over local shards lost speed since an earlier version?

    python benchmarks/versions.py --old TREE --cache FOLDER

TREE is a checkout with its modules built into memload/. In turn, both versions run their own throughput.py over the
same files; what is reported is new over old of the rate, of the ceiling, and of the share of the ceiling. Without --old
this version is compared with itself, which shows the noise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from harness import Bench, arguments

from memload.cli.measure import Spread

HERE = Path(__file__).resolve().parent.parent
FIGURES = ("fast", "ceiling", "share")
Medians = dict[str, dict[str, float]]


def measured(tree: Path, options: list[str]) -> Medians:
    """Return the medians of throughput.py of a tree, by case."""
    there = {} if tree == HERE else {"PYTHONPATH": str(tree)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, str(tree / "benchmarks" / "throughput.py"), *options, "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **there})
        figures = json.loads(out.read_text())["figures"]
    return {one["case"]: {name: one[name]["median"] for name in FIGURES} for one in figures if "share" in one}


def revision(tree: Path) -> str:
    """Return the commit of a checkout; "" if it is none."""
    asked = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def main() -> None:
    parser = arguments("This version against an earlier one, over local shards", rounds=5, default=("W1", "W2", "W4"))
    parser.add_argument("--old", type=Path, default=HERE, help="a checkout of the earlier version")
    bench = Bench(parser.parse_args())
    old = bench.args.old.resolve()
    bench.about = {"old": revision(old), "new": revision(HERE)}
    options = ["--rounds", "3", "--workloads", *bench.args.workloads, *["--quick"] * bench.args.quick]
    options += ["--cache", str(bench.args.cache)] if bench.args.cache else []
    options += ["--variants", *bench.args.variants] if bench.args.variants else []
    rounds: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = defaultdict(list)
    for number in range(bench.rounds):
        if number % 2:  # so that each is first as often
            before, now = measured(old, options), measured(HERE, options)
        else:
            now, before = measured(HERE, options), measured(old, options)
        for case in now:
            rounds[case].append((before[case], now[case]))
    for case, pairs in rounds.items():
        found = {name: Spread.of([new[name] / one[name] for one, new in pairs]) for name in FIGURES}
        text = ", ".join(f"{name} {one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for name, one in found.items())
        bench.add(case, text, **found)
    bench.save()


if __name__ == "__main__":
    main()
