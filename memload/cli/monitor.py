"""`memload monitor`: shows the memory of a running process live, or plots the log of a monitor."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time

from memload.monitoring.live_view import line, screen
from memload.monitoring.plots import plot_log
from memload.monitoring.processes import command_of
from memload.monitoring.samples import Sample, Sampler
from memload.monitoring.summary import Tally

_MOST_SAMPLES = 1000


def run(args: argparse.Namespace) -> int:
    """Run `memload monitor`."""
    if (args.pid is None) == (args.plot is None):
        raise ValueError("give the number of a process, or --plot and the log of a monitor")
    if args.plot is not None:
        print(plot_log(args.plot, args.out or args.plot.with_suffix(".png")))
        return 0
    if not args.interval > 0 or (args.count is not None and args.count < 1):
        raise ValueError("--interval is a number of seconds above 0, --count a number of samples, at least 1")
    return _watch(args.pid, args.interval, args.count)


def _watch(pid: int, interval: float, count: int | None) -> int:
    sampler = Sampler(pid)
    series: list[Sample] = [sampler.take()]  # raises ProcessLookupError if there is no such process
    tally, samples, cpu = Tally(series[0]), 0, time.process_time()
    view = _View(f"{pid}: {command_of(pid)}")
    try:
        while True:
            tally.add(series[-1])
            view.update(series)
            samples += 1
            if samples == count:
                break
            time.sleep(interval)
            series = [*series[-_MOST_SAMPLES:], sampler.take()]
    except ProcessLookupError:
        print(f"process {pid} has ended")
    except KeyboardInterrupt:
        print()
    print(tally.summary([], time.process_time() - cpu))
    return 0


class _View:
    """Lines that replace each other on a terminal, and follow each other elsewhere."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._lines = 0
        self._live = sys.stdout.isatty()
        if not self._live:
            print(command)

    def update(self, series: list[Sample]) -> None:
        """Show the latest of some samples."""
        if not self._live:
            print(line(series), flush=True)
            return
        lines = screen(series, self._command, shutil.get_terminal_size().columns)
        up = f"\x1b[{self._lines}F" if self._lines else ""
        sys.stdout.write(up + "".join(f"\x1b[2K{text}{os.linesep}" for text in lines) + "\x1b[J")
        sys.stdout.flush()
        self._lines = len(lines)
