"""Batches of graphs: joined from samples, or laid out so that the gather joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from memload import _core
from memload.columns.fields import Field
from memload.columns.graph_attributes import (
    COUNTED,
    Attribute,
    AttributeKind,
    Attributes,
    attribute,
    attributes_of,
    check_attributes,
    difference,
    node_attribute,
)
from memload.columns.ragged_fields import RaggedField
from memload.columns.ragged_forms import Ragged, RaggedArray
from memload.columns.storage_terms import where_stored
from memload.engine.batch_fetcher import BatchFetcher
from memload.engine.collate_function import gathered_as
from memload.engine.gather_spec import GatherSpec, Key, NotNative
from memload.engine.gathered import GatheredRows
from memload.engine.layout import DictOf, Graphs, Only
from memload.errors import FormatError
from memload.formats.geometric import is_data
from memload.graphs.layout import GraphCollateOptions, GraphLayout, MergedGraph, Part, counts_place, parts_of
from memload.graphs.lists import joined_attribute
from memload.graphs.pyg import batch_of, data_of, joined
from memload.sampling.draws import Indices

_MOST_NODES = 2.0**60


def graphs_joined(source: GatherSpec, *, follow_batch: Any = None, exclude_keys: Any = None) -> GatherSpec:
    """Return the specification of batches that equal those of `graph_collate` with the same further arguments.

    Raises:
        NotNative: the samples are not graphs.
        ValueError: the graphs have attributes with names that a batch adds.
    """
    choice = GraphCollateOptions.of(follow_batch, exclude_keys)
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
    choice.check(map(str, source.fields))
    counts = _counts(source.fields)
    needed = choice.gathered(map(str, source.fields), node_attribute(attributes_of(source.fields)))
    gathered = {name: source.fields[name] for name in needed}
    parts = parts_of(gathered, increased=True)
    fields: dict[Key, Field] = {
        name: _batch_field(field, counts if part.increased else None)
        for part, (name, field) in zip(parts, gathered.items(), strict=True)
    }
    layout = GraphLayout(parts, MergedGraph.plain if named else batch_of, counts_place(source.fields), choice)
    return replace(source, fields=fields, layout=layout, takes_lists=False, whole=False, uncastable=layout.uncastable())


@gathered_as(graphs_joined)
def graph_collate(samples: Sequence[Any], *, follow_batch: Any = None, exclude_keys: Any = None) -> Any:
    """Collate graphs into one: the ``collate_fn`` for graph datasets.

    A FastLoader over a `memload.GraphDataset`, or its ``as_plain()``, gathers batches natively, even if further
    arguments are given by `functools.partial`. It is a plain function, and works in a stock ``DataLoader``, too.

    Args:
        samples: PyTorch Geometric's ``Data``, or dicts of tensors such as those of ``as_plain()``.
        follow_batch: names of attributes. For each, a batch also has ``NAME_batch``, int64 (items,), the graph of each
            item, and ``NAME_ptr``, int64 (graphs + 1,), as in PyTorch Geometric's loader.
        exclude_keys: names of attributes that are left out of batches.

    Returns:
        For ``Data``, the same ``Batch`` as from PyTorch Geometric's own loader; for dicts, a `memload.GraphBatch`.

    Raises:
        TypeError: samples are neither, or the further arguments are not lists of names.
        ValueError: dicts differ in their attributes, or in the dtypes or shapes of these.

    Example:
        >>> import memload, torch
        >>> ring = {"x": torch.rand(3, 8), "edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]])}
        >>> memload.graph_collate([ring, ring]).edge_index
        tensor([[0, 1, 2, 3, 4, 5],
                [1, 2, 0, 4, 5, 3]])
    """
    choice = GraphCollateOptions.of(follow_batch, exclude_keys)
    if isinstance(samples, GraphRows) and (batch := samples.joined(choice)) is not None:
        return batch
    first = samples[0]
    if is_data(first):
        return joined(list(samples), choice.follow, choice.exclude)
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
    choice.check(part.name for part in parts)
    return GraphLayout(parts, MergedGraph.plain, choice=choice).build(
        _as_gathered(kind, [graph[name] for graph in graphs]) for name, kind in kinds.items()
    )


def _check_plain(attributes: Attributes) -> None:
    check_attributes(attributes)
    if node_attribute(attributes) is None:
        raise ValueError("the number of nodes of a graph is unknown: a graph needs an x, a pos or a num_nodes")


def _batch_field(field: Field, counts: _core.Ragged | None) -> Field:
    """Return the field for batches of graphs: values and offsets, increased by the counts of earlier graphs."""
    if not isinstance(field, RaggedField):
        return field
    column = field.column
    if counts is not None and isinstance(column, _core.Ragged):  # not events, which hold no numbers of nodes
        column = column.counted_by(counts)
    return replace(field, form="offsets", column=column)


def _counts(fields: Mapping[Any, Field]) -> _core.Ragged | None:
    """Return a column with as many items in each row as a graph has nodes; None if graphs have none."""
    name = node_attribute(attributes_of(fields))
    if name is None:
        return None
    field = fields[name]
    if isinstance(field.column, _core.Ragged):
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
    # Only the offsets of this column are read; the addresses of its items are never touched and take no memory.
    items = _core.Storage.borrow(ends, ends.ctypes.data, int(ends[-1]), "nodes")
    return _core.Ragged(1, 1, [(offsets, 0, items, 0, field.rows, items.nbytes, 0)])


def _kinds(graph: Mapping[str, Attribute]) -> dict[str, AttributeKind]:
    return {name: AttributeKind.of(name, value) for name, value in graph.items()}


def _as_gathered(kind: AttributeKind, values: list[Attribute]) -> Any:
    """Return one attribute of graphs in the form of a gathered field."""
    joined = joined_attribute(kind, values)
    return Ragged(joined.values, joined.offsets) if isinstance(joined, RaggedArray) else joined


class GraphRows(GatheredRows[BatchFetcher]):
    """The graphs of some rows: `memload.graph_collate` gathers them as one batch; other code sees an ordinary list."""

    def __init__(self, fetcher: BatchFetcher, rows: Indices, layout: GraphLayout) -> None:
        super().__init__(fetcher, rows)
        self._layout = layout

    def joined(self, choice: GraphCollateOptions) -> Any:
        """Return the batch; None if code has read single graphs before."""
        if self._fetcher is None or not len(self):
            return None
        choice.check(part.name for part in self._layout.parts)
        return replace(self._layout, choice=choice).build(iter(self._fetcher.gather(self._rows).values()))

    def whole(self) -> None:
        """Return None: only `joined` makes a batch of graphs."""

    def __getitem__(self, index: Any) -> Any:
        self._become_samples()
        return list.__getitem__(self, index)

    def _become_samples(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            list.extend(self, map(data_of, list(fetcher.rows(self._rows))))
