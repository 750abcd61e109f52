"""Is what memload states beforehand what a run takes?

Each case states a figure in a fresh process, runs in another one, and is watched from outside: the peak of the memory
that no file backs, of the process and its children, shared pages counted once. A case with a limit runs in a control
group of that size. A row of the answer: {case, predicted, measured, ratio, limit, date}. Cases are in `CASES`, which
other modules (`truth_*.py`) fill.

    python benchmarks/memory_truth.py                         # all cases -> results/memory_truth.json
    python benchmarks/memory_truth.py --only "train" "graphs" # those whose names begin so; other rows are kept
    python benchmarks/memory_truth.py --table docs/memory-truth.md  # the table of the docs, from the JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import RESULTS, Bench, arguments
from truth_case import Case
from truth_data import CASES as DATA
from truth_graphs import CASES as GRAPHS
from truth_limits import CASES as LIMITS
from truth_sets import CASES as SETS
from truth_training import CASES as TRAINING
from truth_transforms import CASES as TRANSFORMS

from memload.cli.measure import Spread
from memload.memory import budget
from memload.monitoring.processes import family, proportional
from memload.sizes import format_size

CASES: list[Case] = [*DATA, *TRAINING, *TRANSFORMS, *SETS, *GRAPHS, *LIMITS]
EVERY = 0.002  # seconds between two samples
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}  # beside other programs, threads that spin at barriers take ten times as long
BEGIN, END = "<!-- made by benchmarks/memory_truth.py --table -->", "<!-- end of the table -->"


def peak_of(process: subprocess.Popen[Any]) -> int:
    """The peak of a process and its children until it ends."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, _held(process.pid))
        time.sleep(EVERY)
    return peak


def _held(pid: int) -> int:
    """Bytes that no file backs; one file of /proc is read for a process without children."""
    pids = family(pid)
    if len(pids) > 1:
        found = proportional(pids)
        return found.held or 0 if found else 0
    try:
        status = budget.parse_meminfo(Path(f"/proc/{pid}/status").read_text())
    except OSError:  # it ended meanwhile
        return 0
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


@contextlib.contextmanager
def group_of(limit: int | None) -> Iterator[Path | None]:
    """The file to which a process writes its number to have this limit; None without one.

    Raises:
        OSError: this user may make no control group here.
    """
    if limit is None:
        yield None
        return
    groups = budget.parse_groups(Path("/proc/self/cgroup").read_text())
    version = "memory" if "memory" in groups else ""
    group = Path("/sys/fs/cgroup", version, groups[version].strip("/"), f"memload-truth-{os.getpid()}")
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version else "memory.max")).write_text(str(limit))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def stated(case: Case, folder: Path) -> dict[str, Any]:
    """What a fresh process states before the run; nothing if the run states it."""
    if case.predict is None:
        return {}
    command = [sys.executable, __file__, "--child", "predict", case.name, str(folder)]
    environment = {**os.environ, **WAITING, **case.environment}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """One run of a case: what was stated, and the peak."""
    told = stated(case, folder)
    limit = told.get("limit", case.limit)
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    with group_of(limit) as procs:
        command = [sys.executable, __file__, "--child", "run", case.name, str(folder)]
        if procs:  # before anything is imported, since memory stays with the group in which it was taken
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *command]
        process = subprocess.Popen(command, env={**os.environ, **WAITING, **case.environment})
        peak = peak_of(process)
    if process.returncode == 0:
        told.update(json.loads(answer.read_text()))
    survived = process.returncode == 0
    if not survived:
        print(f"{case.name} ended with status {process.returncode}", file=sys.stderr)
    return {"predicted": told.get("predicted"), "measured": peak, "limit": limit, "survived": survived}


def child(kind: str, name: str, folder: Path) -> None:
    """What a fresh process does: states a figure, or runs."""
    case = next(one for one in CASES if one.name == name)
    if kind == "predict":
        assert case.predict is not None
        print(json.dumps(case.predict(folder)))
        return
    (folder / "answer.json").write_text(json.dumps(case.run(folder) or {}))


def add(bench: Bench, case: Case, folder: Path) -> None:
    """Measures a case in all rounds, and keeps its row."""
    case.make(folder)
    rounds = [measure(case, folder) for _ in range(bench.rounds)]
    survived = all(one["survived"] for one in rounds)
    ratio = Spread.of((one["predicted"] or 0) / one["measured"] for one in rounds)
    last = max(rounds, key=lambda one: one["measured"])
    text = f"{format_size(last['predicted'] or 0)} stated, {format_size(last['measured'])} taken, ratio {ratio}"
    if last["limit"]:
        text += f", limit {format_size(last['limit'])}{'' if survived else ': KILLED'}"
    today = datetime.now(UTC).date().isoformat()
    bench.add(case.name, text, **{**last, "survived": survived, "ratio": ratio, "says": case.says, "date": today})


def row_of(figure: dict[str, Any]) -> str:
    """A row of the table of the docs; of a run that was to fill its limit, the share of it that was used."""
    limit = "" if figure["limit"] is None else format_size(figure["limit"])
    if figure["case"].startswith("limit:"):
        limit = f"{figure['measured'] / figure['limit']:.2f} of {limit}"
    ended = limit if figure["survived"] else f"{limit}, killed"
    of_rounds = figure["ratio"]
    spread = f" ({of_rounds['low']:.2f} to {of_rounds['high']:.2f})" if of_rounds["count"] > 1 else ""
    ratio = f"{of_rounds['median']:.2f}{spread}"
    predicted, measured = (format_size(figure[name] or 0) for name in ("predicted", "measured"))
    return f"| {figure['case'].strip()} | {predicted} | {measured} | {ratio} | {ended} | {figure['date']} |"


def table(page: Path, kept: Path) -> None:
    """Writes the table of a page of the docs between its two marks."""
    rows = [row_of(figure) for figure in json.loads(kept.read_text())["figures"]]
    head = ["| Case | Predicted | Measured | Predicted / measured | Limit | Day |", "|---|---|---|---|---|---|"]
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text("\n".join([before + BEGIN, "", *head, *rows, "", END + after]))


def save(bench: Bench) -> None:
    """Keeps the rows so far beside those of cases that exist and were not measured this time."""
    measured, path = bench.figures, bench.args.out or RESULTS / f"{bench.name}.json"
    order = [case.name for case in CASES]
    others = set(order) - {row["case"] for row in measured}
    rows = json.loads(path.read_text())["figures"] if path.exists() else []
    kept = [*(row for row in rows if row["case"] in others), *measured]
    bench.figures = sorted(kept, key=lambda row: order.index(row["case"]))
    bench.save()
    bench.figures = measured


def main() -> None:
    parser = arguments("is what memload states what a run takes", rounds=3)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="cases whose names begin so")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the table of a page from the JSON, and end")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, name, folder = args.child
        child(kind, name, Path(folder))
        return
    if args.table:
        table(args.table, args.out or RESULTS / "memory_truth.json")
        return
    bench = Bench(args)
    chosen = [case for case in CASES if case.name.startswith(tuple(args.only)) and (case.quick or not args.quick)]
    for case in chosen:
        with tempfile.TemporaryDirectory(prefix="memload-truth-", dir=args.cache) as folder:
            add(bench, case, Path(folder))
        save(bench)


if __name__ == "__main__":
    main()
