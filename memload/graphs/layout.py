"""Joins the attributes of graphs to those of a batch.

    values, offsets of each attribute -> one merged graph: attributes, batch, ptr
                                         and for each attribute the slices of the graphs, and their increments

The name of an attribute decides how it is joined; columns/graph_attributes.py has the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from memload.columns.fields import Field
from memload.columns.graph_attributes import (
    COUNTED,
    GraphBatch,
    along_last,
    attributes_of,
    node_attribute,
    tells_graphs_apart,
)
from memload.columns.ragged_forms import Ragged, row_count
from memload.columns.storage_terms import where_stored
from memload.engine.layout import Layout
from memload.errors import FormatError
from memload.memory.budget import memory_to_take
from memload.sizes import format_size

_UNCHECKED = 2**27  # bytes: smaller allocations are not compared with the free memory


class MergedGraph(NamedTuple):
    """Several graphs, merged into one.

    Attributes:
        attributes: the attributes by name, `batch` and `ptr` last.
        slices: for each attribute the offsets of the graphs' parts, int64 (graphs + 1,).
        increments: for each attribute the numbers that were added to the graphs' parts, int64 (graphs,); None for
            texts.
        graphs: the number of graphs.
        num_nodes: the `num_nodes` of each graph; None if graphs have no such attribute.
    """

    attributes: dict[str, Any]
    slices: dict[str, torch.Tensor]
    increments: dict[str, torch.Tensor | None]
    graphs: int
    num_nodes: list[int] | None

    def plain(self) -> GraphBatch:
        """Return the merged graph as a `memload.GraphBatch`."""
        return GraphBatch.of({name: value for name, value in self.attributes.items() if name != COUNTED})


def counts_place(fields: Mapping[Any, Field]) -> str:
    """Return the name of the storage of `num_nodes`, for messages; "" if the graphs have no such attribute."""
    return where_stored(fields[COUNTED].column) if COUNTED in fields else ""


@dataclass(frozen=True)
class Part:
    """One gathered attribute of the graphs of a batch.

    Attributes:
        name: the name of the attribute.
        dtype: the dtype of its elements; None for text.
        shape: the shape in one graph, with None where graphs differ.
        increased: whether the gather has already added the nodes of the graphs before.
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[int | None, ...]
    increased: bool = False

    @property
    def length(self) -> int:
        """The items in one graph, if all graphs have one shape; a number or a text counts as one."""
        sides = self.shape or (1,)
        return 1 if self.dtype is None else sides[-1 if along_last(self.name) else 0] or 0


def parts_of(fields: Mapping[Any, Field], *, increased: bool) -> tuple[Part, ...]:
    """Return the attributes of fields; with `increased`, the gather adds the nodes of the graphs before."""
    return tuple(
        Part(name, dtype, shape, increased and dtype is not None and None in shape and along_last(name))
        for name, (dtype, shape) in attributes_of(fields).items()
    )


@dataclass(frozen=True)
class GraphCollateOptions:
    """The further arguments of `graph_collate`, as of PyTorch Geometric's loader.

    Attributes:
        follow: attributes for which a batch also has ``NAME_batch`` and ``NAME_ptr``.
        exclude: attributes that are left out of batches.
    """

    follow: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, follow_batch: Any, exclude_keys: Any) -> GraphCollateOptions:
        """Return the options for these arguments of `graph_collate`. Raises TypeError if they are no lists of names."""
        return cls(_names("follow_batch", follow_batch), _names("exclude_keys", exclude_keys))

    def check(self, names: Iterable[str]) -> None:
        """Raise ValueError if a batch would add an attribute that the graphs have already."""
        known = set(names)
        for name in known.intersection(self.follow):
            if f"{name}_ptr" in known:
                raise ValueError(f"follow_batch: the graphs have an attribute '{name}_ptr' already; rename it")

    def gathered(self, names: Iterable[str], nodes: str | None) -> list[str]:
        """Return the attributes that a batch needs: its own, and the one that gives the number of nodes."""
        known = list(names)
        needed = [name for name in known if name not in self.exclude or name == nodes]
        return needed if needed and tells_graphs_apart(needed) == tells_graphs_apart(known) else known


def _names(what: str, given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a list of names of attributes, such as {what}=['x']; got {given!r}")
    names = tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} is a list of names of attributes; got {names!r}")
    return names


@dataclass(frozen=True)
class GraphLayout(Layout):
    """A batch of graphs.

    Attributes:
        parts: the attributes in order.
        make: makes the batch from the merged graph.
        choice: the attributes that batches follow or leave out.
        counts_from: the file that holds the numbers of nodes, for messages; "" if there is none.
    """

    parts: tuple[Part, ...]
    make: Callable[[MergedGraph], Any]
    counts_from: str = field(default="", compare=False)
    choice: GraphCollateOptions = field(default_factory=lambda: GraphCollateOptions())

    reads_values = True

    @functools.cached_property
    def nodes(self) -> str | None:
        """The attribute whose length (of `COUNTED`, whose value) is the number of nodes; None: graphs have no nodes."""
        return node_attribute({part.name: (part.dtype, part.shape) for part in self.parts})

    def uncastable(self) -> dict[str, str]:
        """Return why the attributes to which the gather adds the nodes of the graphs before cannot be cast."""
        why = (
            "holds numbers of nodes, to which the gather adds those of the graphs before: leave it out of cast=, and "
            "convert it in batch_transform="
        )
        return {part.name: why for part in self.parts if part.increased}

    def build(self, tensors: Iterator[Any]) -> Any:
        """Return the batch of gathered attributes: `memload.Ragged` for ragged attributes, rows for others."""
        return self.make(self.joined([next(tensors) for _ in self.parts]))

    def joined(self, gathered: Sequence[Any]) -> MergedGraph:
        """Return the merged graph of these gathered attributes, in the order of `parts`."""
        graphs, names = row_count(gathered[0]), [part.name for part in self.parts]
        none, numbers = torch.zeros(graphs, dtype=torch.int64, device="cpu"), torch.arange(graphs + 1, device="cpu")
        ptr = self._nodes(gathered)
        attributes: dict[str, Any] = {}
        slices: dict[str, torch.Tensor] = {}
        increments: dict[str, torch.Tensor | None] = {}
        counts: list[int] | None = None
        for part, values in zip(self.parts, gathered, strict=True):
            name = part.name
            if name in self.choice.exclude:
                continue
            if name == COUNTED:
                counts = values.tolist()
                attributes[name] = sum(counts)
                continue
            before = ptr[:-1] if ptr is not None and along_last(name) else none
            attributes[name] = _concatenated(part, values, before)
            slices[name] = values.offsets if isinstance(values, Ragged) else numbers * part.length
            increments[name] = None if part.dtype is None else before
            if name in self.choice.follow:
                ends = slices[name]
                attributes[f"{name}_batch"], attributes[f"{name}_ptr"] = _repeated(numbers[:-1], ends), ends.clone()
        if ptr is not None and tells_graphs_apart(names):
            attributes["batch"] = _repeated(numbers[:-1], ptr)
            attributes["ptr"] = ptr.clone()
        return MergedGraph(attributes, slices, increments, graphs, counts)

    def _nodes(self, gathered: Sequence[Any]) -> torch.Tensor | None:
        """Return the offsets of the graphs' nodes, int64 (graphs + 1,); None if graphs have no nodes."""
        for part, values in zip(self.parts, gathered, strict=True):
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
    """Raise FormatError, with the file's name, if a number of nodes is negative or too large for a batch."""
    if not len(counts):
        return
    where = f"{file}: " if file else ""
    if (least := int(counts.min())) < 0:
        raise FormatError(
            f"{where}graph {int(counts.argmin())} of a batch has a num_nodes of {least}; expected 0 or more"
        )
    needed = 8 * float(counts.double().sum())  # bytes of `batch`
    if needed > _UNCHECKED and needed > (free := memory_to_take(needed).free):
        raise FormatError(
            f"{where}graph {int(counts.argmax())} of a batch has a num_nodes of {int(counts.max()):,}: the numbers "
            f"of the graph of each node would take {format_size(int(needed))}, and "
            f"{format_size(free)} is free"
        )


def _repeated(numbers: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return each number as often as there are items between its offset and the next.

    This uses numpy: torch would wake all its threads, which costs milliseconds if another process has the cores.
    """
    return torch.from_numpy(np.repeat(numbers.numpy(), np.diff(offsets.numpy())))


def _concatenated(part: Part, values: Any, before: torch.Tensor) -> Any:
    """Return one attribute of all graphs along its axis, increased by the nodes before unless the gather did that."""
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
