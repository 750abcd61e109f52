"""One run of a monitor: a thread that takes samples of memory, diagnoses them, and warns.

    sample -> series -> diagnosis -> finding -> warning, log, on_warn
                |                       |
             summary                 stop_at: raised in the loop, between two batches

The thread ends with the run. It never raises into the program: an error while it takes a sample becomes a warning, once
for each kind of error, and sampling goes on.
"""

from __future__ import annotations

import collections
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from memload.engine.observers import OBSERVERS, known_passes
from memload.errors import MemoryStopError, MemoryWarning, ThreadLimitError
from memload.memory.c_heap import heap_free_bytes
from memload.memory.threads import started
from memload.monitoring.diagnosis import Finding, diagnose
from memload.monitoring.gpu_samples import ticks_now
from memload.monitoring.kept_graphs import GraphsOverSteps, ResultsBySteps
from memload.monitoring.log import JsonLog
from memload.monitoring.marks import Mark
from memload.monitoring.metric_logs import MetricLog, figures_of
from memload.monitoring.own_memory import shrink
from memload.monitoring.pacing import Paced
from memload.monitoring.samples import LoopPosition, Sample, Sampler
from memload.monitoring.summary import MonitorSummary, Tally

_MOST_SAMPLES = 4096  # kept in memory, about 1 MB
_DIAGNOSIS_SHARE = 0.0005  # of one core
_HEAP_SHARE = 0.001  # of one core, for the walk through the free blocks of the heap
_PATIENCE = 5.0  # seconds that the end of a run waits for a sample that is being taken


@dataclass(frozen=True)
class Settings:
    """The checked arguments of a monitor.

    Attributes:
        interval: seconds between two samples.
        warn_at: the limit from which the monitor warns; None: no limit.
        stop_at: the limit at which the loop is stopped; None: no limit.
        log: the file for samples and warnings as JSON; None: no file.
        metric_logs: further logs that get the figures.
        on_warn: called with each finding; None: no call.
        shrinks: whether memload frees memory at each finding.
        empty_cache_every: the number of batches between two calls that empty the GPU's cache; None: never.
    """

    interval: float
    warn_at: Mark | None
    stop_at: Mark | None
    log: Path | None
    metric_logs: tuple[MetricLog, ...]
    on_warn: Callable[[Finding], object] | None
    shrinks: bool
    empty_cache_every: int | None


class MonitorRun:
    """A run of a monitor, which begins when the object is made.

    Raises:
        OSError: the log cannot be opened.
        ThreadLimitError: the system refuses another thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._sampler = Sampler(folder=(settings.log or Path("log").absolute()).parent)
        self._log = None if settings.log is None else JsonLog(settings.log)
        self._passes_before = weakref.WeakKeyDictionary(known_passes())
        self._loaders: collections.Counter[int] = collections.Counter()  # loaders that began a pass, counted by dataset
        self._ticks = self._step = 0
        self._reports_position = False  # whether the loop calls `mark`
        self._remembers_next = False  # whether the next batch is remembered
        self._measures_next = True  # whether the next tick measures for the next sample
        self._position = LoopPosition()  # without the step
        self._empties_cache = False  # whether the next tick empties the GPU's cache
        self._pending_error: BaseException | None = None
        self._stopped = False
        self._reported: set[str] = set()
        self._cpu_seconds = 0.0
        self._graphs, self._results = GraphsOverSteps(), ResultsBySteps()
        self._diagnosis = Paced(self._diagnose, _DIAGNOSIS_SHARE)
        self._heap_free = Paced(heap_free_bytes, _HEAP_SHARE)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_regularly, name="memload-monitor", daemon=True)
        self.series: list[Sample] = []
        self.findings: list[Finding] = []
        self.summary: MonitorSummary | None = None
        self._tally: Tally | None = None
        self._write_log(lambda log: log.begin())
        self._take_sample()
        try:
            started([self._thread])
        except ThreadLimitError:
            self._close()
            raise
        OBSERVERS.add(self)

    @property
    def running(self) -> bool:
        """Whether the run goes on in this process; a forked child does not inherit it."""
        return self._pid == os.getpid() and not self._ended.is_set()

    def end(self) -> None:
        """End the thread, take a last sample, and make the summary. May be called twice.

        Raises:
            RuntimeError: ``on_warn`` called it.
            Warning: a warning of the monitor that the filters turned into an error, and that no loop raised.
            SystemExit, KeyboardInterrupt: ``on_warn`` raised it, and no loop did.
        """
        if not self.running:
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError("on_warn cannot stop the monitor in whose thread it runs: let the loop do it")
        self._ended.set()
        OBSERVERS.remove(self)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._emit(MemoryWarning("the monitor's thread does not answer, perhaps since a file system does not"))
        else:
            self._take_sample(at_once=True)
        if self._tally is not None:
            self.summary = self._tally.summary(self.findings, self._cpu_seconds)
            summary = self.summary.as_json()
            self._write_log(lambda log: log.end(summary))
        self._close()
        if isinstance(self._pending_error, Warning | SystemExit | KeyboardInterrupt):
            raise self._pending_error

    def pass_begins(self, loader: Any, number: int) -> None:
        """Record that a loader begins a pass.

        Epochs are counted by the loader with the most passes, or by the loaders that are made anew for each epoch.
        """
        self._sampler.caches.know(loader)
        number -= self._passes_before.get(loader, 0)
        if number == 1:
            self._loaders[id(loader.dataset)] += 1
            number = self._loaders[id(loader.dataset)]
        if not self._reports_position and number > self._position.epoch:
            self._begin(number)

    def between_batches(self) -> None:
        """Do the work that needs the loop's thread, between two batches; raise the pending error, if any."""
        if not self._reports_position:
            self._step += 1
            self._tick()
        self._raise_pending()

    def handed_out(self, batch: Any) -> None:
        """Remember some of the batches that loops get, by weak references."""
        if self._remembers_next:
            self._remembers_next = False
            self._graphs.look(batch)

    def mark(self, step: int | None, epoch: int) -> None:
        """Record the position that a loop reports; raise the pending error, if any."""
        if not self._reports_position or epoch != self._position.epoch:
            self._begin(epoch)
        last = self._step if self._reports_position else 0
        self._reports_position, self._step = True, last + 1 if step is None else step
        self._tick()
        self._raise_pending()

    def _begin(self, epoch: int) -> None:
        held, free = self._sampler.private(), self._heap_free.get(at_once=True)
        self._position = replace(self._position, epoch=epoch, at_epoch=held, free_at_epoch=free)

    def _tick(self) -> None:
        self._ticks += 1
        self._graphs.tick()
        self._results.tick()
        if self._measures_next:
            self._measures_next, self._remembers_next = False, True
            held, free, fresh = self._sampler.private(), self._heap_free.get(), self._sampler.fresh()
            self._position = replace(
                self._position, at_batch=held, free_at_batch=free, fresh_at_batch=fresh, gpus=ticks_now()
            )
        every = self._settings.empty_cache_every
        if self._empties_cache or (every is not None and self._ticks % every == 0):
            self._empties_cache = False
            torch.cuda.empty_cache()  # does nothing where CUDA has not been started

    def _raise_pending(self) -> None:
        if self._pending_error is not None:
            error, self._pending_error = self._pending_error, None
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame, which would keep the error and the run

    def _sample_regularly(self) -> None:
        interval = self._settings.interval
        due = time.monotonic() + interval
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            self._take_sample()
            self._cpu_seconds = time.thread_time()
            now = time.monotonic()
            due = due + interval if due + interval > now else now + interval

    def _take_sample(self, at_once: bool = False) -> None:
        before = self.series[-1] if self.series else None
        try:
            sample = self._sampler.take(replace(self._position, step=self._step), at_once)
            self._measures_next = True
            self._record(sample, before)
            for finding in self._diagnosis.get(at_once):
                self._warn(sample, finding)
            self._check(sample)
        except Exception as error:
            self._report("sampling memory", error)

    def _diagnose(self) -> list[Finding]:
        ended, counts = self._ended.is_set(), self._results.counts
        return diagnose(self.series, ended=ended, graphs=self._graphs.get, counts=counts)

    def _record(self, sample: Sample, before: Sample | None) -> None:
        self.series.append(sample)
        if len(self.series) > _MOST_SAMPLES:
            self.series = self.series[: _MOST_SAMPLES // 2 : 2] + self.series[_MOST_SAMPLES // 2 :]
        self._tally = self._tally or Tally(sample)
        self._tally.add(sample)
        self._write_log(lambda log: log.sample(sample))
        for target in self._settings.metric_logs:
            self._try(
                f"writing to {type(target).__name__}",
                lambda target=target: target.write(figures_of(sample, before), sample.step, sample.time),  # type: ignore[misc]
            )

    def _check(self, sample: Sample) -> None:
        """Warn and stop where a sample reaches `warn_at` or `stop_at`."""
        settings = self._settings
        for finding in settings.warn_at.passed(sample) if settings.warn_at else []:
            self._warn(sample, self._with_cause(finding))
        for finding in settings.stop_at.passed(sample) if settings.stop_at and not self._stopped else []:
            self._stopped = True
            stop = self._with_cause(Finding("stop", finding.text, finding.place))
            self._warn(sample, stop)
            if isinstance(self._pending_error, SystemExit | KeyboardInterrupt):
                continue  # on_warn ends the program
            self._pending_error = MemoryStopError(
                f"{stop.text}. The loop was stopped between two batches: no batch is lost, loader.state_dict() and "
                "checkpoints can be taken now"
            )

    def _with_cause(self, finding: Finding) -> Finding:
        earlier = [f for f in self.findings if f.place == finding.place and f.cause not in ("limit", "stop")]
        if not earlier:
            return finding
        return Finding(finding.cause, f"{finding.text}. Seen before: {earlier[-1].text}", finding.place)

    def _warn(self, sample: Sample, finding: Finding) -> None:
        if any((known.cause, known.place) == (finding.cause, finding.place) for known in self.findings):
            return
        self.findings.append(finding)
        self._write_log(lambda log: log.warning(sample, finding))
        on_warn = self._settings.on_warn
        if on_warn is not None:
            self._try("on_warn", lambda: on_warn(finding))
        if self._settings.shrinks:
            self._empties_cache = finding.place != "host"
            self._try("giving memory back", lambda: shrink(known_passes(), self._sampler.caches.all()))
        if finding.cause != "stop":
            self._emit(MemoryWarning(f"{finding.place}: {finding.text}"))

    def _write_log(self, write: Callable[[JsonLog], None]) -> None:
        if self._log is not None:
            log = self._log
            self._try(f"writing {log.path}", lambda: write(log))

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        for target in self._settings.metric_logs:
            self._try(f"closing {type(target).__name__}", target.close)

    def _try(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (SystemExit, KeyboardInterrupt) as error:  # meant for the program, not for this thread
            self._pending_error = self._pending_error or error
        except Exception as error:
            self._report(what, error)

    def _report(self, what: str, error: Exception) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._emit(
                MemoryWarning(f"{what} failed; further failures are not reported: {type(error).__name__}: {error}")
            )

    def _emit(self, warning: MemoryWarning) -> None:
        """Warn; if the filters turn the warning into an error, keep it for the loop."""
        try:
            warnings.warn(warning, stacklevel=2)
        except Warning as error:
            self._pending_error = self._pending_error or error
