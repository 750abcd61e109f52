"""A callback of Lightning's Trainer that runs a monitor.

Lightning is imported when the callback is made: `lightning`, or `pytorch_lightning` if only that is in use.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from memload.monitoring.metric_logs import figures_of

if TYPE_CHECKING:
    from memload.monitoring.monitor import Monitor


def callback(monitor: Monitor, log_metrics: bool) -> Any:
    """Return the callback.

    Raises:
        ImportError: neither lightning nor pytorch_lightning is installed.
    """
    return _class()(monitor, log_metrics)


def __getattr__(name: str) -> Any:
    # The class is made on demand; pickle finds it by its name where a trainer pickles its callbacks.
    if name == "MonitorCallback":
        return _class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _base() -> Any:
    alone = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    for package in ("pytorch_lightning", "lightning.pytorch") if alone else ("lightning.pytorch", "pytorch_lightning"):
        try:
            return __import__(package, fromlist=["Callback"]).Callback
        except ImportError:
            continue
    raise ImportError("the callback needs lightning: pip install lightning")


@functools.cache
def _class() -> Any:
    base = _base()

    class MonitorCallback(base):  # type: ignore[misc, valid-type]
        """Runs a monitor from a trainer's setup to its end, and reports steps and epochs to it.

        Args:
            monitor: the monitor; if it runs already, it is not stopped either.
            log_metrics: whether figures go to the trainer's loggers.
        """

        def __init__(self, monitor: Monitor, log_metrics: bool = True) -> None:
            self.monitor, self._log_metrics = monitor, log_metrics
            self._started = False
            self._logged = 0.0  # the time of the last sample that went to the loggers

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
            """Start the monitor, unless it is running already."""
            if not self.monitor.running:
                self.monitor.start()
                self._started = True

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            """Report step and epoch to the monitor, which raises the error of ``stop_at`` here."""
            self.monitor.mark(trainer.global_step, trainer.current_epoch)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            """Send the newest sample to the loggers, unless it was sent before."""
            sample = self.monitor.latest
            if self._log_metrics and sample is not None and sample.time > self._logged:
                self._logged = sample.time
                figures = {f"memory/{name}": value for name, value in figures_of(sample).items()}
                for logger in trainer.loggers:
                    logger.log_metrics(figures, step=trainer.global_step)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
            """Stop the monitor if this callback started it."""
            self._end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
            """Stop the monitor if this callback started it."""
            self._end()

        def _end(self) -> None:
            started, self._started = self._started, False
            if started:
                self.monitor.stop()

    MonitorCallback.__qualname__ = "MonitorCallback"
    return MonitorCallback
