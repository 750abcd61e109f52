"""`Monitor`: observes memory while a program runs, and warns early of problems that build up."""

from __future__ import annotations

import atexit
import math
import operator
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from memload.monitoring.diagnosis import Finding
from memload.monitoring.marks import Mark
from memload.monitoring.metric_logs import MetricLog
from memload.monitoring.run import MonitorRun, Settings
from memload.monitoring.samples import Sample
from memload.monitoring.summary import MonitorSummary
from memload.progress import note

Log = str | os.PathLike[str] | MetricLog
_LEAST_INTERVAL = 0.01


class Monitor:
    """A monitor that samples memory in a thread of its own, and warns once of each problem, with its cause.

    Within ``with``, it samples this process and its children, its control group, the machine, the GPUs that it uses and
    its FastLoaders, which it finds by itself. docs/monitor.md lists the problems that it warns of.

    Args:
        interval: seconds between two samples. A sample takes less than a millisecond; figures that take longer, for
            large processes, are sampled more rarely. All samples together take below 0.5 % of one core at the default.
        warn_at: the use of memory from which it warns: a share from 0 to 1 of the memory that this process may use
            (control group or machine, and each GPU), or bytes that it and its children hold, such as "12GB". None: no
            warning.
        stop_at: the use of memory, given likewise, at which ``MemoryStopError`` is raised in the loop, once: when it
            asks a FastLoader for the next batch, or by ``mark``.
        log: a path, to which samples and warnings are appended as JSON, one object a line, and whose folders are made;
            a ``TensorBoardLog`` or ``MLflowLog``; or several of these.
        on_warn: called with each ``Finding`` in the monitor's thread. An exception that it raises becomes a warning,
            except for ``sys.exit()``, which is raised in the loop at its next batch. Or "shrink": loaders, caches of
            the hybrid tier and, if the finding is about a GPU, torch's cache on it free memory.
        empty_cache_every: the number of batches after each of which ``torch.cuda.empty_cache()`` is called, between
            two batches. The call waits for the GPU, and torch must request memory from the driver again;
            docs/monitor.md says when that helps.
        show: whether the summary is printed to standard error at the end; None: yes.

    Raises:
        ValueError: an argument is out of range.
        TypeError: an argument has a wrong type.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(x=torch.zeros(100, 8))
        >>> with memload.Monitor(warn_at=0.99, show=False) as monitor:
        ...     for batch in memload.FastLoader(ds, batch_size=32):
        ...         pass
        >>> monitor.findings, monitor.samples[-1].step >= 4
        ([], True)
    """

    def __init__(
        self,
        interval: float = 1.0,
        *,
        warn_at: float | int | str | None = 0.9,
        stop_at: float | int | str | None = None,
        log: Log | Iterable[Log] | None = None,
        on_warn: Callable[[Finding], object] | str | None = None,
        empty_cache_every: int | None = None,
        show: bool | None = None,
    ) -> None:
        paths, others = _logs(log)
        self._settings = Settings(
            interval=_checked_interval(interval),
            warn_at=Mark.of("warn_at", warn_at),
            stop_at=Mark.of("stop_at", stop_at),
            log=paths[0] if paths else None,
            metric_logs=others,
            on_warn=_checked_call(on_warn),
            shrinks=on_warn == "shrink",
            empty_cache_every=_checked_count(empty_cache_every),
        )
        self._show = show
        self._run: MonitorRun | None = None
        self._summary: MonitorSummary | None = None

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Warning:
            if error is None:  # an error of the block takes precedence
                raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}  # a run stays in its process

    @property
    def running(self) -> bool:
        """Whether the monitor is sampling now; False in a child of the process in which it was started."""
        return self._run is not None and self._run.running

    @property
    def samples(self) -> list[Sample]:
        """The samples of the latest run: the newest 2,048, and a part of the older ones."""
        return list(self._run.series) if self._run else []

    @property
    def latest(self) -> Sample | None:
        """The newest sample of the latest run."""
        return self._run.series[-1] if self._run and self._run.series else None

    @property
    def findings(self) -> list[Finding]:
        """The problems of which the monitor warned in the latest run."""
        return list(self._run.findings) if self._run else []

    @property
    def summary(self) -> MonitorSummary | None:
        """Peaks and cost of the latest run; None until it has ended."""
        return self._summary

    def start(self) -> None:
        """Start sampling; `with` calls this at its beginning, and `stop` at its end.

        Raises:
            RuntimeError: the monitor is running already.
            OSError: the log cannot be opened.
        """
        if self.running:
            raise RuntimeError("this monitor runs already; make another one, or stop it first")
        self._summary = None
        self._run = MonitorRun(self._settings)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Take a last sample, end the thread, and print the summary; it may be called twice, and runs at exit."""
        if not self.running or self._run is None:
            return
        run = self._run
        try:
            run.end()
        finally:
            if not run.running:
                atexit.unregister(self.stop)
            self._summary = run.summary
            if self._summary is not None:
                note(str(self._summary), self._show)

    def mark(self, step: int | None = None, epoch: int = 0) -> None:
        """Report the position of the loop; loops without a FastLoader call it once in each step.

        It also raises the error of ``stop_at`` and empties the GPU's cache. It does nothing in a child process, or
        while the monitor is not running.

        Args:
            step: number of the step; None: one more than at the last call.
            epoch: number of the epoch; growth is judged from epoch to epoch.

        Raises:
            MemoryStopError: memory is as full as ``stop_at`` allows.
            TypeError: the step or the epoch is not an integer.
        """
        step, epoch = None if step is None else _checked_number("step", step), _checked_number("epoch", epoch)
        if self._run is not None and self._run.running:
            self._run.mark(step, epoch)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the latest run up to now as a PNG file at `path`, and return the path.

        Raises:
            ImportError: matplotlib is not installed; the extra `monitor` brings it.
            ValueError: there are no samples yet.
        """
        from memload.monitoring.plots import plot_run

        return plot_run(self.samples, [], path)

    def lightning_callback(self, log_metrics: bool = True) -> Any:
        """Return a callback for Lightning's Trainer that starts this monitor, reports steps and epochs, and stops it.

        Args:
            log_metrics: whether the figures also go to the loggers of the trainer.

        Raises:
            ImportError: neither lightning nor pytorch_lightning is installed.
        """
        from memload.monitoring.lightning import callback

        return callback(self, log_metrics)


def _logs(log: Log | Iterable[Log] | None) -> tuple[list[Path], tuple[MetricLog, ...]]:
    if log is None:
        return [], ()
    alone = isinstance(log, str | os.PathLike) or hasattr(log, "write") or not isinstance(log, Iterable)
    paths: list[Path] = []
    others: list[Any] = []
    for target in [log] if alone else log:  # type: ignore[union-attr]
        if isinstance(target, str | os.PathLike):
            paths.append(_checked_file(target))
        elif hasattr(target, "write") and hasattr(target, "close"):
            others.append(target)
        else:
            raise TypeError(f"log is a path, a TensorBoardLog, an MLflowLog, or several; got {type(target).__name__}")
    if len(paths) > 1:
        raise ValueError(f"log names {len(paths)} files; one is enough, since it holds everything")
    return paths, tuple(others)


def _checked_file(path: str | os.PathLike[str]) -> Path:
    if Path(path).is_dir():  # an empty text, too
        raise ValueError(f'log is the path of a file, such as "mem.jsonl", got {str(path)!r}, which is a directory')
    return Path(path).absolute()


def _checked_interval(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"interval is a number of seconds, got {value!r}")
    if not (math.isfinite(value) and value >= _LEAST_INTERVAL):
        raise ValueError(f"interval is a number of seconds, at least {_LEAST_INTERVAL:g}; got {value!r}")
    return float(value)


def _checked_count(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"empty_cache_every is a number of batches, or None for never; got {value!r}")
    if value < 1:
        raise ValueError(f"empty_cache_every is a number of batches, at least 1, or None for never; got {value!r}")
    return value


def _checked_call(value: Callable[[Finding], object] | str | None) -> Callable[[Finding], object] | None:
    if isinstance(value, str):
        if value != "shrink":
            raise ValueError(f'on_warn is a function of a finding, or "shrink"; got {value!r}')
        return None
    if value is not None and not callable(value):
        raise TypeError(f'on_warn is a function of a finding, or "shrink"; got {type(value).__name__}')
    return value


def _checked_number(name: str, given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name} is the number of the {name}, an integer; got {given!r}") from None
