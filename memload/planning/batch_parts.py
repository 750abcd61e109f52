"""Batches of the first graphs or rows of a sample: their steps foretell whether a step with the whole sample fits.

    a sample -> batches of its first few graphs, some four times as many each time -> at last the sample itself

Of graphs that are large by themselves, a share of their nodes and edges is taken.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import Any

import torch

from memload.columns.graph_attributes import COUNTED, along_last
from memload.planning.variants import GraphBatches, Kind, RaggedBatches

_FIRST = 1024
"""Nodes of the first part, or items of ragged rows: few enough for the limit of any machine that trains."""
_EDGES = 8
"""Edges of the first part, for each of these nodes."""
_GROWTH = 4
_LEAST = 2  # graphs or rows: a norm over one raises an error


def parts_of_kind(kind: Kind) -> Iterator[Kind]:
    """Yield parts of a sample, each some four times as large as the one before, and at last the sample.

    Of batches whose variants do not run the sample, nothing else is yielded.
    """
    nodes = _FIRST
    while (part := _part(kind, nodes)) is not None:
        yield part
        nodes *= _GROWTH
    yield kind


def _part(kind: Kind, most: int) -> Kind | None:
    """Return a part with at most so many nodes or items, if it can be had; None if the sample has no more."""
    if isinstance(kind, RaggedBatches):
        rows = max(_LEAST, kind.counts[0] * most // max(1, kind.counts[1]))
        return kind.first(rows) if rows < kind.counts[0] else None
    if isinstance(kind, GraphBatches) and isinstance(edges := kind.attributes.get("edge_index"), torch.Tensor):
        return None if edges.is_meta else _of_graphs(kind, most, most * _EDGES)
    return None


def _of_graphs(kind: GraphBatches, nodes: int, edges: int) -> GraphBatches | None:
    """Return the first graphs that have no more nodes and edges than these, or a share of the first two."""
    if kind.counts[1] <= nodes and kind.counts[2] <= edges:
        return None
    ends, of_edges = _ends(kind), kind.attributes["edge_index"][0]

    def edges_of(graphs: int) -> int:
        return int(torch.count_nonzero(of_edges < ends[graphs]))

    by_nodes = bisect.bisect_right(ends.tolist(), nodes) - 1
    by_edges = bisect.bisect_right(range(by_nodes + 1), edges, key=edges_of) - 1
    graphs = min(kind.counts[0], max(_LEAST, by_edges))
    share = min(1.0, nodes / max(1, int(ends[graphs])), edges / max(1, edges_of(graphs)))
    return FirstGraphs(kind, graphs, share).batches


class FirstGraphs:
    """The first graphs of a batch, with a share of the nodes of each, and the same share of their edges.

    An edge of a node that is left out joins another one of the same graph.

    Args:
        kind: the batch.
        graphs: the number of graphs.
        share: of the nodes and edges of each of these graphs, above 0 and up to 1.
    """

    def __init__(self, kind: GraphBatches, graphs: int, share: float) -> None:
        self._kind, self._graphs, self._share = kind, graphs, share
        self._begins = _ends(kind)[: graphs + 1]
        whole = self._begins.diff()
        self._sizes = torch.maximum((whole * share).long(), whole.clamp(max=1))
        self._ends = torch.cat([self._begins[:1], self._sizes.cumsum(0)])
        self._taken = {name: self._columns(value) for name, value in kind.attributes.items() if along_last(name)}

    @property
    def batches(self) -> GraphBatches:
        """Batches like this one."""
        made = {name: self._cut(name, value) for name, value in self._kind.attributes.items()}
        counts = (self._graphs, int(self._ends[-1]), made["edge_index"].shape[-1])
        return GraphBatches(self._kind.of_attributes(made, self._graphs), counts)

    def _columns(self, index: torch.Tensor) -> torch.Tensor:
        """Return which columns of an array of nodes are taken: the first of those of these graphs, bool (columns,).

        It makes no array of eight bytes for each column, since the sample may fill the memory already.
        """
        taken = index[(0,) * (index.ndim - 1)] < self._begins[-1]
        wanted = math.ceil(int(torch.count_nonzero(taken)) * self._share)
        ends = range(len(taken) + 1)
        taken[bisect.bisect_left(ends, wanted, key=lambda end: int(torch.count_nonzero(taken[:end]))) :] = False
        return taken

    def _cut(self, name: str, value: Any) -> Any:
        """Return an attribute of the part; one whose unit is not known stays."""
        if not isinstance(value, torch.Tensor) or not value.ndim:
            return int(self._ends[-1]) if name == COUNTED else value
        if name == "ptr":
            return self._ends.to(value)
        if along_last(name):
            return self._renumbered(value[..., self._taken[name]])
        own = self._taken.get(f"{name}_index")  # as edge_label has edge_label_index
        if own is not None and len(own) == len(value):
            return value[own]
        return self._cut_to(self._kind.level(name, len(value)), value)

    def _cut_to(self, level: str | None, value: torch.Tensor) -> torch.Tensor:
        if level == "edges":
            return value[self._taken["edge_index"]]
        if level == "nodes":
            return value[self._nodes]
        return value[: self._graphs] if level == "graphs" else value

    @property
    def _nodes(self) -> torch.Tensor:
        """The nodes that are taken, int64 (nodes,)."""
        moved = torch.repeat_interleave(self._begins[:-1] - self._ends[:-1], self._sizes)
        return torch.arange(int(self._ends[-1]), device=moved.device) + moved

    def _renumbered(self, index: torch.Tensor) -> torch.Tensor:
        """Return nodes of the part in place of those of the batch."""
        graph = _graph_of(index, self._begins).clamp(max=self._graphs - 1)  # of a column's first node it is in range
        within = (index - self._begins[graph]) % self._sizes[graph]
        return (within + self._ends[graph]).to(index.dtype)


def _ends(kind: GraphBatches) -> torch.Tensor:
    """Return the first node of each graph, and the number of all, int64 (graphs + 1,)."""
    ptr, edges = kind.attributes.get("ptr"), kind.attributes["edge_index"]
    return ptr.long() if ptr is not None else torch.tensor([0, kind.counts[1]], device=edges.device)


def _graph_of(nodes: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the graph of each node; the number of graphs for nodes beyond the last."""
    return torch.searchsorted(ends[1:].contiguous(), nodes.long().contiguous(), right=True)
