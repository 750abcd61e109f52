"""What does it cost to have memory watched once a second: how much of one core, and how much of a loop's speed?

The share of one core is the CPU time of the monitor's thread, by the kernel's clock for that thread, over the time that
it ran; the ceiling is 0.5 %. It is measured in a small process, and in one that is costly to look at: gigabytes on
small pages, whose page tables the kernel walks for PSS, shared with forked children. One look of each kind is timed,
too. The speed is that of a loop over rows in memory with a monitor beside it, over that without, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from harness import Bench, arguments

import memload
from memload.cli.measure import Spread, in_turn, ratio, run_epoch
from memload.monitoring.samples import Sampler

CEILING = 0.005
NO_HUGE_PAGES = 15  # MADV_NOHUGEPAGE


@contextlib.contextmanager
def costly(nbytes: int, children: int) -> Iterator[None]:
    """Memory on small pages, and children that share it."""
    with mmap.mmap(-1, nbytes) as block:
        block.madvise(NO_HUGE_PAGES)
        for at in range(0, nbytes, mmap.PAGESIZE):
            block[at] = 1
        pids = [fork_sleeper() for _ in range(children)]
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def fork_sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def share_of_a_core(seconds: float, folder: Path) -> float:
    monitor = memload.Monitor(interval=1, log=folder / "mem.jsonl", show=False)
    with monitor:
        time.sleep(seconds)
    assert monitor.summary is not None
    return monitor.summary.overhead


def look_seconds(at_once: bool, looks: int) -> list[float]:
    sampler = Sampler(folder=Path.cwd())
    sampler.take(at_once=True)
    taken = []
    for _ in range(looks):
        begun = time.thread_time()
        sampler.take(at_once=at_once)
        taken.append(time.thread_time() - begun)
    return taken


def measure(bench: Bench, case: str, folder: Path) -> None:
    quick = bench.args.quick
    shares = [share_of_a_core(1.2 if quick else 20.5, folder) for _ in range(bench.rounds)]
    plain, close = look_seconds(False, 20), look_seconds(True, 2 if quick else 5)
    of_ceiling = ratio(shares, [CEILING] * len(shares))
    text = (
        f"{Spread.of(shares).median:.3%} of one core, {of_ceiling.median:.2f} of the ceiling of {CEILING:.1%}; a look "
        f"{Spread.of(plain).median * 1e3:.2f} ms, with PSS {Spread.of(close).median * 1e3:.1f} ms"
    )
    figures = {"share": Spread.of(shares), "of_ceiling": of_ceiling}
    bench.add(case, text, **figures, look=Spread.of(plain), close_look=Spread.of(close))


def loop_speed(bench: Bench, folder: Path) -> None:
    quick = bench.args.quick
    rows = torch.zeros(400 if quick else 4000, 3 * 128 * 128, dtype=torch.uint8)
    dataset = memload.from_arrays(x=rows)
    loader: Any = memload.FastLoader(dataset, 32, shuffle=True, num_workers=2, persistent_workers=True)

    def epochs() -> float:
        begun, samples = time.perf_counter(), 0
        while time.perf_counter() - begun < (0.2 if quick else 3.0):
            samples += run_epoch(loader).samples
        return samples / (time.perf_counter() - begun)

    def watched() -> float:
        with memload.Monitor(interval=1, log=folder / "mem.jsonl", show=False):
            return epochs()

    contestants = {"alone": epochs, "watched": watched}
    in_turn(contestants, 1)
    rates = in_turn(contestants, bench.rounds)
    share = ratio(rates["watched"], rates["alone"])
    text = f"{share.median:.3f} ({share.low:.3f} to {share.high:.3f}) of the speed without a monitor"
    bench.add("a loop", text, of_alone=share, alone=Spread.of(rates["alone"]))


def main() -> None:
    parser: argparse.ArgumentParser = arguments("what a monitor costs", rounds=3, default=())
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the process that is costly to look at")
    bench = Bench(parser.parse_args())
    nbytes = int((0.1 if bench.args.quick else bench.args.gigabytes) * 1e9)
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as made:
        folder = Path(made)
        measure(bench, "small", folder)
        with costly(nbytes, children=4):
            measure(bench, f"{nbytes / 1e9:g} GB", folder)
        loop_speed(bench, folder)
    bench.save()


if __name__ == "__main__":
    main()
