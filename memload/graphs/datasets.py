"""Datasets of graphs: samples are PyTorch Geometric's `Data`, batches its `Batch`, gathered as one graph.

list of Data -> values and offsets of each attribute -> gather -> one graph of a batch's graphs -> Batch
lists.py        a field of the dataset                  core      layout.py                        pyg.py
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch

from memload.columns.borders import Borders
from memload.columns.fields import Field
from memload.columns.foreign_names import says_immutable
from memload.columns.graph_attributes import (
    COUNTED,
    along_last,
    attributes_of,
    check_attributes,
    edge_attribute,
    node_attribute,
)
from memload.columns.held_rows import HeldRows, appended_rows
from memload.columns.ragged_fields import RaggedField
from memload.dataset.dataset import Dataset
from memload.engine.gather_spec import GatherSpec
from memload.engine.layout import Graphs
from memload.engine.readers import answers_by
from memload.formats.geometric import geometric
from memload.formats.ragged_arrays import field_of
from memload.graphs.collating import GraphRows, graph_collate
from memload.graphs.layout import GraphLayout, Part, counts_place, parts_of
from memload.graphs.lists import JoinedGraphs
from memload.graphs.pyg import batch_of, data_of

_CHUNK_BYTES = 2**24  # bytes of graphs that are joined at once


@says_immutable
@answers_by("_arranged")
@dataclass(frozen=True, eq=False, repr=False)
class GraphDataset(Dataset):
    """A memload dataset of graphs, read in place, whose samples are PyTorch Geometric's ``Data``.

    `memload.from_graphs` and `memload.open_graphs` make it. Its fields are the attributes of the graphs, in order; rows
    of most attributes differ in length. A `FastLoader` with ``collate_fn=memload.graph_collate`` gathers batches
    natively, as PyTorch Geometric's ``Batch``. `select`, `split` and `concat` return graph datasets, and so does
    ``memload.concat({"name": graphs, ...})``, whose graphs have ``dataset_idx`` as one more attribute, an int.
    ``memload.zip(graphs=graphs, teacher=values)`` adds fields of other datasets for each graph, or for each node.

    Attributes that are numbers are read as tensors without dimensions, ``num_nodes`` as an int.

    Raises:
        ValueError: a field cannot be an attribute of graphs, or their numbers of nodes cannot be determined.

    Example:
        >>> import memload, torch
        >>> from torch_geometric.data import Data
        >>> ring = Data(x=torch.rand(3, 8), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
        >>> graphs = memload.from_graphs([ring, ring])
        >>> next(iter(memload.FastLoader(graphs, batch_size=2, collate_fn=memload.graph_collate)))
        DataBatch(x=[6, 8], edge_index=[2, 6], batch=[6], ptr=[3])
    """

    _of_graphs = True
    _collate_fn = staticmethod(graph_collate)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout != "dict":
            raise ValueError('attributes of graphs have names: give fields with the layout "dict"')
        check_attributes(attributes_of(self.fields))
        for name, field in self.fields.items():
            if isinstance(field, RaggedField) and field.form != "offsets":
                raise ValueError(
                    f"graphs are joined, so {name!r} cannot be {field.form!r} in a batch; with as_plain() it can"
                )

    def __getitem__(self, index: SupportsIndex) -> Any:
        return data_of(super().__getitem__(index))

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the graphs of these rows for a stock DataLoader; memload's threads gather them as one batch.

        `memload.graph_collate` turns the list into the gathered batch. Any other collate function sees the list
        `[ds[i] for i in indices]`.

        Args:
            indices: integers; negative ones count from the end.

        Raises:
            IndexError, TypeError: as `ds[i]` does.
        """
        if type(self).__getitem__ is not GraphDataset.__getitem__:
            return [self[index] for index in indices]
        return GraphRows(self._fetcher, self._rows_at(indices), self._layout)

    def concat(self, *others: Dataset) -> GraphDataset:
        """Return the graphs of this dataset and then those of the others; nothing is copied.

        Raises:
            ValueError, TypeError: as `Dataset.concat`.

        Example:
            >>> import memload, torch
            >>> from torch_geometric.data import Data
            >>> graphs = memload.from_graphs([Data(x=torch.rand(3, 8))])
            >>> len(graphs.concat(graphs))
            2
        """
        joined = super().concat(*others)
        return self._with(joined.fields, joined.names, joined.borders)

    def sizes(self) -> GraphSizes:
        """Return the numbers of nodes and edges of each graph, from offsets alone: no graph is read.

        Raises:
            ValueError: the numbers of nodes cannot be determined.

        Example:
            >>> import memload, torch
            >>> from torch_geometric.data import Data
            >>> ring = Data(x=torch.rand(3, 8), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
            >>> graphs = memload.from_graphs([ring, Data(x=torch.rand(1, 8), edge_index=torch.zeros(2, 1).long())])
            >>> graphs.sizes()
            GraphSizes(nodes=tensor([3, 1]), edges=tensor([3, 1]))
            >>> sampler = memload.BudgetBatchSampler(graphs.sizes().nodes, budget=3)
        """
        return sizes_of(self.fields)

    def as_plain(self) -> Dataset:
        """Return the same graphs as dicts of tensors, for which PyTorch Geometric is not needed.

        With ``collate_fn=memload.graph_collate`` their batches are `memload.GraphBatch`.

        Example:
            >>> import memload, torch
            >>> from torch_geometric.data import Data
            >>> memload.from_graphs([Data(x=torch.zeros(1, 2))]).as_plain()[0]
            {'x': tensor([[0., 0.]])}
        """
        return Dataset(self.fields, names=self.names, borders=self.borders)

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Return the same graphs with other names for some attributes, which keep their order; nothing is copied.

        Args:
            names: from old names to new ones.

        Raises:
            KeyError, TypeError: as `Dataset.rename`.
            ValueError: as `Dataset.rename`; or a name would change how graphs are joined, since PyTorch Geometric
                decides by name which attribute counts the nodes, and which holds indices of nodes.

        Example:
            >>> import memload, torch
            >>> from torch_geometric.data import Data
            >>> memload.from_graphs([Data(x=torch.zeros(3, 2), y=1.0)]).rename({"y": "energy"})[0]
            Data(x=[3, 2], energy=1.0)
        """
        renamed = super().rename(names)
        for old, new in names.items():
            if along_last(old) != along_last(new):
                raise ValueError(
                    f"rename: by their names, only one of {old!r} and {new!r} holds numbers of nodes, so graphs "
                    'would be joined in another way; keep or leave out "index" in the name'
                )
        before, after = (node_attribute(attributes_of(fields)) for fields in (self.fields, renamed.fields))
        if (before if before is None else names.get(before, before)) != after:
            raise ValueError(
                f"rename: {before!r} gives the number of nodes of a graph, and with the new names {after!r} would; "
                "PyTorch Geometric counts by num_nodes, x, pos and names with node in them"
            )
        return renamed

    def _windowed(self, fields: Mapping[str, Field], names: Sequence[str], borders: Borders) -> GraphDataset:
        """Return the dataset with windows of whole graphs; the joined axis stays the first, of length 1."""
        nodes = node_attribute(attributes_of(self.fields))
        for name in names:
            if along_last(name) or name == nodes:
                raise ValueError(
                    f"the attribute {name!r} defines the nodes of graphs, so it cannot be the frames of windows"
                )
        shaped = {name: _with_first_axis(field) if name in names else field for name, field in fields.items()}
        return super()._windowed(shaped, names, borders)

    def _with(self, fields: Mapping[str, Field], names: tuple[str, ...], borders: Borders) -> GraphDataset:
        return GraphDataset(fields, names=names, borders=borders)

    def __memload_source__(self) -> GatherSpec:
        """Return the gather specification of these graphs, of which `graph_collate` makes batches."""
        return replace(super().__memload_source__(), layout=Graphs())

    @functools.cached_property
    def _layout(self) -> GraphLayout:
        return GraphLayout(parts_of(self.fields, increased=False), batch_of, counts_place(self.fields))

    def __repr__(self) -> str:
        return super().__repr__().replace("memload.Dataset", "memload.GraphDataset", 1).replace(" rows,", " graphs,", 1)

    def __reduce__(self) -> tuple[Callable[..., GraphDataset], tuple[Any, ...]]:
        return _of_plain, (self.as_plain(),)


class GraphSizes(NamedTuple):
    """The numbers of nodes and edges of graphs.

    Attributes:
        nodes: int64 (graphs,).
        edges: int64 (graphs,), counted in ``edge_index``, or without one in ``edge_weight``, ``edge_attr`` or another
            attribute with "edge" in its name; 0 without any.
    """

    nodes: torch.Tensor
    edges: torch.Tensor


def sizes_of(fields: Mapping[str, Field]) -> GraphSizes:
    """Return the numbers of nodes and edges of each graph with these attributes; see `GraphDataset.sizes`.

    Raises:
        ValueError: the numbers of nodes cannot be determined.
    """
    nodes = node_attribute(attributes_of(fields))
    if nodes is None:
        raise ValueError("the numbers of nodes of these graphs are unknown: they have no num_nodes, x or pos")
    edges = edge_attribute(attributes_of(fields))
    none = torch.zeros(fields[nodes].rows, dtype=torch.int64, device="cpu")
    return GraphSizes(_lengths(nodes, fields[nodes]), none if edges is None else _lengths(edges, fields[edges]))


def _lengths(name: str, field: Field) -> torch.Tensor:
    """Return the number of items of an attribute in each graph; for `num_nodes` its values."""
    if isinstance(field, RaggedField):
        return field.lengths()
    if name == COUNTED:
        counts: torch.Tensor = field.gather(np.arange(field.rows))
        return counts
    return torch.full((field.rows,), Part(name, field.dtype, field.shape).length, device="cpu")


def _with_first_axis(windows: Field) -> Field:
    """Return windows (window, *shape) of an attribute as (1, window, *shape), without a former first axis of 1."""
    window, *shape = windows.shape
    return replace(windows, shape=(1, window, *(shape[1:] if shape[:1] == [1] else shape)))


def _of_plain(plain: Dataset) -> GraphDataset:
    return GraphDataset(plain.fields, names=plain.names, borders=plain.borders)


def from_graphs(graphs: Iterable[Any] | str | os.PathLike[str], *, trust: bool = False) -> GraphDataset:
    """Return graphs in memory as a dataset; it copies their tensors once, into one tensor for each attribute.

    Args:
        graphs: PyTorch Geometric's ``Data`` with the same attributes: a list, one of its datasets, or any iterable.
            Attributes are tensors, numbers or texts; they are joined by the rules of ``Data``. Or the path of a file to
            which ``torch.save`` wrote a list of them; a thousand of these are in memory at once, beside the result.
        trust: for such a file, unpickle any class, as `memload.open_graphs` does.

    Raises:
        ImportError: torch_geometric is not installed.
        TypeError: a graph is not a ``Data``, has rules of its own, or an attribute that cannot be stored.
        ValueError: there are no graphs, one differs from the first in attributes, dtypes or shapes, or one of its
            edges ends at no node of it.
        FormatError: the file holds no list, is damaged, or has a class that is not allowed.

    Example:
        >>> import memload, torch
        >>> from torch_geometric.data import Data
        >>> graphs = memload.from_graphs([Data(x=torch.rand(n, 4), y=float(n)) for n in (2, 5)])
        >>> graphs[1]
        Data(x=[5, 4], y=5.0)
    """
    held: dict[str, HeldRows] = {}

    def keep(attributes: dict[str, Any]) -> None:
        for name, values in attributes.items():
            held.setdefault(name, appended_rows(values)).put(0, values)

    joined = JoinedGraphs(geometric().Data, _CHUNK_BYTES, keep)
    joined.add_all(graphs, trust=trust)
    joined.finish()
    if not held:
        raise ValueError("there are no graphs, so their attributes are unknown")
    return GraphDataset({name: field_of(name, parts.finish()) for name, parts in held.items()})
