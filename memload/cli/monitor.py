"""`memload monitor`: shows the memory of a running process live, or plots the log of a monitor."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator

from memload.cli.charts import check_plot
from memload.cli.output import answer, is_json, print_line, say
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
        if args.out and args.out.suffix not in ("", ".png"):
            raise ValueError(f"--out {args.out}: the plot is a PNG; end its name in .png")
        check_plot(args.out or args.plot.with_suffix(".png"), "--out")
        drawn = plot_log(args.plot, args.out or args.plot.with_suffix(".png"))
        answer(args, drawn, {"log": args.plot, "drawn": drawn})
        return 0
    if args.out is not None:
        raise ValueError(f"--out {args.out}: where the plot of --plot LOG goes, which is not given")
    if not args.interval > 0:
        raise ValueError(f"--interval is a number of seconds above 0, not {args.interval:g}")
    if args.count is not None and args.count < 1:
        raise ValueError(f"--count is a whole number from 1, not {args.count}")
    return _watch(args)


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C count at the end of the block; it only comes to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _watch(args: argparse.Namespace) -> int:
    """Show samples until the process ends, Ctrl-C or `--count`; then the summary.

    As JSON, each sample is a line of its own, as in a monitor's log, and the summary the last one; with a FILE the
    lines of text are shown, and the FILE has the last samples.
    """
    pid, sampler = args.pid, Sampler(args.pid)
    series: list[Sample] = [sampler.take()]  # raises ProcessLookupError if there is no such process
    tally, samples, cpu, ended = Tally(series[0]), 0, time.process_time(), False
    command = command_of(pid)
    view = _Lines(pid) if is_json(args) else _View(f"{pid}: {command}")
    try:
        while True:
            with _interrupts_wait():  # so that the summary counts what was shown
                tally.add(series[-1])
                view.update(series)
            samples += 1
            if samples == args.count:
                break
            time.sleep(args.interval)
            series = [*series[-_MOST_SAMPLES:], sampler.take()]
    except ProcessLookupError:
        ended = True
        say(args, f"process {pid} has ended")
    except KeyboardInterrupt:
        say(args, "")
    summary = tally.summary([], time.process_time() - cpu)
    told = {"pid": pid, "command": command, "ended": ended, "summary": summary}
    if is_json(args):
        print_line(told)
    else:
        answer(args, summary, told | {"samples": series})
    return 0


class _Lines:
    """A line of JSON for each sample, for programs that read it while the process runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def update(self, series: list[Sample]) -> None:
        """Print the latest of some samples."""
        print_line({"pid": self._pid, "sample": series[-1].as_json()})


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
