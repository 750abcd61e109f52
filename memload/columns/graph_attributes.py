"""Graphs as rows of named attributes: the meaning of each attribute's name, and a batch of graphs as tensors.

The rules for names are those of PyTorch Geometric. Attributes are concatenated along their first axis. Attributes with
"index" in their name, and "face", are concatenated along their last axis, and the number of nodes in the graphs before
is added to them. These are the rules of `Data.__cat_dim__` and `Data.__inc__`; `Data.num_nodes` counts the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from memload.columns.fields import Field
from memload.dtypes import dtype_name

Attributes = Mapping[str, tuple[torch.dtype | None, tuple[int | None, ...]]]

COUNTED = "num_nodes"
"""The attribute in which graphs state their number of nodes."""

_EDGES = ("edge_index", "edge_weight", "edge_attr", "edge_type", "e_id")
_NODES = ("x", "feat", "pos", "node_type", "n_id")

Attribute = torch.Tensor | str
"""An attribute of one graph."""


class GraphBatch(NamedTuple):
    """A batch of graphs joined into one graph, without PyTorch Geometric.

    Attributes:
        x: (nodes, *features), or None if graphs have no such attribute.
        edge_index: int64 or int32 (2, edges), numbers of nodes in the batch, or None.
        batch: int64 (nodes,), the graph of each node.
        ptr: int64 (graphs + 1,): graph i has the nodes from ``ptr[i]`` to ``ptr[i + 1]``.
        edge_attr, y, pos: concatenated along their first axis, or None.
        others: further attributes by name.
    """

    x: torch.Tensor | None
    edge_index: torch.Tensor | None
    batch: torch.Tensor
    ptr: torch.Tensor
    edge_attr: torch.Tensor | None = None
    y: torch.Tensor | None = None
    pos: torch.Tensor | None = None
    others: Mapping[str, torch.Tensor] = MappingProxyType({})

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes that are present, by name."""
        own = {name: value for name, value in self._asdict().items() if name != "others" and value is not None}
        return {**own, **self.others}

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> GraphBatch:
        """Return the batch with these attributes, `batch` and `ptr` among them."""
        others = dict(attributes)
        own = {name: others.pop(name, None) for name in cls._fields if name != "others"}
        return cls(**own, others=others)


def along_last(name: str) -> bool:
    """Return whether an attribute of this name is concatenated along its last axis and counts the nodes before it."""
    return "index" in name or name == "face"


def node_attribute(attributes: Attributes) -> str | None:
    """Return the first of these attributes that gives the number of nodes of a graph; None if none does."""
    if COUNTED in attributes:
        return COUNTED
    arrays = [name for name, (dtype, shape) in attributes.items() if dtype is not None and shape]
    return next((name for name in arrays if name in _NODES), next((name for name in arrays if "node" in name), None))


def edge_attribute(attributes: Attributes) -> str | None:
    """Return the attribute that gives the number of edges of a graph, as `Data.num_edges` does; None if none does."""
    arrays = [name for name, (dtype, shape) in attributes.items() if dtype is not None and shape]
    return next((name for name in arrays if name in _EDGES), next((name for name in arrays if "edge" in name), None))


def tells_graphs_apart(names: Iterable[str]) -> bool:
    """Return whether PyTorch Geometric adds `batch` and `ptr` to graphs with these attributes."""
    return any(name in ("x", "pos", "edge_index", "face") or "node" in name for name in names)


def attributes_of(fields: Mapping[Any, Field]) -> Attributes:
    """Return the attributes of these fields, as `check_attributes` takes them."""
    return {
        str(name): (None if getattr(field, "text", False) else field.dtype, field.shape)
        for name, field in fields.items()
    }


def check_attributes(attributes: Attributes) -> None:
    """Raise ValueError unless graphs with these attributes, of dtype (None: text) and shape, can be joined."""
    for name, (dtype, shape) in attributes.items():
        if name in ("batch", "ptr"):
            raise ValueError(f"the attribute {name!r} has the name of what batches have: give single graphs")
        if "batch" in name:
            raise ValueError(
                f'the attribute {name!r} has "batch" in its name, by which PyTorch Geometric takes it for numbers of '
                f"graphs and counts on from graph to graph: rename it, as to {name.replace('batch', 'group')!r}"
            )
        if 0 in shape:
            raise ValueError(f"the attribute {name!r} has the shape {shape}, and so no elements: leave it out")
        if dtype is None or not along_last(name):
            continue
        if dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"the attribute {name!r} is {dtype}, but its name says that it holds numbers of nodes: expected int64 "
                "or int32, or another name"
            )
        if len(shape) > 2 or (None in shape and shape[-1] is not None):
            raise ValueError(f"the attribute {name!r} holds numbers of nodes: expected (n,) or (k, n), got {shape}")
    nodes = node_attribute(attributes)
    if nodes is None and any(map(along_last, attributes)):
        raise ValueError("the number of nodes of a graph is unknown: set its num_nodes, or give it an x or a pos")
    if nodes == COUNTED and attributes[COUNTED] != (torch.int64, ()):
        raise ValueError("num_nodes is one int for each graph")


@dataclass(frozen=True)
class AttributeKind:
    """The properties of an attribute that are the same in all graphs.

    Attributes:
        dtype: the dtype of its elements; None for text.
        shape: its shape in one graph, with None for the axis along which graphs are joined; () for single numbers.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, name: str, value: Attribute) -> AttributeKind:
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


def attribute(name: str, value: Any) -> Attribute:
    """Return an attribute of a graph as a tensor on the CPU, or a text.

    Raises:
        TypeError: `value` is neither a tensor, nor a text, nor a number.
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


def difference(kinds: Mapping[str, AttributeKind], first: Mapping[str, AttributeKind]) -> str:
    """Return the difference of a graph for messages; attributes may be in another order, as in PyTorch Geometric."""
    if missing := [name for name in first if name not in kinds]:
        return f"lacks {', '.join(missing)}, which graph 0 has"
    if more := [name for name in kinds if name not in first]:
        return f"has {', '.join(more)}, which graph 0 lacks"
    name = next(name for name, kind in first.items() if kinds[name] != kind)
    return f"{name} is {kinds[name]}; in graph 0 it is {first[name]}"
