"""Compares a plan with a pass: the peak of private memory of all processes, with shared memory counted once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from memload.cli.measure import WATCHER, cpu_seconds_of_children, peak_memory, private_bytes
from memload.monitoring.processes import family
from memload.planning.result import Plan
from memload.progress import bar
from memload.sizes import counted, format_size

_PAUSE = 0.01  # seconds that the loop computes on a batch
_RUNNABLE = "RD"  # states of proc_pid_stat(5): running or ready, or waiting for a disk
_LONG_EVERY = 6  # batches; the loop keeps one of them until all batches ahead of it are made
_LOOK, _LONGEST = 0.05, 60.0  # seconds between two checks for further work, and in all
_QUIET = 3  # checks in a row without further work
_AT_REST = 0.1  # of the time: threads that compute less are only waiting


@dataclass(frozen=True)
class Prediction:
    """One pass, in bytes.

    Attributes:
        predicted: RAM by the plan, with the memory of the process before.
        measured: the peak.
        start: the memory of the process before.
        batches: the number of loaded batches.
    """

    predicted: int
    measured: int
    start: int
    batches: int

    @property
    def error(self) -> float:
        """The relative error of the prediction; above 0, it is too high."""
        return self.predicted / self.measured - 1

    @property
    def own_error(self) -> float:
        """The relative error without the memory of the process before."""
        return (self.predicted - self.start) / max(1, self.measured - self.start) - 1

    def __str__(self) -> str:
        return (
            f"RAM over {counted(self.batches, 'batch', 'batches')}: predicted {format_size(self.predicted)}, measured "
            f"{format_size(self.measured)} ({self.error:+.1%})"
        )


def measured(plan: Plan, loader: Callable[[], Iterable[Any]], batches: int | None = None) -> Prediction:
    """Run one pass of at most so many batches, and return its peak beside the prediction.

    Args:
        plan: the plan of this pass, made before in this process.
        loader: opens the data and makes the loader; its memory counts.
        batches: the number of batches; None: all.
    """
    count = 0
    start = private_bytes()
    with peak_memory() as peak, bar("measure", batches, None, unit=" batches") as shown:
        for _ in islice(loader(), batches):  # holds a batch while it asks for the next, as loops do
            count += 1
            shown.update(1)
            time.sleep(_PAUSE)
            if count % _LONG_EVERY == 0:
                wait_for_batches_ahead()
        return Prediction(plan.ram.predicted, start + peak(), start, count)


def wait_for_batches_ahead() -> None:
    """Wait until all batches ahead of the loop are made, however busy the machine is."""
    end, quiet, most = time.monotonic() + _LONGEST, 0, 0
    while quiet < _QUIET and time.monotonic() < end:
        began, before = time.monotonic(), computed_by_others()
        time.sleep(_LOOK)
        computed, now = computed_by_others() - before, private_bytes()
        rests = computed < _AT_REST * (time.monotonic() - began) and not others_want_to_run()
        quiet = quiet + 1 if rests and now <= most else 0
        most = max(most, now)


def computed_by_others() -> float:
    """Return the CPU seconds so far, without this thread and the one that samples memory."""
    own = time.process_time() - time.thread_time()
    watching = (time.clock_gettime(time.pthread_getcpuclockid(one.ident)) for one in _watchers() if one.ident)
    return own - sum(watching) + cpu_seconds_of_children()


def others_want_to_run() -> bool:
    """Return whether any other thread or process could run now, or waits for a disk."""
    left_out = {threading.get_native_id(), *(one.native_id for one in _watchers())}
    tasks = (task for pid in family(os.getpid()) for task in _tasks(pid) if int(task.name) not in left_out)
    return any(_state(task) in _RUNNABLE for task in tasks)


def _watchers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == WATCHER]


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it ended meanwhile
        return []


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it ended meanwhile
        return "X"
