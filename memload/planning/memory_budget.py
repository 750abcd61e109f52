"""MemoryBudget: the parts of a device's memory that a batch size takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.sizes import format_size


@dataclass(frozen=True)
class StaticBytes:
    """The memory that does not depend on the batch size, in bytes.

    Attributes:
        params: parameters without embeddings.
        embeddings: weights of embedding tables.
        buffers: buffers of modules, such as running means.
        gradients: gradients of all trained parameters.
        buckets: copies of gradients that DistributedDataParallel keeps.
        optimizer: states of the optimizers.
        teacher: weights of models that only run forward.
        context: CUDA contexts and libraries, and memory of other processes; 512 MiB are assumed if there is no GPU to
            ask; 0 on a CPU.
        workspaces: what torch keeps on a GPU for cuBLAS; 0 on a CPU.
    """

    params: int = 0
    embeddings: int = 0
    buffers: int = 0
    gradients: int = 0
    buckets: int = 0
    optimizer: int = 0
    teacher: int = 0
    context: int = 0
    workspaces: int = 0

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in parts if nbytes) or "nothing"


@dataclass(frozen=True, repr=False)
class MemoryBudget:
    """The largest batch size that fits into a device's memory, and the parts of that memory. Sizes are in bytes.

    Attributes:
        batch_size: samples of a batch: rows, or graphs like those of the sample.
        mode: the method, "static", "measured" or "trial".
        total: memory of the device.
        target_utilization: the share of `total` that is planned for; the rest is for fragmentation and workspaces.
        static: the memory that does not depend on the batch size.
        available: `total` x `target_utilization` less `static`, for activations and the loader.
        activation: the peak of a step beyond `static` at this batch size, including its batch. `static` counts all
            gradients, but backward allocates them while it frees activations, so that this is mostly less than the
            activations by themselves.
        per_sample: the bytes of one more sample.
        saved: the part of `activation` that the forward pass keeps for the backward one, each storage once;
            checkpointing makes it small, and needs the rest temporarily. 0 after a trial, which does not observe it.
        loader: the loader's slots at this batch size.
        units: the units in which batches are counted: ("rows",), ("graphs", "nodes", "edges") or ("rows", "items").
        lines: bytes of one of each unit, at the moments of a step that may be its peak.
        cost_budget: the greatest sum of the costs of a batch: the ``budget`` of a BudgetBatchSampler.
        between: of graphs, what `batch_size` would be if the mean of all graphs were the upper or the lower bound of
            what the sample tells, with a probability of 97.5 % each; `batch_size` is the first. None if the sizes of
            all graphs are known from the dataset of ``loader=``.
        heap: how many times the bytes of a step count at this batch size, for what the C library's heap keeps of freed
            tensors; 1 where it keeps none.
        exact: whether steps of all sizes made the same allocations in the same order; otherwise a line through the
            observed peaks predicts the peak.
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
    between: tuple[int, int] | None = None
    heap: float = 1.0

    @property
    def used(self) -> int:
        """Bytes in use at the peak of a step with this batch size."""
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
            f"  one more of its {self.units[0]} takes {format_size(self.per_sample)}{self._of_graphs()}"
            f"{self._of_heap()}"
        )

    def _of_heap(self) -> str:
        """Return a line on the C library's heap, if it keeps tensors."""
        if self.heap < 1.05:  # most tensors are too large for the heap
            return ""
        return (
            f"\n  a step counts {self.heap:.2g} times, since the C library keeps freed tensors: larger batches fit "
            "with MALLOC_MMAP_THRESHOLD_=262144 and MALLOC_TRIM_THRESHOLD_=262144 in the environment"
        )

    def _of_graphs(self) -> str:
        """Return lines on how sure the number of graphs is, and on the batches that need no such number."""
        if "graphs" not in self.units:
            return ""
        unsure = ""
        if self.between is not None:
            unsure = (
                f"\n  so few graphs leave {self.between[0]:,} to {self.between[1]:,} open, of which this is the least: "
                "give loader=, whose dataset has the sizes of all"
            )
        return (
            f"{unsure}\n  a memload.BudgetBatchSampler(budget.costs(nodes=..., edges=...), budget.cost_budget) fills "
            "every batch to this limit"
        )
