"""Batches of other sizes made from one batch, to find a step's bytes as a function of rows, items, nodes and edges.

    a sample -> the units in which its batches are counted -> a few batches that differ in each count

The bytes of a step at a moment are a polynomial of the counts; as many batches as it has terms determine it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.graph_attributes import GraphBatch, along_last
from memload.columns.ragged_forms import Ragged
from memload.nested import leaves, mapped

Floats = NDArray[np.float64]


class Kind(Protocol):
    """A kind of batches: its units, its counts, and batches of other sizes."""

    @property
    def sample(self) -> Any:
        """A batch."""

    @property
    def units(self) -> tuple[str, ...]:
        """The units, such as ("rows",) or ("graphs", "nodes", "edges")."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts of the sample, one for each unit."""

    @property
    def varies(self) -> bool:
        """Whether samples differ in size, so that each batch has sizes of its own, and several units count."""

    @property
    def runs_sample(self) -> bool:
        """Whether `variants` has the whole sample, and batches of twice its counts, however large it is."""

    def variants(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield (counts, batch), enough of them to determine all terms."""

    def terms(self, counts: Sequence[Any]) -> Floats:
        """Return the terms of the polynomial in these counts, the constant first."""


@dataclass(frozen=True)
class PlainBatches:
    """Batches whose tensors have one row for each sample along their first axis.

    Four sizes determine a parabola, and whether the bytes follow one: contrastive losses compare all pairs of rows.
    """

    sample: Any
    rows: int
    units: tuple[str, ...] = ("rows",)
    sizes: tuple[int, ...] = (2, 3, 4, 5)
    varies: ClassVar[bool] = False
    runs_sample: ClassVar[bool] = False

    @property
    def counts(self) -> tuple[int, ...]:
        """The rows of the sample."""
        return (self.rows,)

    def variants(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield batches of the four sizes."""
        return (((size,), self.resized(size)) for size in self.sizes)

    def resized(self, rows: int) -> Any:
        """Return a batch of so many rows, which repeat those of the sample."""
        return _with_changed(self.sample, lambda tensor: _repeated(tensor, self.rows, rows), self.rows, rows)

    def terms(self, counts: Sequence[Any]) -> Floats:
        """Return 1, rows and their square."""
        rows = np.asarray(counts[0], dtype=np.float64)
        return np.stack([np.ones_like(rows), rows, rows**2], axis=-1)


@dataclass(frozen=True)
class RaggedBatches:
    """Batches of rows that differ in length: `memload.Ragged` and jagged tensors, with plain tensors beside them."""

    sample: Any
    counts: tuple[int, ...]
    units: tuple[str, ...] = ("rows", "items")
    varies: ClassVar[bool] = True
    runs_sample: ClassVar[bool] = True

    def variants(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the sample; its rows twice; and as many rows of twice the length."""
        rows, items = self.counts
        yield (rows, items), self.sample
        yield (2 * rows, 2 * items), _with_changed(self.sample, lambda one: _ragged_twice(one, rows), rows, 2 * rows)
        yield (rows, 2 * items), _with_changed(self.sample, lambda one: _ragged_longer(one, rows), rows, rows)

    def terms(self, counts: Sequence[Any]) -> Floats:
        """Return 1, rows and items."""
        return _linear_terms(counts)

    def first(self, rows: int) -> RaggedBatches:
        """Return the batches of the first rows of the sample."""
        sample = _with_changed(self.sample, lambda one: _ragged_first(one, self.counts[0], rows), self.counts[0], rows)
        found = kind_of(sample)
        assert isinstance(found, RaggedBatches)
        return found


@dataclass(frozen=True)
class GraphBatches:
    """Batches of graphs, of PyTorch Geometric or `memload.GraphBatch`."""

    sample: Any
    counts: tuple[int, ...]
    units: tuple[str, ...] = ("graphs", "nodes", "edges")
    varies: ClassVar[bool] = True
    runs_sample: ClassVar[bool] = True

    def variants(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the sample; its graphs twice; its edges twice; and its nodes with as many that have no edges."""
        graphs, nodes, edges = self.counts
        yield self.counts, self.sample
        yield (2 * graphs, 2 * nodes, 2 * edges), self._altered(2, 2, 2)
        yield (graphs, nodes, 2 * edges), self._altered(1, 1, 2)
        yield (graphs, 2 * nodes, edges), self._altered(1, 2, 1)

    def terms(self, counts: Sequence[Any]) -> Floats:
        """Return 1, graphs, nodes and edges."""
        return _linear_terms(counts)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the sample by name."""
        return _attributes(self.sample)

    def each_graph(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the nodes and the edges of each graph, int64 (graphs,); None if the sample has no values."""
        attributes = self.attributes
        ptr, edge_index = attributes.get("ptr"), attributes.get("edge_index")
        if ptr is None or ptr.is_meta or edge_index is None:
            return None
        ends = ptr.cpu().numpy()
        of_edges = np.searchsorted(ends[1:], edge_index[0].cpu().numpy(), side="right")
        return np.diff(ends), np.bincount(of_edges, minlength=len(ends) - 1)

    def level(self, name: str, length: int) -> str | None:
        """Return the unit of an attribute of this name and length, "graphs", "nodes" or "edges"; None: another."""
        graphs, nodes, edges = self.counts
        if along_last(name) or ("edge" in name and length == edges):
            return "edges"
        return {graphs: "graphs", edges: "edges", nodes: "nodes"}.get(length)

    def of_attributes(self, attributes: Mapping[str, Any], graphs: int) -> Any:
        """Return a batch like the sample, of so many graphs, with these attributes."""
        if isinstance(self.sample, GraphBatch):
            return GraphBatch.of(attributes)
        other = copy.copy(self.sample)
        for name, value in attributes.items():
            setattr(other, name, value)
        if hasattr(self.sample, "_num_graphs"):
            other._num_graphs = graphs
        return other

    def _altered(self, graphs: int, nodes: int, edges: int) -> Any:
        """Return the sample with each count multiplied."""
        times = {"graphs": graphs, "nodes": nodes, "edges": edges}
        made = {name: self._multiplied(name, value, times) for name, value in self.attributes.items()}
        return self.of_attributes(made, graphs * self.counts[0])

    def _multiplied(self, name: str, value: Any, times: Mapping[str, int]) -> Any:
        many_graphs, many_nodes, _ = self.counts
        if not isinstance(value, torch.Tensor) or not value.ndim:
            if name == "num_nodes":
                return value * times["nodes"]
            return value
        if name == "ptr":
            further = [value[1:] + many_nodes * k for k in range(1, times["graphs"])]
            ptr = torch.cat([value, *further])
            ptr[-1] = many_nodes * times["nodes"]
            return ptr
        if name == "batch":
            step = many_graphs if times["graphs"] > 1 else 0
            further = [value + step * k if step else value.new_full(value.shape, many_graphs - 1) for k in (1,)]
            return torch.cat([value, *further]) if times["nodes"] > 1 else value
        axis = value.ndim - 1 if along_last(name) else 0
        level = self.level(name, value.shape[axis])
        if level is None or times[level] == 1:
            return value
        shift = many_nodes if along_last(name) and times["graphs"] > 1 else 0
        return torch.cat([value, value + shift if shift else value], dim=axis)


def kind_of(sample: Any) -> Kind:
    """Return the kind of batches such as this one.

    Raises:
        TypeError: it contains no tensor with an axis, or graphs beside other parts.
        ValueError: it has no rows.
    """
    if _has_edges(sample):
        return GraphBatches(sample, _graph_counts(sample))
    if any(_has_edges(one) for one in leaves(sample, _has_edges)):
        raise TypeError(
            f"the sample is a {type(sample).__name__} that contains graphs: how many nodes and edges its batches of "
            "another size have is not known. Give the batch of graphs alone, with a loss= that takes it, or plan a "
            "sample of the wanted size with memload.plan(..., sample=...)"
        )
    ragged = [one for one in parts_of(sample) if _is_ragged(one)]
    if ragged:
        rows = len(_offsets(ragged[0])) - 1
        return RaggedBatches(sample, (rows, max(_values(one).shape[_axis(one)] for one in ragged)))
    tensors = [one for one in parts_of(sample) if isinstance(one, torch.Tensor) and one.ndim]
    if not tensors:
        raise TypeError(
            f"the sample must be a batch as the loader gives it: a tensor, or a dict, tuple or list of such, ragged or "
            f"of graphs; found no tensor with an axis in {type(sample).__name__}"
        )
    if not len(tensors[0]):
        raise ValueError("the sample has no rows: give a batch of at least one, such as next(iter(loader))")
    return PlainBatches(sample, len(tensors[0]))


def parts_of(batch: Any) -> Iterator[Any]:
    """Yield the parts of a batch: tensors, ragged rows, attributes of graphs, and other leaves of its containers."""
    for part in leaves(batch, lambda one: isinstance(one, Ragged) or _has_edges(one)):
        yield from _attributes(part).values() if _has_edges(part) else [part]


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch."""
    found: list[torch.Tensor] = []
    for part in parts_of(batch):
        if isinstance(part, Ragged):
            found += part
        elif isinstance(part, torch.Tensor):
            found.append(part)
    return found


def _with_changed(batch: Any, change: Callable[[Any], Any], rows: int = -1, wanted: int = -1) -> Any:
    """Return the batch with its tensors and ragged parts changed; lists of `rows` texts get `wanted` of them."""

    def are_texts(one: Any) -> bool:
        return isinstance(one, list | tuple) and len(one) == rows and all(isinstance(text, str | bytes) for text in one)

    def changed(one: Any) -> Any:
        if isinstance(one, Ragged | torch.Tensor):
            return change(one)
        return type(one)(one[k % rows] for k in range(wanted)) if are_texts(one) else one

    return mapped(batch, changed, lambda one: isinstance(one, Ragged) or are_texts(one))


def converted(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the batch with each of its tensors changed, those inside ragged rows and graphs included."""

    def changed(one: Any) -> Any:
        if isinstance(one, GraphBatch):
            return GraphBatch.of({name: converted(value, change) for name, value in one.attributes.items()})
        if is_of_pyg(one):
            return copy.copy(one).apply(change)
        if _has_edges(one):
            other = copy.copy(one)
            for name, value in _attributes(one).items():
                setattr(other, name, converted(value, change))
            return other
        return change(one) if isinstance(one, torch.Tensor) else one

    return mapped(batch, changed, is_graphs)


def with_own_attributes(batch: Any) -> Any:
    """Return a batch of the same tensors that a step may set others in, as by ``batch.x = layer(batch.x)``."""
    return converted(batch, lambda tensor: tensor)


def changed_in_place(batch: Any) -> Callable[[], bool]:
    """Return a function that says whether operations of torch have changed tensors of the batch since."""
    before = [(tensor, tensor._version) for tensor in tensors_of(batch)]
    return lambda: any(tensor._version != version for tensor, version in before)


def is_graphs(one: Any) -> bool:
    """Return whether a value is a batch of graphs, of memload or of PyTorch Geometric."""
    return is_of_pyg(one) or _has_edges(one)


def graph_tensors_in(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch of graphs, or of a batch that contains such; none if there are no graphs."""
    found: list[torch.Tensor] = []

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    if any(map(is_graphs, leaves(batch, is_graphs))):
        converted(batch, noted)
    return found


def _has_edges(one: Any) -> bool:
    return isinstance(one, GraphBatch) or isinstance(getattr(one, "edge_index", None), torch.Tensor)


def is_of_pyg(one: Any) -> bool:
    """Return whether a value is a batch of graphs of PyTorch Geometric."""
    return hasattr(type(one), "stores") and callable(getattr(type(one), "apply", None))


def _repeated(tensor: torch.Tensor, rows: int, wanted: int) -> torch.Tensor:
    if not tensor.ndim or len(tensor) != rows:
        return tensor
    return tensor.index_select(0, torch.arange(wanted, device=tensor.device) % rows)


def _linear_terms(counts: Sequence[Any]) -> Floats:
    columns = np.broadcast_arrays(1.0, *(np.asarray(count, dtype=np.float64) for count in counts))
    return np.stack(columns, axis=-1)


def _is_ragged(one: Any) -> bool:
    return isinstance(one, Ragged) or (isinstance(one, torch.Tensor) and one.is_nested)


def _values(one: Any) -> torch.Tensor:
    return one.values if isinstance(one, Ragged) else one.values()


def _offsets(one: Any) -> torch.Tensor:
    return one.offsets if isinstance(one, Ragged) else one.offsets()


def _axis(one: Any) -> int:
    return one.axis if isinstance(one, Ragged) else 0


def _like(one: Any, values: torch.Tensor, offsets: torch.Tensor) -> Any:
    if isinstance(one, Ragged):
        return type(one)(values, offsets)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _ragged_twice(one: Any, rows: int) -> Any:
    if not _is_ragged(one):
        return _repeated(one, rows, 2 * rows)
    values, offsets = _values(one), _offsets(one)
    return _like(one, torch.cat([values, values], dim=_axis(one)), torch.cat([offsets, offsets[1:] + offsets[-1]]))


def _ragged_first(one: Any, rows: int, wanted: int) -> Any:
    if not _is_ragged(one):
        return _repeated(one, rows, wanted)
    offsets = _offsets(one)[: wanted + 1]
    return _like(one, _values(one).narrow(_axis(one), 0, int(offsets[-1])), offsets)


def _ragged_longer(one: Any, rows: int) -> Any:  # noqa: ARG001 - the signature of _ragged_twice
    if not _is_ragged(one):
        return one
    return _like(one, torch.cat([_values(one)] * 2, dim=_axis(one)), _offsets(one) * 2)


def _attributes(graphs: Any) -> dict[str, Any]:
    return graphs.attributes if isinstance(graphs, GraphBatch) else dict(graphs.to_dict())


def _graph_counts(graphs: Any) -> tuple[int, int, int]:
    attributes = _attributes(graphs)
    ptr, batch = attributes.get("ptr"), attributes.get("batch")
    edges = attributes["edge_index"].shape[-1] if attributes.get("edge_index") is not None else 0
    if ptr is not None:
        return len(ptr) - 1, int(ptr[-1]), edges
    nodes = getattr(graphs, "num_nodes", None)
    return 1, int(len(batch) if batch is not None else nodes or 0), edges
