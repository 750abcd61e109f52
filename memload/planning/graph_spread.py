"""How much batches of graphs differ in size, known from the sizes of all graphs before any batch is made.

sizes of graphs, a loader's sampler -> rows of all batches of some epochs -> nodes and edges of each
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import SequentialSampler

from memload.engine.gather_spec import GatherSpec
from memload.graphs.datasets import GraphSizes, sizes_of
from memload.loader.fast_loader import FastLoader
from memload.planning.mixture import EPOCHS
from memload.planning.variants import GraphBatches
from memload.sampling.budget_batches import BudgetBatchSampler

Counts = NDArray[np.int64]

SURE = 0.975
"""The probability that the mean of all graphs is below what a sample of them is taken for.

Student's t is of sizes that are normally distributed. Of 16 graphs whose sizes are lognormal (sigma 0.7) or
exponential, it was below in 92 of 100 samples, of 4 in 88."""
FIRST = 9
"""The most batches that steps are made with, beside the largest, to see what the C library's heap keeps."""
_MOST_ROWS = 1 << 22  # of the epochs that are looked at together
_DEVIATIONS = 3.0  # by which the fullest of some hundred batches exceeds the mean: 2.5 of 100 batches, 3.2 of 1,000
_WORTH_TELLING = 1.05  # times the mean: batches that differ less need no budget


@dataclass(frozen=True)
class GraphSpread:
    """The sizes of the batches of graphs that a loader gives in some epochs.

    Attributes:
        graphs, nodes, edges: int64 (batches,), the counts of each batch.
        largest: the rows of the batch with most nodes and of that with most edges; one if they are the same.
        epochs: the number of epochs.
        single: the most nodes and the most edges of a graph.
        by_budget: whether a batch sampler decides how many graphs a batch has.
        first: the rows of the first batches of an epoch, in their order, at most `FIRST`.
    """

    graphs: Counts
    nodes: Counts
    edges: Counts
    largest: tuple[Counts, ...]
    epochs: int
    single: Mapping[str, int]
    by_budget: bool
    first: tuple[Counts, ...] = ()

    @classmethod
    def of(cls, loader: FastLoader[Any]) -> GraphSpread | None:
        """Return the spread of a loader's batches; None if it gives no graphs, or its sampler cannot be foreseen."""
        sizes = sizes_in(loader)
        if sizes is None or not len(sizes.nodes):
            return None
        nodes, edges = (np.asarray(each, dtype=np.int64) for each in sizes)
        found: list[list[Counts]] = []  # graphs, nodes and edges of the batches of each epoch
        most: dict[int, tuple[int, Counts]] = {}
        first: tuple[Counts, ...] = ()
        for rows, starts in _epochs(loader, len(nodes)):
            counts = [np.add.reduceat(each[rows], starts) for each in (nodes, edges)]
            ends = np.append(starts[1:], len(rows))
            found.append([ends - starts, *counts])
            first = first or tuple(rows[a:b] for a, b in zip(starts[:FIRST], ends, strict=False))
            for k, each in enumerate(counts):
                at = int(each.argmax())
                if k not in most or each[at] > most[k][0]:
                    most[k] = (int(each[at]), rows[starts[at] : ends[at]])
        if not found:
            return None
        largest = {rows.tobytes(): rows for _, rows in most.values()}
        graphs, nodes, edges = (np.concatenate(each) for each in zip(*found, strict=True))
        single = {"nodes": int(sizes.nodes.max()), "edges": int(sizes.edges.max())}
        by_budget = loader.batch_size is None
        return cls(graphs, nodes, edges, tuple(largest.values()), len(found), single, by_budget, first)

    @property
    def counts(self) -> list[tuple[int, int, int]]:
        """The graphs, nodes and edges of the largest batches."""
        places = dict.fromkeys([int(self.nodes.argmax()), int(self.edges.argmax())])
        return [(int(self.graphs[k]), int(self.nodes[k]), int(self.edges[k])) for k in places]

    @property
    def words(self) -> str:
        """The batches that the largest is one of."""
        return f"the largest of {len(self.graphs):,} in {self.epochs} epoch{'s' * (self.epochs != 1)}"

    def told(self, sample: tuple[int, int, int] | None = None) -> str:
        """Return sentences on these batches, and what makes them alike.

        Args:
            sample: the graphs, nodes and edges of the batch that is planned; None: the largest of these batches.
        """
        whole = self.graphs == self.graphs.max() if not self.by_budget else np.ones(len(self.graphs), dtype=bool)
        counts = [_range(self.nodes[whole], "nodes"), _range(self.edges[whole], "edges")]
        whose = "of the batch sampler" if self.by_budget else f"of {int(self.graphs.max()):,} graphs"
        if self.by_budget:
            counts.insert(0, _range(self.graphs, "graphs"))
        text = f"Batches {whose} have {', '.join(counts[:-1])} and {counts[-1]}"
        return f"{text}; {self._planned(sample)}.{'' if self.by_budget else self._budget(whole)}"

    def _planned(self, sample: tuple[int, int, int] | None) -> str:
        if sample is None:
            return "the plan is for the largest"
        most = [each.max() / max(1, one) for one, each in zip(sample[1:], (self.nodes, self.edges), strict=True)]
        if max(most) < 1.01:
            return "the plan is for the sample, which is as large as the largest"
        what = "nodes" if most[0] >= most[1] else "edges"
        return (
            f"the plan is for the sample, and the largest has {max(most) - 1:.0%} more {what}: without sample=, the "
            "plan is for the largest"
        )

    def _budget(self, whole: NDArray[np.bool_]) -> str:
        """Return a sentence on the budget that makes batches alike; empty if they are."""
        ratios = {
            name: float(each[whole].max() / max(1.0, each[whole].mean()))
            for name, each in (("nodes", self.nodes), ("edges", self.edges))
        }
        name = max(ratios, key=lambda one: ratios[one])
        if ratios[name] < _WORTH_TELLING:
            return ""
        budget = max(self.single[name], round(float(getattr(self, name)[whole].mean())))
        return (
            f" batch_sampler=memload.BudgetBatchSampler(graphs.sizes().{name}, budget={budget}) gives no batch more "
            f"{name} than that, where the largest has {ratios[name] - 1:.0%} more than the mean."
        )


@dataclass(frozen=True)
class GraphMeans:
    """The mean graph of a dataset, or of a sample of it, and how much graphs differ.

    Attributes:
        means: nodes and edges of the mean graph.
        deviations: standard deviations of nodes and edges; of a sample of one graph, the means.
        seen: the graphs of the sample from which the means are; None: all graphs of the dataset.
    """

    means: tuple[float, float]
    deviations: tuple[float, float]
    seen: int | None

    @classmethod
    def of(cls, kind: Any, loader: Any) -> GraphMeans | None:
        """Return the means over the graphs of a loader's dataset, else over those of a sample; None without values."""
        if not isinstance(kind, GraphBatches):
            return None
        sizes = None if loader is None else sizes_in(loader)
        if sizes is not None and len(sizes.nodes):
            return cls(*_moments(sizes.nodes, sizes.edges), None)
        each = kind.each_graph()
        if each is None:
            return None
        seen = len(each[0])
        means, deviations = _moments(*each, of_a_sample=seen > 1)
        return cls(means, deviations if seen > 1 else means, seen)

    def counts(self, size: int, probability: float = 0.5) -> tuple[float, float, float]:
        """Return graphs, nodes and edges of the fullest batches of `size` graphs.

        Args:
            size: the graphs of a batch.
            probability: that the means of all graphs are below those that are assumed, if a sample tells them.
        """
        errors = _quantile(probability, self.seen - 1) / math.sqrt(self.seen) if self.seen else 0.0
        nodes, edges = (
            max(0.0, mean + errors * deviation) * size + _DEVIATIONS * deviation * math.sqrt(size)
            for mean, deviation in zip(self.means, self.deviations, strict=True)
        )
        return size, nodes, edges


def sizes_in(loader: Any) -> GraphSizes | None:
    """Return the sizes of the graphs that a loader reads; None if there are none, or they are not known."""
    if not isinstance(loader, FastLoader):
        sizes = getattr(getattr(loader, "dataset", None), "sizes", None)
        found = sizes() if callable(sizes) else None
        return found if isinstance(found, GraphSizes) else None
    source = loader.__memload_loader__().source
    if not isinstance(source, GatherSpec) or not source.layout.reads_values:
        return None
    try:
        return sizes_of({str(key): field for key, field in source.fields.items()})
    except ValueError:
        return None


def _epochs(loader: FastLoader[Any], rows: int) -> Iterator[tuple[Counts, Counts]]:
    """Yield the rows of an epoch in their order, and the begin of each batch; nothing if they cannot be foreseen."""
    sampler: Any = loader.sampler
    size = loader.batch_size
    if size is None:
        yield from _of_batch_sampler(loader.batch_sampler)
        return
    in_order = isinstance(sampler, SequentialSampler)
    draws = np.random.default_rng(0)
    weights = getattr(sampler, "weights", None)
    shares = None
    if weights is not None and len(weights) == rows:
        shares = np.asarray(torch.as_tensor(weights), dtype=np.float64)
        shares = shares / shares.sum()
    for _ in range(1 if in_order else max(1, min(EPOCHS, _MOST_ROWS // rows))):
        order = np.arange(rows, dtype=np.int64)
        if shares is not None:
            order = draws.choice(rows, len(sampler), p=shares)
        elif not in_order:
            draws.shuffle(order)
        starts = np.arange(0, len(order), size)
        whole = len(order) // size
        if loader.drop_last and whole:
            order, starts = order[: whole * size], starts[:whole]
        yield order, starts


def _of_batch_sampler(sampler: Any) -> Iterator[tuple[Counts, Counts]]:
    if isinstance(sampler, BudgetBatchSampler):
        own = copy.copy(sampler)
        for epoch in range(EPOCHS):
            own.set_epoch(epoch)
            yield _joined(list(own))
    elif isinstance(sampler, list | tuple) and sampler:
        yield _joined(sampler)


def _joined(batches: Sequence[Any]) -> tuple[Counts, Counts]:
    batches = [np.asarray(batch, dtype=np.int64) for batch in batches if len(batch)]
    starts = np.cumsum([0, *map(len, batches[:-1])], dtype=np.int64)
    return np.concatenate(batches), starts


def _moments(nodes: Any, edges: Any, *, of_a_sample: bool = False) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return means and standard deviations; the latter as estimates for all graphs if these are a sample."""
    each = [np.asarray(one, dtype=np.float64) for one in (nodes, edges)]
    means = [float(one.mean()) for one in each]
    deviations = [float(one.std(ddof=int(of_a_sample))) for one in each]
    return (means[0], means[1]), (deviations[0], deviations[1])


def _quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t by the expansion of Fisher and Cornish, within 4 % from 3 degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5, the first three terms.
    """
    z = NormalDist().inv_cdf(probability)
    freedom = max(1, freedom)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _range(counts: Counts, unit: str) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,} {unit}" if low == high else f"{low:,} to {high:,} {unit}"
