"""What all benchmarks share: their arguments, contestants in processes of their own, and the JSON that is kept.

A figure is never compared with one that was taken at another time. Contestants run in turn, each for one epoch (or a
part of it), and what is reported is the median of the quotients of the same rounds, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads import WORKLOADS, Workload

from memload.cli.measure import Epoch, Spread, held_in_memory, in_turn, machine, ratio

RESULTS = Path(__file__).parent / "results"
PREPARED = 512 << 20  # bytes taken and given back before a run in a process of its own; no ring here is larger

# The honest rival: a C library that keeps its blocks and backs them with huge pages.
RIVAL_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
    "MALLOC_TOP_PAD_": str(512 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# The rival told not to spin at OpenMP's barriers.
PASSIVE_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


def arguments(question: str, *, rounds: int, default: Sequence[str] = tuple(WORKLOADS)) -> argparse.ArgumentParser:
    """The arguments of every script."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--quick", action="store_true", help="small data and one round: shows that the script runs")
    parser.add_argument("--cache", type=Path, help="folder where data sets are made once (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds in turn (default %(default)s)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(default), metavar="W")
    parser.add_argument("--variants", nargs="+", choices=("raw", "f32", "bf16", "f32-NCHW", "bf16-NCHW"), default=None)
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: results/, with --quick: nowhere)")
    return parser


@dataclass(frozen=True)
class Case:
    """One workload and variant of a run, with the file that holds its rows."""

    workload: Workload
    variant: str
    folder: Path

    @property
    def name(self) -> str:
        """What figures are kept under."""
        return f"{self.workload.name} {self.variant}"


class Bench:
    """One run of a script: its cases, and the figures that it finds."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rounds = 1 if args.quick else args.rounds
        self.name = Path(sys.argv[0]).stem
        self.figures: list[dict[str, Any]] = []
        self.pages = "no files"
        self.about: dict[str, Any] = {}

    @contextlib.contextmanager
    def cases(self, *, held: bool = True) -> Iterator[list[Case]]:
        """Makes the data sets, keeps them in memory meanwhile, and saves the figures at the end."""
        with contextlib.ExitStack() as stack:
            cache = self.args.cache or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memload-bench-")))
            cases = []
            for name in self.args.workloads:
                workload = WORKLOADS[name].quick() if self.args.quick else WORKLOADS[name]
                folder = workload.make(cache)
                chosen = [v for v in workload.variants if self.args.variants is None or v in self.args.variants]
                cases += [Case(workload, variant, folder) for variant in chosen]
            if held:
                self.pages = stack.enter_context(held_in_memory({case.workload.shard(case.folder) for case in cases}))
            try:
                yield cases
            finally:  # of a run that was stopped, too, since its figures are as good
                if self.figures:
                    self.save()

    def add(self, case: str, text: str, **figures: Any) -> None:
        """Keeps one answer, and prints it."""
        print(f"{case:12} {text}", flush=True)
        self.figures.append({"case": case, **{name: _plain(value) for name, value in figures.items()}})

    def save(self) -> None:
        """Writes the JSON."""
        path = self.args.out or (None if self.args.quick else RESULTS / f"{self.name}.json")
        if path is None:
            return
        kept = {"benchmark": self.name, "machine": machine(), "rounds": self.rounds, "pages": self.pages, **self.about}
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        written.write_text(json.dumps({**kept, "figures": self.figures}, indent=1) + "\n")
        written.replace(path)  # a run that is stopped meanwhile leaves the figures before


def each_case(question: str, measure: Callable[[Bench, Case], None], *, rounds: int = 5) -> None:
    """A script that measures each workload and variant by itself."""
    bench = Bench(arguments(question, rounds=rounds, default=("W1", "W2", "W3", "W4")).parse_args())
    with bench.cases() as cases:
        for case in cases:
            measure(bench, case)


class Contestant:
    """A loop in a process of its own, that runs an epoch when told to.

    Args:
        case: what it runs on.
        kind: `fast`, `stock`, `ceiling`, `fresh` or `mover`.
        environment: added to this process's.
        options: passed on; see `contestant.py`.
    """

    def __init__(self, case: Case, kind: str, environment: Mapping[str, str] | None = None, **options: Any) -> None:
        job = {
            "kind": kind,
            "workload": asdict(case.workload),
            "variant": case.variant,
            "folder": str(case.folder),
            "options": options,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("contestant.py")), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.about = self.hear()

    def run(self, limit: int | None = None) -> Epoch:
        """One epoch, or its first `limit` batches, with free memory at hand.

        A hypervisor may have taken it back: 100 MB of fresh pages then cost ten times as much, whoever asks for them.
        """
        self.ask("prepare", PREPARED)
        return Epoch(**self.ask("run", limit))

    def ask(self, what: str, limit: int | None = None) -> dict[str, Any]:
        """Sends a command and returns its answer."""
        self.tell(what, limit)
        return self.hear()

    def tell(self, what: str, limit: int | None = None) -> None:
        """Sends a command, whose answer must be heard before the next."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, "limit": limit}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Waits for the answer to the last command."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant ended with status {self._process.wait()}; its own words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compete(contestants: Mapping[str, Callable[[], Epoch]], rounds: int) -> dict[str, list[Epoch]]:
    """Warms every contestant up by one run and then lets them run in turn."""
    in_turn(contestants, 1)
    return in_turn(contestants, rounds)


def rates(epochs: Sequence[Epoch]) -> list[float]:
    """Samples per second of each."""
    return [epoch.rate for epoch in epochs]


def share(ours: Sequence[Epoch], theirs: Sequence[Epoch]) -> Spread:
    """The spread of our rate over theirs, round by round."""
    return ratio(rates(ours), rates(theirs))


def _plain(value: Any) -> Any:
    if isinstance(value, (Spread, Epoch)):
        return asdict(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
