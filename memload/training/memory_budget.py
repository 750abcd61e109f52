"""MemoryBudget: what a batch size takes of a device's memory, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.sizes import format_size


@dataclass(frozen=True)
class StaticBytes:
    """What is there whatever the batch size, in bytes.

    Attributes:
        params: parameters, embeddings apart.
        embeddings: weights of embedding tables.
        buffers: such as running means.
        gradients: of all trained parameters.
        buckets: copies of gradients that DistributedDataParallel keeps.
        optimizer: what the optimizers keep.
        teacher: weights of models that only look on.
        context: contexts and libraries, and what other processes hold. Where no GPU can be asked, an assumption of
            512 MiB; on a CPU none.
    """

    params: int = 0
    embeddings: int = 0
    buffers: int = 0
    gradients: int = 0
    buckets: int = 0
    optimizer: int = 0
    teacher: int = 0
    context: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in parts if nbytes) or "nothing"


@dataclass(frozen=True, repr=False)
class MemoryBudget:
    """The batch size that a device has memory for, and where the memory goes. Sizes in bytes.

    Attributes:
        batch_size: samples of a batch: rows, or graphs like those of the sample.
        mode: how it was found, "static", "measured" or "trial".
        total: memory of the device.
        target_utilization: the share of it that is planned for; the rest is for fragmentation and workspaces.
        static: what is there whatever the batch size.
        available: what `total` x `target_utilization` leaves beside `static`, for activations and the loader.
        activation: what a step takes at its peak beyond `static` at this batch size, its batch included. Gradients,
            which `static` counts in full, come into being while activations go, so that this is mostly less than
            activations take by themselves.
        per_sample: what one more sample takes.
        saved: of `activation`, what the forward pass keeps for the backward one, each storage once; checkpointing makes
            it small, and takes the rest for a moment. 0 after a trial, which does not look.
        loader: the loader's slots at this batch size.
        units: what batches are counted in, ("rows",) or ("graphs", "nodes", "edges") or ("rows", "items").
        lines: bytes of one of each unit, at the moments of a step that may be its peak.
        cost_budget: what the costs of a batch may add up to: the ``budget`` of a BudgetBatchSampler.
        exact: whether steps of all sizes made the same allocations in the same order; otherwise the peak is foretold
            by a line through the peaks that were seen.
    """

    batch_size: int
    mode: str
    total: int
    target_utilization: float
    static: StaticBytes
    available: int
    activation: int
    per_sample: int
    saved: int = 0
    loader: int = 0
    units: tuple[str, ...] = ("rows",)
    lines: tuple[tuple[float, ...], ...] = ()
    cost_budget: int = 0
    exact: bool = True

    @property
    def used(self) -> int:
        """What is taken at the peak of a step with this batch size."""
        return self.static.total + self.activation + self.loader

    def costs(self, **counts: Any) -> NDArray[np.int64]:
        """Return the cost of each row in bytes: the ``costs`` of a ``memload.BudgetBatchSampler``.

        Args:
            counts: one number per row, in sequences of the same length: ``nodes`` and ``edges`` of graphs, ``items`` of
                rows that differ in length.

        Returns:
            int64 (rows,). Batches whose costs add up to no more than ``cost_budget`` fit.

        Raises:
            TypeError: a count is missing, or is not among ``units``.
        """
        single, *rest = self.units
        if set(counts) != set(rest):
            raise TypeError(
                f"these batches are counted in {' and '.join(self.units)}: give costs("
                f"{', '.join(f'{name}=...' for name in rest)}), got {', '.join(counts) or 'nothing'}"
            )
        if not rest:
            raise TypeError(f"all {single} take the same here: use batch_size, {self.batch_size}")
        columns: Sequence[Any] = [np.asarray(counts[name], dtype=np.float64) for name in rest]
        most = np.zeros(len(columns[0]))
        for one, *others in self.lines:
            line = sum((column * k for column, k in zip(columns, others, strict=True)), np.full(len(most), one))
            most = np.maximum(most, line)
        return np.ceil(most).astype(np.int64)

    def __repr__(self) -> str:
        planned = int(self.total * self.target_utilization)
        loader = f" + loader {format_size(self.loader)}" if self.loader else ""
        return (
            f"MemoryBudget: batch size {self.batch_size:,} ({self.mode})\n"
            f"  {format_size(self.used)} of {format_size(planned)} ({self.target_utilization:.0%} of "
            f"{format_size(self.total)}): static {format_size(self.static.total)} + activations "
            f"{format_size(self.activation)}{loader}\n"
            f"  static: {self.static}\n"
            f"  one more of its {self.units[0]} takes {format_size(self.per_sample)}"
        )
