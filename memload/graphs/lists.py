"""Checks graphs one by one against the first, and joins them attribute by attribute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from memload.columns.graph_attributes import (
    COUNTED,
    Attribute,
    AttributeKind,
    attribute,
    check_attributes,
    difference,
    node_attribute,
)
from memload.formats.geometric import own_rule
from memload.formats.graph_list import each_graph
from memload.formats.ragged_arrays import ragged
from memload.formats.torch_file import GEOMETRIC
from memload.sizes import counted

_OBJECT_BYTES = 1 << 10  # about the bytes of a tensor object without its values


def joined_attribute(kind: AttributeKind, values: Sequence[Any]) -> Any:
    """Return one attribute of all graphs, in the form that `memload.from_arrays` and `ShardWriter.append` take."""
    if kind.dtype is None:
        return list(values)
    return ragged(values, axis=kind.axis) if kind.shape else torch.stack(list(values))


class GraphChecker:
    """Checks graphs of PyTorch Geometric, and returns their attributes as tensors that can be stored.

    Args:
        data: the class `torch_geometric.data.Data`.
    """

    def __init__(self, data: type) -> None:
        self._data = data
        self._number = 0
        self.kinds: dict[str, AttributeKind] = {}
        """The attributes of the first graph, in its order."""

    def attributes(self, graph: Any) -> dict[str, Attribute]:
        """Return the attributes of the next graph, in the order of the first.

        Raises:
            TypeError: it is no `Data`, or an attribute is no tensor, number or text.
            ValueError: it has other attributes than the first graph, or one of another dtype or shape.
        """
        self._check_class(graph)
        try:
            found = {name: attribute(name, value) for name, value in graph.stores[0].items()}
        except TypeError as error:
            raise TypeError(f"graph {self._number}: {error}") from None
        kinds = {name: AttributeKind.of(name, value) for name, value in found.items()}
        if not self._number:
            self._check_first(kinds)
            self.kinds = kinds
        elif kinds != self.kinds:
            raise ValueError(f"graph {self._number}: {difference(kinds, self.kinds)}")
        self._number += 1
        return {name: found[name] for name in self.kinds}

    def _check_class(self, graph: Any) -> None:
        if not isinstance(graph, self._data):
            raise TypeError(
                f"graph {self._number} is a {type(graph).__name__}; expected torch_geometric.data.Data, whose graphs "
                "have one kind of node and of edge"
            )
        if name := own_rule(type(graph)):
            raise TypeError(
                f"graph {self._number} is a {type(graph).__name__}, which overrides {name}; memload stores "
                "graphs whose attributes are joined by the rules of torch_geometric.data.Data"
            )

    def _check_first(self, kinds: Mapping[str, AttributeKind]) -> None:
        if not kinds:
            raise ValueError("graph 0 has no attributes")
        try:
            check_attributes({name: (kind.dtype, kind.shape) for name, kind in kinds.items()})
        except ValueError as error:
            raise ValueError(f"graph 0: {error}") from None


class JoinedGraphs:
    """Takes graphs one by one and joins some of them at a time, attribute by attribute.

    Args:
        data: the class `torch_geometric.data.Data`.
        nbytes: bytes of the graphs that are joined at once, with Python's objects for their attributes.
        take: called with the attributes of some graphs, as `memload.from_arrays` and `ShardWriter.extend` take them.

    Attributes:
        count: the number of graphs so far.
    """

    def __init__(self, data: type, nbytes: int, take: Callable[[dict[str, Any]], None]) -> None:
        self.count = 0
        self._checker = GraphChecker(data)
        self._nbytes, self._take, self._size = nbytes, take, 0
        self._chunk: dict[str, list[Attribute]] = {}

    def add(self, graph: Any) -> None:
        """Take a graph; raises as `GraphChecker.attributes` and `finish`."""
        for name, value in self._checker.attributes(graph).items():
            self._chunk.setdefault(name, []).append(value)
            self._size += _OBJECT_BYTES + (len(value) if isinstance(value, str) else value.nbytes)
        self.count += 1
        if self._size >= self._nbytes:
            self.finish()

    def add_all(self, graphs: Any, *, trust: bool) -> None:
        """Take the graphs of an iterable, or of a file with a list of them; raises as `each_graph`."""
        if isinstance(graphs, str | os.PathLike):
            each_graph(Path(graphs), self.add, {*GEOMETRIC, *_allowed_by_user()}, trust=trust)
            return
        for graph in graphs:
            self.add(graph)

    def finish(self) -> None:
        """Join the remaining graphs. Raises ValueError if an edge ends at no node of its graph."""
        chunk, self._chunk, self._size = self._chunk, {}, 0
        if chunk:
            self._check_edges(chunk)
            self._take({name: joined_attribute(self._checker.kinds[name], values) for name, values in chunk.items()})

    def _check_edges(self, chunk: Mapping[str, Sequence[Attribute]]) -> None:
        """Raise ValueError if an edge ends at no node of its graph: in a batch it would end in another graph."""
        kinds = self._checker.kinds
        attributes = {name: (kind.dtype, kind.shape) for name, kind in kinds.items()}
        counter = node_attribute(attributes)
        if counter is None or len(kinds["edge_index"].shape if "edge_index" in kinds else ()) != 2:
            return
        axis = kinds[counter].axis
        sized, edges = _tensors(chunk[counter]), _tensors(chunk["edge_index"])
        counts = [int(one) if counter == COUNTED else one.shape[axis] for one in sized]
        nodes = torch.tensor(counts, device="cpu")
        lengths = torch.tensor([one.numel() for one in edges], device="cpu")
        graphs = torch.arange(len(nodes), device="cpu").repeat_interleave(lengths)
        ends = torch.cat([one.flatten() for one in edges])
        for k in torch.nonzero((ends < 0) | (ends >= nodes[graphs]))[:1, 0].tolist():
            number, have = int(graphs[k]), counted(int(nodes[graphs[k]]), "node")
            raise ValueError(
                f"graph {self.count - len(nodes) + number}: an edge of edge_index ends at node {int(ends[k])}, and by "
                f"{counter} the graph has {have}, counted from 0; in a batch the edge would end in another graph"
            )


def _tensors(values: Sequence[Attribute]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _allowed_by_user() -> list[str]:
    """Return the names of the classes that `torch.serialization.add_safe_globals` allows."""
    allowed = (item[0] if isinstance(item, tuple) else item for item in torch.serialization.get_safe_globals())
    return [f"{item.__module__}.{item.__qualname__}" for item in allowed if hasattr(item, "__qualname__")]
