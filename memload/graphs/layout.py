"""How the attributes of graphs become those of a batch: PyTorch Geometric's rules for names, and what follows of them.

    values, offsets of each attribute -> one graph of them all: attributes, batch, ptr
                                         and for each attribute where the graphs' parts are, and what was added to them

Attributes are concatenated along their first axis; those with "index" in their name, and "face", along their last, and
they are increased by the number of nodes in the graphs before. These are the rules of `Data.__cat_dim__` and
`Data.__inc__`; how nodes are counted is that of `Data.num_nodes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from memload.errors import FormatError
from memload.fields import Field
from memload.memory.budget import memory
from memload.ragged_rows.forms import Ragged
from memload.rows.stored import where_stored
from memload.sizes import format_size

Attributes = Mapping[str, tuple[torch.dtype | None, tuple[int | None, ...]]]

COUNTED = "num_nodes"
"""The attribute by which graphs themselves tell how many nodes they have."""

_NODES = ("x", "feat", "pos", "node_type", "n_id")

_UNREMARKABLE = 2**27  # bytes that need not be compared with what is free


class GraphBatch(NamedTuple):
    """Graphs as one graph, without PyTorch Geometric: the nodes of all, and their edges among these.

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
        """All that there are, by name."""
        own = {name: value for name, value in self._asdict().items() if name != "others" and value is not None}
        return {**own, **self.others}

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> GraphBatch:
        """Return the batch with these attributes, `batch` and `ptr` among them."""
        others = dict(attributes)
        own = {name: others.pop(name, None) for name in cls._fields if name != "others"}
        return cls(**own, others=others)


class Joined(NamedTuple):
    """Graphs as one graph.

    Attributes:
        attributes: by name, `batch` and `ptr` last.
        slices: for each attribute where each graph's part of it begins and ends: int64 (graphs + 1,).
        increments: what was added to each graph's part: int64 (graphs,), or None for texts.
        graphs: how many there are.
        num_nodes: the nodes of each graph, where graphs tell them themselves.
    """

    attributes: dict[str, Any]
    slices: dict[str, torch.Tensor]
    increments: dict[str, torch.Tensor | None]
    graphs: int
    num_nodes: list[int] | None

    def plain(self) -> GraphBatch:
        """Return it as tensors side by side."""
        return GraphBatch.of({name: value for name, value in self.attributes.items() if name != COUNTED})


def along_last(name: str) -> bool:
    """Whether an attribute of this name is concatenated along its last axis, and increased by the nodes before."""
    return "index" in name or name == "face"


def node_attribute(attributes: Attributes) -> str | None:
    """Return the attribute that says how many nodes a graph has, of these in order; None if none does."""
    if COUNTED in attributes:
        return COUNTED
    arrays = [name for name, (dtype, shape) in attributes.items() if dtype is not None and shape]
    return next((name for name in arrays if name in _NODES), next((name for name in arrays if "node" in name), None))


def tells_graphs_apart(names: Iterable[str]) -> bool:
    """Whether PyTorch Geometric adds `batch` and `ptr` to graphs with these attributes."""
    return any(name in ("x", "pos", "edge_index", "face") or "node" in name for name in names)


def counts_place(fields: Mapping[Any, Field]) -> str:
    """Return what holds the numbers of nodes of these graphs, for messages; "" if they have no such numbers."""
    return where_stored(fields[COUNTED].column) if COUNTED in fields else ""


def attributes_of(fields: Mapping[Any, Field]) -> Attributes:
    """Return the attributes that fields are, as `check_attributes` takes them."""
    return {
        str(name): (None if getattr(field, "text", False) else field.dtype, field.shape)
        for name, field in fields.items()
    }


def check_attributes(attributes: Attributes) -> None:
    """Raise ValueError unless graphs with these attributes, of dtype (None: text) and shape, can be joined."""
    for name, (dtype, shape) in attributes.items():
        if "batch" in name or name == "ptr":
            raise ValueError(f"the attribute {name!r} has the name of what batches have: give single graphs")
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
        raise ValueError("there is no telling how many nodes a graph has: set its num_nodes, or give it an x or a pos")
    if nodes == COUNTED and attributes[COUNTED] != (torch.int64, ()):
        raise ValueError("num_nodes is one int for each graph")


@dataclass(frozen=True)
class Part:
    """One attribute of the graphs of a batch, as it comes from the gather.

    Attributes:
        name: of the attribute.
        dtype: of its elements; None for text.
        shape: of one graph's, with None where graphs differ.
        increased: whether the gather has added the nodes of the graphs before already.
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[int | None, ...]
    increased: bool = False

    @property
    def length(self) -> int:
        """Items of one graph's, where all have one shape; a number, or a text, counts as one."""
        sides = self.shape or (1,)
        return 1 if self.dtype is None else sides[-1 if along_last(self.name) else 0] or 0


def parts_of(fields: Mapping[Any, Field], *, increased: bool) -> tuple[Part, ...]:
    """Return the attributes that fields are; `increased`: the gather adds the nodes of the graphs before."""
    return tuple(
        Part(name, dtype, shape, increased and dtype is not None and None in shape and along_last(name))
        for name, (dtype, shape) in attributes_of(fields).items()
    )


@dataclass(frozen=True)
class GraphLayout:
    """A batch of graphs; a `memload.batches.layout.Layout`.

    Attributes:
        parts: the attributes in order.
        make: what becomes of the graphs that were joined.
        counts_from: the file that holds the numbers of nodes, for messages; "" if there is none.
    """

    parts: tuple[Part, ...]
    make: Callable[[Joined], Any]
    counts_from: str = field(default="", compare=False)

    @functools.cached_property
    def nodes(self) -> str | None:
        """The attribute whose length, or, of `COUNTED`, whose value is the number of nodes; None: graphs have none."""
        return node_attribute({part.name: (part.dtype, part.shape) for part in self.parts})

    @functools.cached_property
    def increased(self) -> frozenset[str]:
        """The attributes to which the gather adds the nodes of the graphs before."""
        return frozenset(part.name for part in self.parts if part.increased)

    def build(self, tensors: Iterator[Any]) -> Any:
        """Return the batch of all attributes: of those that differ in length a `memload.Ragged`, of others rows."""
        return self.make(self.joined([next(tensors) for _ in self.parts]))

    def joined(self, taken: Sequence[Any]) -> Joined:
        """Return the graphs of which these are the attributes, in order, as one graph."""
        graphs, names = _count(taken[0]), [part.name for part in self.parts]
        none, each = torch.zeros(graphs, dtype=torch.int64, device="cpu"), torch.arange(graphs + 1, device="cpu")
        ptr = self._nodes(taken)
        attributes: dict[str, Any] = {}
        slices: dict[str, torch.Tensor] = {}
        increments: dict[str, torch.Tensor | None] = {}
        told: list[int] | None = None
        for part, values in zip(self.parts, taken, strict=True):
            name = part.name
            if name == COUNTED:
                told = values.tolist()
                attributes[name] = sum(told)
                continue
            before = ptr[:-1] if ptr is not None and along_last(name) else none
            attributes[name] = _concatenated(part, values, before)
            slices[name] = values.offsets if isinstance(values, Ragged) else each * part.length
            increments[name] = None if part.dtype is None else before
        if ptr is not None and tells_graphs_apart(names):
            attributes["batch"] = _repeated(each[:-1], ptr)
            attributes["ptr"] = ptr.clone()
        return Joined(attributes, slices, increments, graphs, told)

    def _nodes(self, taken: Sequence[Any]) -> torch.Tensor | None:
        """Where the nodes of each graph begin and end: int64 (graphs + 1,)."""
        for part, values in zip(self.parts, taken, strict=True):
            if part.name != self.nodes:
                continue
            if isinstance(values, Ragged):
                ends: torch.Tensor = values.offsets
            elif part.name != COUNTED:
                ends = torch.arange(len(values) + 1, device="cpu") * part.length
            else:
                _check_counts(values, self.counts_from)
                ends = values.new_zeros(len(values) + 1)
                torch.cumsum(values, 0, out=ends[1:])
            return ends
        return None


def _check_counts(counts: torch.Tensor, file: str) -> None:
    """Raise FormatError, with the file's name, unless these are numbers of nodes of which a batch can be made."""
    if not len(counts):
        return
    where = f"{file}: " if file else ""
    if (least := int(counts.min())) < 0:
        raise FormatError(
            f"{where}graph {int(counts.argmin())} of a batch has a num_nodes of {least}; expected 0 or more"
        )
    needed = 8 * float(counts.double().sum())  # of `batch`
    if needed > _UNREMARKABLE and needed > (free := memory().free):
        raise FormatError(
            f"{where}graph {int(counts.argmax())} of a batch has a num_nodes of {int(counts.max()):,}: the numbers "
            f"that say to which graph each node belongs would take {format_size(int(needed))}, and "
            f"{format_size(free)} is free"
        )


def _repeated(numbers: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Each number as often as there are items between its offset and the next.

    By numpy: torch wakes all of its threads for it, and these cost milliseconds where another process has the cores.
    """
    return torch.from_numpy(np.repeat(numbers.numpy(), np.diff(offsets.numpy())))


def _count(values: Any) -> int:
    return len(values.offsets) - 1 if isinstance(values, Ragged) else len(values)


def _concatenated(part: Part, values: Any, before: torch.Tensor) -> Any:
    """One attribute of all graphs along its axis, increased by the nodes before where that was not done."""
    if part.dtype is None:
        return values
    adds = along_last(part.name) and not part.increased
    if isinstance(values, Ragged):
        if adds:
            values.values.add_(_repeated(before, values.offsets))
        return values.values
    if adds:
        values = values + before.to(values.dtype).view(-1, *(1 for _ in part.shape))
    if len(part.shape) < 2 or not along_last(part.name):
        return values.flatten(0, 1) if part.shape else values
    return values.movedim(0, -2).flatten(-2)
