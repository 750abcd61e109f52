"""Further logs for a monitor's figures: TensorBoard and MLflow.

Both get the same figures under the same names, sizes in GB, at the loop's step.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from memload.monitoring.samples import Sample


class MetricLog(Protocol):
    """A log of figures by name. The monitor's thread calls it; an exception that it raises becomes one warning."""

    def write(self, figures: Mapping[str, float], step: int, seconds: float) -> None:
        """Record figures of a step, sampled at a time in seconds since 1970."""

    def close(self) -> None:
        """End the log; no more figures will come."""


class TensorBoardLog:
    """Writes a monitor's figures as scalars of TensorBoard: ``memload.Monitor(log=memload.TensorBoardLog("runs/a"))``.

    Args:
        where: a directory, for which torch's ``SummaryWriter`` is made (it needs the package tensorboard; without it,
            that of tensorboardX); or a writer of yours, with ``add_scalar``, which you close yourself.
        prefix: the beginning of each name; ``memory/held_gb`` by default.

    Raises:
        ImportError: neither package is installed, and a directory was given.

    Example:
        >>> import memload
        >>> class Printer:  # what any SummaryWriter offers
        ...     def add_scalar(self, name, value, step, walltime=None):
        ...         if name == "memory/epoch":
        ...             print(name, value, "at step", step)
        >>> with memload.Monitor(interval=60, log=memload.TensorBoardLog(Printer()), show=False) as monitor:
        ...     monitor.mark(step=7, epoch=2)
        memory/epoch 0 at step 0
        memory/epoch 2 at step 7
    """

    def __init__(self, where: Any, prefix: str = "memory/") -> None:
        self._own = isinstance(where, str | os.PathLike)
        self._writer = _summary_writer(Path(where)) if self._own else where
        self._prefix = prefix

    def write(self, figures: Mapping[str, float], step: int, seconds: float) -> None:
        """Record figures of a step."""
        for name, value in figures.items():
            self._writer.add_scalar(self._prefix + name, value, step, walltime=seconds)

    def close(self) -> None:
        """Close the writer if it was made here, else flush it."""
        if self._own:
            self._writer.close()
        elif hasattr(self._writer, "flush"):
            self._writer.flush()


class MLflowLog:
    """Sends a monitor's figures to a run of MLflow as metrics: ``memload.Monitor(log=memload.MLflowLog())``.

    Args:
        run_id: the run; None: the active run, or a new one.
        tracking_uri: the server or folder of the runs; None: MLflow's own setting.
        prefix: the beginning of each name; ``memory/held_gb`` by default.

    Raises:
        ImportError: mlflow is not installed.
    """

    def __init__(self, run_id: str | None = None, tracking_uri: str | None = None, prefix: str = "memory/") -> None:
        try:
            import mlflow
            from mlflow.entities import Metric
        except ImportError as error:
            raise ImportError('MLflowLog needs mlflow: pip install "memload[mlflow]"') from error
        self._metric = Metric
        self._client = mlflow.MlflowClient(tracking_uri)
        if run_id is None:
            active = mlflow.active_run() or mlflow.start_run()
            run_id = active.info.run_id
        self.run_id, self._prefix = run_id, prefix

    def write(self, figures: Mapping[str, float], step: int, seconds: float) -> None:
        """Send figures of a step, all in one request."""
        at = int(seconds * 1000)
        metrics = [self._metric(self._prefix + name, value, at, step) for name, value in figures.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """Do nothing, since the owner of the run ends it."""


def figures_of(sample: Sample, before: Sample | None = None) -> dict[str, float]:
    """Return the figures to plot, sizes in GB; rates are over the time since `before`."""
    sizes = {
        "held": sample.held,
        "rss": sample.rss,
        "pss": sample.pss,
        "available": sample.available,
        "page_cache": sample.page_cache,
        "group_used": sample.group_used,
        "disk_free": sample.disk_free,
    }
    for gpu in sample.gpus:
        of_gpu = {"allocated": gpu.allocated, "reserved": gpu.reserved, "free": gpu.free, "others": gpu.others}
        sizes |= {f"gpu{gpu.index}_{name}": nbytes for name, nbytes in of_gpu.items()}
    found: dict[str, float] = {f"{name}_gb": nbytes / 1e9 for name, nbytes in sizes.items() if nbytes is not None}
    found |= {"taken_share": sample.share, "processes": sample.processes, "epoch": sample.epoch}
    return found | (rates(before, sample) if before else {})


def rates(before: Sample, now: Sample) -> dict[str, float]:
    """Return the rates of loaders between two samples; empty if no FastLoader delivered a batch."""
    seconds = now.time - before.time
    if now.batches <= before.batches or seconds <= 0:
        return {}
    return {
        "loader_rows_per_second": (now.rows - before.rows) / seconds,
        "loader_gb_per_second": (now.bytes_out - before.bytes_out) / 1e9 / seconds,
        "loader_wait_share": min(1.0, max(0.0, now.wait_seconds - before.wait_seconds) / seconds),
        "loader_fresh_share": (now.fresh_batches - before.fresh_batches) / (now.batches - before.batches),
    }


def _summary_writer(folder: Path) -> Any:
    for package in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(package).SummaryWriter(str(folder))
        except ImportError:
            continue
    raise ImportError('TensorBoardLog needs tensorboard or tensorboardX: pip install "memload[tensorboard]"')
