"""One run of a monitor: a thread that looks at memory, what it has seen, and what it does about it.

    look -> sample -> series -> diagnosis -> finding -> warning, log, on_warn
                        |                       |
                     summary                 stop_at: raised in the loop, between two batches

The thread ends with the run. It never raises into the program: what goes wrong while looking is warned of, once for
each kind, and looking goes on.
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

from memload.engine import attendants
from memload.errors import MemoryStopError, MemoryWarning, ThreadLimitError
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
_PATIENCE = 5.0  # seconds for a look under way, when the run ends


@dataclass(frozen=True)
class Settings:
    """What a monitor was told.

    Attributes:
        interval: seconds between two looks.
        warn_at: None: no such mark.
        stop_at: None: no such mark.
        log: where samples and warnings go as JSON, if anywhere.
        metric_logs: where figures go besides.
        on_warn: called with each finding; None: nothing is.
        shrinks: whether memory is given back with each finding.
        empty_cache_every: batches after which the GPU's cache is emptied; None: never.
    """

    interval: float
    warn_at: Mark | None
    stop_at: Mark | None
    log: Path | None
    metric_logs: tuple[MetricLog, ...]
    on_warn: Callable[[Finding], object] | None
    shrinks: bool
    empty_cache_every: int | None


class Watching:
    """A run that has begun.

    Raises:
        OSError: the log cannot be opened.
        ThreadLimitError: the system gives no thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._sampler = Sampler(folder=(settings.log or Path("log").absolute()).parent)
        self._log = None if settings.log is None else JsonLog(settings.log)
        self._passes_before = weakref.WeakKeyDictionary(attendants.known_passes())
        self._loaders: collections.Counter[int] = collections.Counter()  # that began a pass, by their dataset
        self._turns = self._step = 0
        self._marked = False  # whether a loop tells itself where it is
        self._shows = False  # whether the next batch is to be looked at
        self._wanted = True  # whether the next tick is to look for the sample to come
        self._place = LoopPosition()  # but for the step
        self._empties = False  # whether the GPU's cache is to be emptied in the next tick
        self._due: BaseException | None = None
        self._stopped = False
        self._reported: set[str] = set()
        self._cpu_seconds = 0.0
        self._graphs, self._results = GraphsOverSteps(), ResultsBySteps()
        self._diagnosis = Paced(self._diagnosed, _DIAGNOSIS_SHARE)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memload-monitor", daemon=True)
        self.series: list[Sample] = []
        self.findings: list[Finding] = []
        self.summary: MonitorSummary | None = None
        self._tally: Tally | None = None
        self._keep(lambda log: log.begin())
        self._look()
        try:
            started([self._thread])
        except ThreadLimitError:
            self._close()
            raise
        attendants.attend(self)

    @property
    def running(self) -> bool:
        """Whether it goes on, in this process: a forked child has no part in it."""
        return self._pid == os.getpid() and not self._ended.is_set()

    def end(self) -> None:
        """End the thread, look once more, and know what the run amounts to. May be called twice.

        Raises:
            RuntimeError: it is called by ``on_warn``.
            Warning: one of ours, made an error by the filters of warnings, that no loop asked for; so, too, what
                ``on_warn`` raised to end the program.
        """
        if not self.running:
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError("on_warn cannot stop the monitor in whose thread it runs: let the loop do it")
        self._ended.set()
        attendants.leave(self)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._say(MemoryWarning("the monitor's thread does not answer, perhaps since a file system does not"))
        else:
            self._look(closely=True)
        if self._tally is not None:
            self.summary = self._tally.summary(self.findings, self._cpu_seconds)
            told = self.summary.as_json()
            self._keep(lambda log: log.end(told))
        self._close()
        if isinstance(self._due, Warning | SystemExit | KeyboardInterrupt):
            raise self._due

    def pass_begins(self, loader: Any, number: int) -> None:
        """Record that a loader begins a pass.

        Epochs are counted by the loader with the most passes, or by the loaders that are made anew for each epoch.
        """
        self._sampler.caches.know(loader)
        number -= self._passes_before.get(loader, 0)
        if number == 1:
            self._loaders[id(loader.dataset)] += 1
            number = self._loaders[id(loader.dataset)]
        if not self._marked and number > self._place.epoch:
            self._place = replace(self._place, epoch=number, at_epoch=self._sampler.private())

    def between_batches(self) -> None:
        """Do what has to be done in the loop's thread, between two batches; raises what is due."""
        if not self._marked:
            self._step += 1
            self._tick()
        self._raise_what_is_due()

    def handed_out(self, batch: Any) -> None:
        """Remember some of the batches that loops get, without keeping them alive."""
        if self._shows:
            self._shows = False
            self._graphs.look(batch)

    def mark(self, step: int | None, epoch: int) -> None:
        """Record the position that a loop reports; raises what is due."""
        if not self._marked or epoch != self._place.epoch:
            self._place = replace(self._place, epoch=epoch, at_epoch=self._sampler.private())
        last = self._step if self._marked else 0
        self._marked, self._step = True, last + 1 if step is None else step
        self._tick()
        self._raise_what_is_due()

    def _tick(self) -> None:
        self._turns += 1
        self._graphs.tick()
        self._results.tick()
        if self._wanted:
            self._wanted, self._shows = False, True
            seen, fresh = self._sampler.private(), self._sampler.fresh()
            self._place = replace(self._place, at_batch=seen, fresh_at_batch=fresh, gpus=ticks_now())
        every = self._settings.empty_cache_every
        if self._empties or (every is not None and self._turns % every == 0):
            self._empties = False
            torch.cuda.empty_cache()  # does nothing where CUDA has not been started

    def _raise_what_is_due(self) -> None:
        if self._due is not None:
            due, self._due = self._due, None
            raise due

    def _run(self) -> None:
        interval = self._settings.interval
        due = time.monotonic() + interval
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            self._look()
            self._cpu_seconds = time.thread_time()
            now = time.monotonic()
            due = due + interval if due + interval > now else now + interval

    def _look(self, closely: bool = False) -> None:
        before = self.series[-1] if self.series else None
        try:
            sample = self._sampler.take(replace(self._place, step=self._step), closely)
            self._wanted = True
            self._take(sample, before)
            for finding in self._diagnosis.get(closely):
                self._warn(sample, finding)
            self._check(sample)
        except Exception as error:
            self._report("looking at memory", error)

    def _diagnosed(self) -> list[Finding]:
        ended, counts = self._ended.is_set(), self._results.counts
        return diagnose(self.series, ended=ended, graphs=self._graphs.get, counts=counts)

    def _take(self, sample: Sample, before: Sample | None) -> None:
        self.series.append(sample)
        if len(self.series) > _MOST_SAMPLES:
            self.series = self.series[: _MOST_SAMPLES // 2 : 2] + self.series[_MOST_SAMPLES // 2 :]
        self._tally = self._tally or Tally(sample)
        self._tally.add(sample)
        self._keep(lambda log: log.sample(sample))
        for other in self._settings.metric_logs:
            self._try(
                f"writing to {type(other).__name__}",
                lambda other=other: other.write(figures_of(sample, before), sample.step, sample.time),  # type: ignore[misc]
            )

    def _check(self, sample: Sample) -> None:
        """Warn and stop where memory is as full as it may become."""
        settings = self._settings
        for finding in settings.warn_at.passed(sample) if settings.warn_at else []:
            self._warn(sample, self._with_cause(finding))
        for finding in settings.stop_at.passed(sample) if settings.stop_at and not self._stopped else []:
            self._stopped = True
            full = self._with_cause(Finding("stop", finding.text, finding.place))
            self._warn(sample, full)
            if isinstance(self._due, SystemExit | KeyboardInterrupt):
                continue  # on_warn ends the program
            self._due = MemoryStopError(
                f"{full.text}. The loop was stopped between two batches: no batch is lost, loader.state_dict() and "
                "checkpoints can be taken now"
            )

    def _with_cause(self, finding: Finding) -> Finding:
        causes = [one for one in self.findings if one.place == finding.place and one.cause not in ("limit", "stop")]
        if not causes:
            return finding
        return Finding(finding.cause, f"{finding.text}. Seen before: {causes[-1].text}", finding.place)

    def _warn(self, sample: Sample, finding: Finding) -> None:
        if any((one.cause, one.place) == (finding.cause, finding.place) for one in self.findings):
            return
        self.findings.append(finding)
        self._keep(lambda log: log.warning(sample, finding))
        on_warn = self._settings.on_warn
        if on_warn is not None:
            self._try("on_warn", lambda: on_warn(finding))
        if self._settings.shrinks:
            self._empties = finding.place != "host"
            self._try("giving memory back", lambda: shrink(attendants.known_passes(), self._sampler.caches.all()))
        if finding.cause != "stop":
            self._say(MemoryWarning(f"{finding.place}: {finding.text}"))

    def _keep(self, write: Callable[[JsonLog], None]) -> None:
        if self._log is not None:
            log = self._log
            self._try(f"writing {log.path}", lambda: write(log))

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
        for other in self._settings.metric_logs:
            self._try(f"closing {type(other).__name__}", other.close)

    def _try(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (SystemExit, KeyboardInterrupt) as error:  # for the program, not for the thread that looks
            self._due = self._due or error
        except Exception as error:
            self._report(what, error)

    def _report(self, what: str, error: Exception) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._say(MemoryWarning(f"{what} failed, and may fail again unsaid: {type(error).__name__}: {error}"))

    def _say(self, warning: MemoryWarning) -> None:
        """Warn; where the filters make an error of it, the loop gets it."""
        try:
            warnings.warn(warning, stacklevel=2)
        except Warning as made:
            self._due = self._due or made
