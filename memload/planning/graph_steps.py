"""The bytes of steps with batches of graphs, which run for real on the CPU.

    batch of graphs                -> a step on the CPU, each allocation observed            -> bytes
    batch of other size than wanted -> steps with other numbers of graphs, nodes and edges   -> an estimate

Such a step asks for values: layers remove self loops, and pooling looks for the last graph. So tensors without values
do not tell the sizes of others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from memload.memory.budget import memory
from memload.planning.allocations import is_out_of_memory, nbytes_of
from memload.planning.curves import Each
from memload.planning.graph_heap import surplus_of
from memload.planning.graph_spread import GraphSpread
from memload.planning.group_samples import Others
from memload.planning.heap import ONCE, Surplus
from memload.planning.measuring import measured
from memload.planning.model_bytes import ActivationBytes, activation_bytes
from memload.planning.steps import left_as_they_were
from memload.planning.variants import GraphBatches, changed_in_place, converted, graph_tensors_in, kind_of, tensors_of
from memload.planning.weightless import Weightless
from memload.sizes import format_size


class OnCpu(Weightless):
    """As `Weightless`, but the tensors are on the CPU and have memory.

    Parameters that are there in the training precision are used as they are; tensors on "meta" get random numbers.
    """

    def tensors(self) -> contextlib.AbstractContextManager[Any]:
        """Return a null context."""
        return contextlib.nullcontext()

    def own(self, batch: Any) -> Any:
        """Return a batch that steps may change, floating tensors in the models' precision, without a copy of others."""
        return converted(batch, lambda one: one.to(self._dtype) if self._dtype and one.is_floating_point() else one)

    def _tag(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _like(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.is_meta:
            made = torch.zeros(tensor.shape, dtype=dtype, device="cpu")
            return made.uniform_(-0.1, 0.1) if made.is_floating_point() else made
        shares = isinstance(tensor, torch.nn.Parameter)  # a step changes buffers, such as running means
        return tensor.detach().to("cpu", dtype, copy=not shares)


def needs_values(sample: Any) -> bool:
    """Return whether a sample is a batch of graphs whose tensors have values."""
    tensors = graph_tensors_in(sample)
    return bool(tensors) and not any(tensor.is_meta for tensor in tensors)


def graphs_of(sample: Any) -> int | None:
    """Return the number of graphs of a batch of graphs; None if it is another batch, or contains such."""
    counts = counts_of(sample)
    return None if counts is None else counts[0]


def counts_of(sample: Any) -> tuple[int, int, int] | None:
    """Return the graphs, nodes and edges of a batch of graphs; None if it is another batch, or contains such."""
    kind = _kind_of(sample)
    return None if kind is None else (kind.counts[0], kind.counts[1], kind.counts[2])


def _kind_of(sample: Any) -> GraphBatches | None:
    kind = kind_of(sample) if hasattr(sample, "edge_index") else None
    return kind if isinstance(kind, GraphBatches) else None


class StepBytes(NamedTuple):
    """The most bytes alive at one time in a step, with gradients, and what of them the C library's heap adds."""

    peak: int
    heap: Surplus


@dataclass(frozen=True)
class GraphStep:
    """A step with batches of graphs.

    Attributes:
        modules: the models.
        precision: one of `memload.planning.precisions.PRECISIONS`.
        sample: a batch of graphs, on any device.
        graphs: the graphs of the batches that are wanted; None: those of the sample.
        accumulating: whether gradients exist from the step before.
        spread: the sizes of the batches; None: batches of `graphs` graphs like those of the sample are wanted.
        heap: how many times bytes count that the C library's heap keeps.
        others: reads batches that the loader gives before the sample, with which steps show what the heap keeps;
            None: there are none.
    """

    modules: Sequence[torch.nn.Module]
    precision: str
    sample: Any
    graphs: int | None
    accumulating: bool
    spread: GraphSpread | None = None
    heap: Surplus = ONCE
    others: Others | None = None

    def peak(self, loss: Callable[[Any], Any]) -> StepBytes:
        """Return the bytes of a step; the models are afterwards as before.

        Raises:
            ValueError: the step takes more than is free in this machine.
        """
        free, here = memory().free, OnCpu(self.modules, self.precision)
        try:
            with left_as_they_were(self.modules), _attributes_kept(self.modules), here:

                def run(given: Any) -> Any:
                    with here.autocast():
                        return loss(given)

                if self.scales:
                    return StepBytes(self._scaled(run, here.batch(self.sample)), self.heap)
                return self._as_it_is(run, here, free)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise ValueError(
                f"a step with {self.described} takes more than the {format_size(free)} that are free here: give a "
                "batch of fewer graphs as sample=, from which the plan of batch_size= is scaled"
            ) from error

    @property
    def scales(self) -> bool:
        """Whether other batches than the sample are wanted."""
        return self.graphs is not None and graphs_of(self.sample) not in (None, 0, self.graphs)

    @property
    def described(self) -> str:
        """The batch that is run, in words."""
        kind = _kind_of(self.sample)
        if kind is None:
            return "the sample"
        graphs, nodes, edges = kind.counts
        return f"{graphs:,} graph{'s' * (graphs != 1)} of {nodes:,} nodes and {edges:,} edges"

    @property
    def note(self) -> str:
        """What the bytes are those of."""
        if not self.scales:
            largest = f", {self.spread.words}" if self.spread and self.graphs is None else ""
            return f"of a step with {self.described}{largest}"
        wanted = f"{self.graphs:,}"
        if self.spread is not None:
            graphs, nodes, edges = self.spread.counts[0]
            wanted = f"{graphs:,} of {nodes:,} nodes and {edges:,} edges, {self.spread.words},"
        return f"an estimate: scaled to {wanted} from a step with {self.described}"

    def _as_it_is(self, loss: Callable[[Any], Any], here: OnCpu, free: int) -> StepBytes:
        batch = here.batch(self.sample)
        changed = changed_in_place(batch)
        found = self._observed(loss, batch, free)
        renews = changed()
        del batch, changed  # series begin with a heap without them
        if self.heap.times == 1:
            return StepBytes(found.peak_with_gradients, self.heap)
        each, heap, others = Each.of_step(found.timeline, varies=True), self.heap, self.others
        if heap.is_bound and others is not None:
            heap = surplus_of(
                each,
                heap,
                nbytes_of(tensors_of(self.sample)),
                lambda: [here.own(one) for one in [*others(), self.sample]],
                loss,
                self.modules,
                accumulating=self.accumulating,
                renews=renews,
            )
        return StepBytes(math.ceil(each.peak(np.ones(1), heap.times)), heap)

    def _observed(self, loss: Callable[[Any], Any], batch: Any, free: int) -> ActivationBytes:
        return activation_bytes(lambda: loss(batch), self.modules, accumulating=self.accumulating, limit=free)

    def _scaled(self, loss: Callable[[Any], Any], batch: Any) -> int:
        kind = kind_of(batch)
        found = measured(kind, [loss], self.modules)
        curve = found.accumulating if self.accumulating else found.step
        if self.spread is not None:
            return max(curve.in_heap(self.heap.times, *counts) for counts in self.spread.counts)
        return curve.in_heap(self.heap.times, *(count * (self.graphs or 0) / kind.counts[0] for count in kind.counts))


class LargestStep:
    """The step that takes most of several, of which the first shows what the C library's heap takes.

    Attributes:
        note: what the bytes are those of.
        heap: how many times bytes count that the C library's heap keeps.
    """

    def __init__(self, steps: Sequence[GraphStep]) -> None:
        self._steps = steps
        self.note, self.heap = steps[0].note, steps[0].heap

    def peak(self, loss: Callable[[Any], Any]) -> int:
        """Return its bytes; see `GraphStep.peak`."""
        most, heap = 0, self.heap
        for step in self._steps:
            found = replace(step, heap=heap).peak(loss)
            heap = found.heap
            if found.peak >= most:
                self.heap = heap
                most, self.note = found.peak, "; ".join(filter(None, [step.note, found.heap.words]))
        return most


@contextlib.contextmanager
def _attributes_kept(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Restore the attributes of modules at the end, such as edges that a layer keeps for later calls."""
    before = [(part, dict(vars(part))) for module in modules for part in module.modules()]
    try:
        yield
    finally:
        for part, own in before:
            vars(part).clear()
            vars(part).update(own)
