"""Datasets of graphs: samples are PyTorch Geometric's `Data`, batches its `Batch`, gathered as one graph.

list of Data -> values and offsets of each attribute -> gather -> one graph of a batch's graphs -> Batch
lists.py        a field of the dataset                  core      layout.py                        pyg.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, SupportsIndex

from memload.batches.gathered import GatheredRows, Indices
from memload.dataset import Dataset
from memload.engine.door import Door
from memload.fields import MOST_BYTES
from memload.graphs.layout import GraphLayout, attributes_of, check_attributes, counts_place, parts_of
from memload.graphs.lists import GraphChecker, in_chunks
from memload.graphs.pyg import batch_of, data_of, geometric
from memload.ragged_rows.fields import RaggedField
from memload.sources.ragged_arrays import field_of


@dataclass(frozen=True, eq=False, repr=False)
class GraphDataset(Dataset):
    """Graphs, read in place: a memload dataset whose samples are PyTorch Geometric's ``Data``.

    Made by `memload.from_graphs` and `memload.open_graphs`. Its fields are the attributes of the graphs, in order, most
    of them with rows of different length. In a `FastLoader` with ``collate_fn=memload.graph_collate`` batches are
    gathered natively, as PyTorch Geometric's ``Batch``. `select`, `split` and `concat` give graph datasets again, and
    so does ``memload.concat({"name": graphs, ...})``, whose graphs have ``dataset_idx`` as one more attribute, an int.

    Numbers that a graph has as attributes come back as tensors without dimensions, ``num_nodes`` as an int.

    Raises:
        ValueError: a field cannot be an attribute of graphs, or there is no telling how many nodes they have.

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
        if self.layout != "dict":
            raise ValueError('graphs have attributes by name: give fields with the layout "dict"')
        check_attributes(attributes_of(self.fields))
        for name, field in self.fields.items():
            if isinstance(field, RaggedField) and field.form != "offsets":
                raise ValueError(
                    f"graphs are joined, so that {name!r} cannot be {field.form!r} in a batch; those of as_plain() can"
                )

    def __getitem__(self, index: SupportsIndex) -> Any:
        return data_of(super().__getitem__(index))

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the graphs of these rows, as a stock DataLoader asks for them; memload's threads gather them.

        `memload.graph_collate` makes the gathered batch of this list. To any other collate function it is the list
        `[ds[i] for i in indices]`.

        Args:
            indices: integers; negative ones count from the end.

        Raises:
            IndexError, TypeError: as `ds[i]` does.
        """
        if type(self).__getitem__ is not GraphDataset.__getitem__:
            return [self[index] for index in indices]
        return GraphRows(self._door, self._rows_at(indices), self._layout)

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
        return GraphDataset(joined.fields, borders=joined.borders)

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

    @functools.cached_property
    def _layout(self) -> GraphLayout:
        return GraphLayout(parts_of(self.fields, increased=False), batch_of, counts_place(self.fields))

    def __repr__(self) -> str:
        return super().__repr__().replace("memload.Dataset", "memload.GraphDataset", 1).replace(" rows,", " graphs,", 1)

    def __reduce__(self) -> tuple[Callable[..., GraphDataset], tuple[Any, ...]]:
        return _of_plain, (self.as_plain(),)


class GraphRows(GatheredRows[Door]):
    """The graphs of some rows: gathered as a batch for `memload.graph_collate`, an ordinary list for others."""

    def __init__(self, door: Door, rows: Indices, layout: GraphLayout) -> None:
        super().__init__(door, rows)
        self._layout = layout

    def joined(self) -> Any:
        """Return the batch, if nobody has looked at the graphs; None otherwise."""
        if self._door is None or not len(self):
            return None
        return self._layout.build(iter(self._door.gather(self._rows).values()))

    def whole(self) -> None:
        """There is no batch of graphs but the one that `joined` makes."""

    def __getitem__(self, index: Any) -> Any:
        self._become_samples()
        return list.__getitem__(self, index)

    def _become_samples(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            list.extend(self, map(data_of, list(door.rows(self._rows))))


def _of_plain(plain: Dataset) -> GraphDataset:
    return GraphDataset(plain.fields, names=plain.names, borders=plain.borders)


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
