"""Datasets of graphs: samples are PyTorch Geometric's `Data`, batches its `Batch`, gathered as one graph.

    list of Data -> values and offsets of each attribute -> gather -> one graph of a batch's graphs -> Batch
    graph_lists.py  a field of the dataset                  core      graph_layout.py                  pyg.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, SupportsIndex

from memload.dataset import Dataset
from memload.fields import MOST_BYTES
from memload.graph_layout import attributes_of, check_attributes
from memload.graph_lists import GraphChecker, in_chunks
from memload.pyg import data_of, geometric
from memload.sources.ragged_arrays import field_of


@dataclass(frozen=True, eq=False, repr=False)
class GraphDataset(Dataset):
    """Graphs, read in place: a memload dataset whose samples are PyTorch Geometric's ``Data``.

    Made by `memload.from_graphs` and `memload.open_graphs`. Its fields are the attributes of the graphs, in order, most
    of them with rows of different length. In a `FastLoader` with ``collate_fn=memload.graph_collate`` batches are
    gathered natively, as PyTorch Geometric's ``Batch``. `select`, `split` and `concat` give graph datasets again.

    Numbers that a graph has as attributes come back as tensors without dimensions, ``num_nodes`` as an int.

    Raises:
        ValueError: there is no way to tell how many nodes a graph has, while attributes are numbers of nodes, or a field
            cannot be an attribute.

    Example:
        >>> import memload, torch
        >>> from torch_geometric.data import Data
        >>> ring = Data(x=torch.rand(3, 8), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
        >>> graphs = memload.from_graphs([ring, ring])
        >>> next(iter(memload.FastLoader(graphs, batch_size=2, collate_fn=memload.graph_collate)))
        DataBatch(x=[6, 8], edge_index=[2, 6], batch=[6], ptr=[3])
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout != "dict" or self.names:
            raise ValueError("graphs have attributes by name: give fields with the layout \"dict\", and no names=")
        check_attributes(attributes_of(self.fields))

    def __getitem__(self, index: SupportsIndex) -> Any:
        return data_of(super().__getitem__(index))

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the graphs of these rows, gathered at once."""
        return [data_of(sample) for sample in self.as_plain().__getitems__(indices)]

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
        return GraphDataset(super().concat(*others).fields)

    def as_plain(self) -> Dataset:
        """Return the same graphs as dicts of tensors, for which PyTorch Geometric is not needed.

        With ``collate_fn=memload.graph_collate`` their batches are `memload.GraphBatch`.

        Example:
            >>> import memload, torch
            >>> from torch_geometric.data import Data
            >>> memload.from_graphs([Data(x=torch.zeros(1, 2))]).as_plain()[0]
            {'x': tensor([[0., 0.]])}
        """
        return Dataset(self.fields)

    def __repr__(self) -> str:
        return super().__repr__().replace("memload.Dataset", "memload.GraphDataset", 1).replace(" rows,", " graphs,", 1)

    def __reduce__(self) -> tuple[Callable[..., GraphDataset], tuple[Any, ...]]:
        return _of_plain, (self.as_plain(),)


def _of_plain(plain: Dataset) -> GraphDataset:
    return GraphDataset(plain.fields)


def from_graphs(graphs: Iterable[Any]) -> GraphDataset:
    """Return graphs in memory as a dataset; their tensors are copied once, into one for each attribute.

    Args:
        graphs: PyTorch Geometric's ``Data`` with the same attributes: a list, a dataset of its, or any iterable.
            Attributes are tensors, numbers or texts; they are joined by the rules of ``Data``.

    Raises:
        ImportError: torch_geometric is not installed.
        TypeError: a graph is no ``Data``, has rules of its own, or an attribute that cannot be stored.
        ValueError: there are no graphs, or one differs from the first in attributes, dtypes or shapes.

    Example:
        >>> import memload, torch
        >>> from torch_geometric.data import Data
        >>> graphs = memload.from_graphs([Data(x=torch.rand(n, 4), y=float(n)) for n in (2, 5)])
        >>> graphs[1]
        Data(x=[5, 4], y=5.0)
    """
    checker = GraphChecker(geometric().Data)
    for chunk in in_chunks(map(checker.attributes, graphs), nbytes=MOST_BYTES):
        return GraphDataset({name: field_of(name, checker.kinds[name].joined(chunk[name])) for name in chunk})
    raise ValueError("there are no graphs, which could say what attributes they have")
