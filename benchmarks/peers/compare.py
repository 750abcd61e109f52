"""How many images does each data loader hand out in a second? Each in an environment of its own, bit-checked, in turn.

    benchmarks/peers/all.sh FOLDER                           # all that follows, in one command
    python benchmarks/peers/environments.py FOLDER           # once: an environment for each peer
    python benchmarks/peers/compare.py FOLDER --search       # the best setting of each, kept in FOLDER/best.json
    python benchmarks/peers/compare.py FOLDER --json benchmarks/results/peers.json

Rows are random images of 224 x 224 x 3 uint8 in the page cache, wanted as (x - 127) / 255 in float32, in shuffled
batches of 64. The search tries a peer's settings, first the one that its authors recommend, and compares an epoch of
each bit for bit; then all peers run in turn, round by round. Peers may be named behind FOLDER, to do a part at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from environments import installed, python_of, reason
from known import PEERS
from loops import LOOPS, SHAPE

HERE = Path(__file__).resolve().parent
# torch with a C library that keeps its blocks, on huge pages: the tuning that helps a stock loader most.
TUNED = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
    "MALLOC_TOP_PAD_": str(512 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
VARIANTS = {"torch, tuned allocator": ("torch", TUNED)}


class Contestant:
    """A process of a peer."""

    def __init__(self, folder: Path, data: Path, name: str) -> None:
        self.peer, tuning = VARIANTS.get(name, (name, {}))
        environment = {**os.environ, **tuning, "HF_HOME": str(data), "PYTHONWARNINGS": "ignore"}
        environment.pop("PYTHONPATH", None)
        command = [python_of(folder, self.peer), HERE / "contestant.py", self.peer, data]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": (data / f"{name}.log").open("w")}
        self.process = subprocess.Popen([*map(str, command)], env=environment, text=True, **pipes)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def contestant(folder: Path, data: Path, name: str) -> Iterator[Contestant]:
    one = Contestant(folder, data, name)
    try:
        yield one
    finally:
        one.close()


def data_in(folder: Path, rows: int) -> Path:
    """The folder with the reference, made once."""
    data = folder / f"data-{rows}"
    if not (data / "images.npy").exists():
        data.mkdir(exist_ok=True)
        np.save(data / "images.npy", np.random.default_rng(0).integers(0, 256, (rows, *SHAPE), np.uint8))
    return data


def search(folder: Path, data: Path, name: str, seconds: float) -> dict[str, Any]:
    """Prepare a peer's data, check what it gives, and return the rates of its settings and the best of them."""
    with contestant(folder, data, name) as one:
        if not (data / one.peer).exists() and "error" in (said := one.ask("prepare")):
            return said
        tried = []
        for setting in one.ask("settings")["settings"]:
            if "error" in (said := one.ask("set", setting=setting)) or "error" in (said := one.ask("check")):
                tried.append({"setting": setting, **said})
                continue
            tried.append({"setting": setting, **said, **one.ask("run", seconds=seconds)})
    working = [one for one in tried if one.get("agrees") and "rate" in one]
    best = max(working, key=lambda one: one["rate"])["setting"] if working else None
    return {"recommended": tried[0]["setting"], "best": best, "tried": tried}


def rounds(
    folder: Path, data: Path, found: dict[str, Any], count: int, seconds: float, kinds: Sequence[str]
) -> dict[str, Any]:
    """Run all peers in turn, at the best setting and, if asked for, at the recommended one; return their rates."""
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        running = {}
        for name, one in found.items():
            for kind in kinds:
                if one.get(kind) is None or (kind == "recommended" and one[kind] == one["best"]):
                    continue
                process = stack.enter_context(contestant(folder, data, name))
                said = process.ask("set", setting=one[kind]) | process.ask("check") | process.ask("run", seconds=0.01)
                if "error" not in said and said["agrees"]:
                    running[name, kind] = process
                    kept = {"setting": one[kind], "identical": said["identical"], "rates": []}
                    results.setdefault(name, {})[kind] = kept
        for turn in range(count):
            for name, kind in list(running)[:: 1 if turn % 2 == 0 else -1]:
                said = running[name, kind].ask("run", seconds=seconds)
                results[name][kind]["rates"].append(said.get("rate"))
                results[name][kind]["peak"] = said.get("peak")
    return results


def table(results: dict[str, Any]) -> str:
    """The medians, with the least and the greatest, and the share of memload's in the same rounds."""
    ours = results.get("memload", {}).get("best", {}).get("rates")
    lines = []
    for name, kinds in results.items():
        for kind, one in kinds.items():
            rates = [rate for rate in one["rates"] if rate]
            title = PEERS[name].title if name in PEERS else name
            share = ""
            if ours and rates:
                shares = sorted(a / b for a, b in zip(ours, one["rates"], strict=True) if b)
                share = f"{statistics.median(shares):.1f} ({shares[0]:.1f} to {shares[-1]:.1f})"
            lines.append(f"{title:28} {kind:12} {statistics.median(rates):8,.0f} {share:22} {one['setting']}")
    return "\n".join(lines)


def versions_of(folder: Path, name: str) -> dict[str, str]:
    """The versions of torch, numpy and the peer's own packages."""
    peer = VARIANTS.get(name, (name,))[0]
    wanted = {"torch", "numpy", *(package.replace("-", "_") for package in PEERS[peer].packages)}
    there = installed(folder, peer) or {}
    return {package: version for package, version in there.items() if package.replace("-", "_") in wanted}


def machine() -> dict[str, Any]:
    """The date and the processor, which belong to the figures."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"date": datetime.now(timezone.utc).date().isoformat(), "cpu": model, "cpus": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="that of environments.py; the data go there, too")
    parser.add_argument("names", nargs="*", help="peers (default: all that are installed)")
    parser.add_argument("--search", action="store_true", help="look for the best settings")
    parser.add_argument("--rows", type=int, default=1024, help="images (default %(default)s: 154 MB)")
    parser.add_argument("--recommended", action="store_true", help="rounds for the recommended settings, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run (default %(default)s)")
    parser.add_argument("--json", type=Path, help="keep all figures there")
    args = parser.parse_args()
    known = [*LOOPS, *VARIANTS]
    there = [name for name in known if installed(args.folder, VARIANTS.get(name, (name,))[0])]
    names = args.names or there
    data, kept = data_in(args.folder, args.rows), args.folder / "best.json"
    best = json.loads(kept.read_text()) if kept.exists() else {}
    if args.search:
        for name in names:
            best[name] = search(args.folder, data, name, args.seconds)
            kept.write_text(json.dumps(best, indent=1))
            print(name, json.dumps(best[name].get("best")), best[name].get("error", ""), flush=True)
        return
    found = {name: best[name] for name in names if name in best}
    kinds = ("best", "recommended") if args.recommended else ("best",)
    results = rounds(args.folder, data, found, args.rounds, args.seconds, kinds)
    print(table(results))
    if args.json:
        failed = {path.stem: reason(path.read_text()) for path in args.folder.glob("*.failed")}
        versions = {name: versions_of(args.folder, name) for name in results}
        about = {"rows": args.rows, "batch": 64, "seconds": args.seconds, "versions": versions, **machine()}
        kept_figures = {"about": about, "results": results, "search": found, "not_installed": failed}
        args.json.write_text(json.dumps(kept_figures, indent=1))


if __name__ == "__main__":
    main()
