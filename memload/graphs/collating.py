"""Batches of graphs: joined from samples, or laid out so that the gather joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memload import _core
from memload.batches.layout import DictOf, Graphs, Only
from memload.engine.source import NotNative, Source
from memload.errors import FormatError
from memload.fields import Field
from memload.graphs.datasets import GraphRows
from memload.graphs.layout import (
    COUNTED,
    Attributes,
    GraphLayout,
    Joined,
    Part,
    attributes_of,
    check_attributes,
    counts_place,
    node_attribute,
    parts_of,
)
from memload.graphs.lists import Attribute, Kind, attribute, difference
from memload.graphs.pyg import batch_of, is_data, joined
from memload.ragged_rows.fields import RaggedField
from memload.ragged_rows.forms import Ragged, RaggedArray
from memload.rows.stored import where_stored

_MOST_NODES = 2.0**60


def graph_collate(samples: Sequence[Any]) -> Any:
    """Collate graphs into one: the ``collate_fn`` for graph datasets.

    In FastLoader over a `memload.GraphDataset`, or its ``as_plain()``, batches are gathered natively. It is a plain
    function, and serves a stock ``DataLoader`` as well.

    Args:
        samples: PyTorch Geometric's ``Data``, or dicts of tensors as ``as_plain()`` has them.

    Returns:
        Of ``Data`` the ``Batch`` that PyTorch Geometric's own loader makes; of dicts a `memload.GraphBatch`.

    Raises:
        TypeError: samples are neither.
        ValueError: dicts differ in their attributes, or in the dtypes or shapes of these.

    Example:
        >>> import memload, torch
        >>> ring = {"x": torch.rand(3, 8), "edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]])}
        >>> memload.graph_collate([ring, ring]).edge_index
        tensor([[0, 1, 2, 3, 4, 5],
                [1, 2, 0, 4, 5, 3]])
    """
    if isinstance(samples, GraphRows) and (batch := samples.joined()) is not None:
        return batch
    first = samples[0]
    if is_data(first):
        return joined(list(samples))
    if not isinstance(first, Mapping):
        raise TypeError(
            f"graph_collate joins torch_geometric.data.Data, or dicts of tensors; got {type(first).__name__}"
        )
    graphs = [{name: attribute(name, value) for name, value in sample.items()} for sample in samples]
    kinds = _kinds(graphs[0])
    _check_plain({name: (kind.dtype, kind.shape) for name, kind in kinds.items()})
    for number, graph in enumerate(graphs):
        if (own := _kinds(graph)) != kinds:
            raise ValueError(f"graph {number} of the batch: {difference(own, kinds)}")
    parts = tuple(Part(name, kind.dtype, kind.shape) for name, kind in kinds.items())
    return GraphLayout(parts, Joined.plain).build(
        _taken(kind, [graph[name] for graph in graphs]) for name, kind in kinds.items()
    )


def graphs_joined(source: Source) -> Source:
    """Return the source whose batches are those that `graph_collate` makes.

    Raises:
        NotNative: its samples are no graphs.
    """
    named = isinstance(source.layout, DictOf) and all(member == Only() for _, member in source.layout.members)
    if source.maps or not (named or isinstance(source.layout, Graphs)):
        raise NotNative(
            "graph_collate joins graphs: give memload.open_graphs(...) or memload.from_graphs(...), or a dataset of "
            "their attributes whose samples are dicts, without map()."
        )
    try:
        (_check_plain if named else check_attributes)(attributes_of(source.fields))
    except ValueError as error:
        raise NotNative(f"graph_collate joins graphs: {error}.") from None
    counts = _counts(source.fields)
    parts = parts_of(source.fields, increased=True)
    fields = {
        name: _in_a_batch(field, counts if part.increased else None)
        for part, (name, field) in zip(parts, source.fields.items(), strict=True)
    }
    layout = GraphLayout(parts, Joined.plain if named else batch_of, counts_place(source.fields))
    return replace(source, fields=fields, layout=layout, takes_lists=False, whole=False)


def _check_plain(attributes: Attributes) -> None:
    check_attributes(attributes)
    if node_attribute(attributes) is None:
        raise ValueError("there is no telling how many nodes a graph has: it needs an x, a pos or a num_nodes")


def _in_a_batch(field: Field, counts: _core.Ragged | None) -> Field:
    """The field as batches of graphs have it: values and offsets, increased by the counts of the graphs before."""
    if not isinstance(field, RaggedField):
        return field
    return replace(field, form="offsets", column=field.column if counts is None else field.column.counted_by(counts))


def _counts(fields: Mapping[Any, Field]) -> _core.Ragged | None:
    """A column with as many items in each row as a graph has nodes; None if graphs have none."""
    name = node_attribute(attributes_of(fields))
    if name is None:
        return None
    field = fields[name]
    if isinstance(field, RaggedField):
        return field.column
    if name == COUNTED:
        nodes = field.gather(np.arange(field.rows)).numpy()
    else:
        nodes = np.full(field.rows, Part(name, field.dtype, field.shape).length)
    where = where_stored(field.column)
    if len(nodes) and nodes.min() < 0:
        raise FormatError(f"{where}: graph {int(nodes.argmin())} has a num_nodes of {nodes.min()}; expected 0 or more")
    if (total := nodes.sum(dtype=np.float64)) > _MOST_NODES:
        raise FormatError(
            f"{where}: the graphs have {total:.3g} nodes by their num_nodes, more than can be numbered; graph "
            f"{int(nodes.argmax())} alone {nodes.max():,}"
        )
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(nodes)])
    offsets = _core.Storage.borrow(ends, ends.ctypes.data, ends.nbytes, "the numbers of nodes")
    # Of this column only the offsets are read; its items are addresses that nobody touches, and take no memory.
    items = _core.Storage.borrow(ends, ends.ctypes.data, int(ends[-1]), "nodes")
    return _core.Ragged(1, 1, [(offsets, 0, items, 0, field.rows, items.nbytes, 0)])


def _kinds(graph: Mapping[str, Attribute]) -> dict[str, Kind]:
    return {name: Kind.of(name, value) for name, value in graph.items()}


def _taken(kind: Kind, values: list[Attribute]) -> Any:
    """One attribute of graphs as the gather gives it."""
    joined = kind.joined(values)
    return Ragged(joined.values, joined.offsets) if isinstance(joined, RaggedArray) else joined
