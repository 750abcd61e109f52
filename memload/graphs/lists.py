"""Graphs one by one, as arrays of all: checked against the first, and joined attribute by attribute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload.dtypes import dtype_name
from memload.graphs.layout import along_last, check_attributes
from memload.graphs.pyg import own_rule
from memload.sources.ragged_arrays import ragged

Attribute = torch.Tensor | str


@dataclass(frozen=True)
class Kind:
    """What an attribute has in common in all graphs.

    Attributes:
        dtype: of its elements; None for text.
        shape: of one graph's, with None for the axis along which graphs are joined; () for single numbers.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, name: str, value: Attribute) -> Kind:
        """Return the kind of one graph's attribute."""
        if isinstance(value, str):
            return cls(None, (None,))
        if not value.ndim:
            return cls(value.dtype, ())
        axis = value.ndim - 1 if along_last(name) else 0
        return cls(value.dtype, (*value.shape[:axis], None, *value.shape[axis + 1 :]))

    @property
    def axis(self) -> int:
        """The axis along which graphs are joined."""
        return self.shape.index(None) if self.shape else 0

    def __str__(self) -> str:
        if self.dtype is None:
            return "a text"
        if not self.shape:
            return f"one {dtype_name(self.dtype)}"
        sides = ", ".join("n" if side is None else str(side) for side in self.shape)
        return f"{dtype_name(self.dtype)} ({sides}{',' if len(self.shape) == 1 else ''})"

    def joined(self, values: Sequence[Any]) -> Any:
        """Return the attribute of all graphs, as `memload.from_arrays` and `ShardWriter.append` take it."""
        if self.dtype is None:
            return list(values)
        return ragged(values, axis=self.axis) if self.shape else torch.stack(list(values))


def attribute(name: str, value: Any) -> Attribute:
    """Return an attribute of a graph as a tensor on the CPU, or a text.

    Raises:
        TypeError: it is neither, nor a number.
    """
    if isinstance(value, bool | int | float):
        return torch.tensor(value, device="cpu")
    if isinstance(value, str):
        return value
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
        own: torch.Tensor = value.detach().cpu()
        return own
    sparse = isinstance(value, torch.Tensor) and value.layout != torch.strided
    raise TypeError(
        f"{name} is a {type(value).__name__}{' that is sparse' if sparse else ''}; expected a plain tensor, a number "
        f"or a text: convert it, or remove it by `del graph.{name}`"
    )


class GraphChecker:
    """Takes graphs as PyTorch Geometric has them, and gives their attributes as tensors that can be stored.

    Args:
        data: the class `torch_geometric.data.Data`.
    """

    def __init__(self, data: type) -> None:
        self._data = data
        self._number = 0
        self.kinds: dict[str, Kind] = {}
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
        kinds = {name: Kind.of(name, value) for name, value in found.items()}
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
                f"graph {self._number} is a {type(graph).__name__}, which overrides {name}; stored are graphs "
                "whose attributes are joined by the rules of torch_geometric.data.Data"
            )

    def _check_first(self, kinds: Mapping[str, Kind]) -> None:
        if not kinds:
            raise ValueError("graph 0 has no attributes")
        try:
            check_attributes({name: (kind.dtype, kind.shape) for name, kind in kinds.items()})
        except ValueError as error:
            raise ValueError(f"graph 0: {error}") from None


def in_chunks(graphs: Iterable[dict[str, Attribute]], nbytes: int) -> Iterator[dict[str, list[Attribute]]]:
    """Yield the attributes of graphs that follow each other, of so many bytes together or a little more."""
    chunk: dict[str, list[Attribute]] = {}
    size = 0
    for graph in graphs:
        for name, value in graph.items():
            chunk.setdefault(name, []).append(value)
            size += len(value) if isinstance(value, str) else value.nbytes
        if size >= nbytes:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk


def difference(kinds: Mapping[str, Kind], first: Mapping[str, Kind]) -> str:
    """Return what is different in a graph; attributes may come in another order, as in PyTorch Geometric."""
    if missing := [name for name in first if name not in kinds]:
        return f"lacks {', '.join(missing)}, which graph 0 has"
    if more := [name for name in kinds if name not in first]:
        return f"has {', '.join(more)}, which graph 0 lacks"
    name = next(name for name, kind in first.items() if kinds[name] != kind)
    return f"{name} is {kinds[name]}; in graph 0 it is {first[name]}"
