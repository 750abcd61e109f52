"""Compares the figures of two trees of memload: benchmark scripts of both run in turn, so that the machine is the same.

python tools/pairs.py ../before . throughput first_batch --pairs 5 --out benchmarks/results/pairs.json -- --rounds 3

Each tree runs its own scripts with its own memload, which has to be built in the tree. A figure of a script is the
median of its rounds. Of each pair of runs the quotient new / old is taken, and of these the median, the least and the
greatest are printed. The first run of a pair is the old tree's in every other pair, the new tree's in the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def medians(figures: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the name and the median of each figure that a script kept with its spread."""
    for figure in figures:
        for name, value in figure.items():
            if isinstance(value, dict) and "median" in value and value["median"]:
                yield f"{figure['case']}: {name}", float(value["median"])


def figures_of(tree: Path, script: str, options: Sequence[str], out: Path) -> dict[str, float]:
    """Return the figures of one run of a script in its own tree, by name."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, str(tree / "benchmarks" / f"{script}.py"), *options, "--out", str(out)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd=tree)
    return dict(medians(json.loads(out.read_text())["figures"]))


def main() -> None:
    """Run the pairs and print the quotients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a tree with its compiled module")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("scripts", nargs="+", help="names of scripts in benchmarks/, without .py")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each tree (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where the quotients are kept as JSON")
    own, options = _split(sys.argv[1:])
    args = parser.parse_args(own)
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    kept: dict[str, dict[str, dict[str, float]]] = {}
    for script in args.scripts:
        quotients: dict[str, list[float]] = defaultdict(list)
        for number in range(args.pairs):
            with tempfile.TemporaryDirectory() as folder:
                order = ("old", "new") if number % 2 == 0 else ("new", "old")
                run = {name: figures_of(trees[name], script, options, Path(folder, f"{name}.json")) for name in order}
            for name in run["old"].keys() & run["new"].keys():
                quotients[name].append(run["new"][name] / run["old"][name])
        kept[script] = {}
        for name, found in sorted(quotients.items()):
            spread = {"median": statistics.median(found), "low": min(found), "high": max(found), "count": len(found)}
            kept[script][name] = spread
            print(
                f"{script} {name:40} {spread['median']:.3f} ({spread['low']:.2f} to {spread['high']:.2f})", flush=True
            )
        if args.out:
            args.out.write_text(json.dumps({"benchmark": "pairs", "new over old": kept}, indent=1) + "\n")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of this script, and those after ``--``, which are the benchmarks'."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    main()
