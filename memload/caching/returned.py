"""Check and convert the results of a function of a batch: one result for each row, of one shape or not, or texts.

tensor (rows, ...) | tensor (nodes, ...) with per="node" | list of tensors | nested tensor | Ragged | Padded | texts
                   -> a tensor (rows, ...), a `Ragged` or a list of texts, on the CPU
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from memload.columns.ragged_forms import Padded, Ragged, RaggedArray, joined, ragged_type
from memload.dtypes import refuse_masked
from memload.sizes import counted

Per = Literal["row", "graph", "node", "edge"]
PER: tuple[Per, ...] = ("row", "graph", "node", "edge")


class Counts:
    """The offsets of the nodes and edges of each graph of a batch, computed on the first access.

    Args:
        batch: any batch; only batches of graphs have counts. It may change afterwards.
    """

    def __init__(self, batch: Any) -> None:
        self._ptr, self._edges, self._of_node = (
            value if isinstance(value, torch.Tensor) else None
            for value in (getattr(batch, name, None) for name in ("ptr", "edge_index", "batch"))
        )

    @functools.cached_property
    def node(self) -> torch.Tensor | None:
        """The offsets of nodes, int64 (graphs + 1,) on the CPU; None if the batch does not have them."""
        return None if self._ptr is None or self._ptr.ndim != 1 else self._ptr.cpu()

    @functools.cached_property
    def edge(self) -> torch.Tensor | None:
        """The offsets of edges, which must be in the order of graphs; otherwise as `node`."""
        if self.node is None or self._edges is None or self._of_node is None:
            return None
        counts = torch.bincount(self._of_node[self._edges[0].long()], minlength=len(self.node) - 1)
        return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).cpu()


class Returned:
    """Converts the results that a function returned for each chunk.

    Args:
        per: the unit that the first axis of returned tensors counts, for all of them or by name; None: rows, unless
            this is ambiguous.

    Attributes:
        differing: the names of results that came row by row, so that later rows may differ in length.

    Raises:
        ValueError, TypeError: `per` is not a valid unit.
    """

    def __init__(self, per: Any) -> None:
        named = dict(per) if isinstance(per, Mapping) else {None: per}
        for unit in named.values():
            if unit is not None and unit not in PER:
                raise ValueError(f"per= must be one of {', '.join(map(repr, PER))}, or a dict of them; got {unit!r}")
        self._per: Mapping[Any, Per | None] = named
        self.differing: set[str] = set()
        self._sure: set[str] = set()  # the results that are known to count rows

    def taken(self, name: Any, value: Any, rows: int, counts: Counts, where: str) -> Any:
        """Return a result on the CPU.

        Raises:
            TypeError: the value is not a valid result.
            ValueError: the value has another number of rows, or it may count either rows or nodes.
        """
        what = f"{where}: the function returned for {name!r}"
        if _is_rows(value):
            self.differing.add(name)
        try:
            value = _as_ragged(value, what)
        except TypeError as error:  # torch has no dtype for the array
            raise TypeError(f"{what} {error}") from None
        per = self._per[name] if name in self._per else self._per.get(None)
        if isinstance(value, torch.Tensor) and per in ("node", "edge"):
            value = _split(name, value, per, counts, where)
        texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if not isinstance(name, str) or not (texts or isinstance(value, torch.Tensor | Ragged)):
            raise TypeError(
                f"{where}: the function returned {name!r}: {type(value).__name__}; expected a tensor, a list of texts, "
                "a list of tensors, a memload.Ragged or a nested tensor of rows of different length, or a dict of these"
            )
        found = _count(value)
        if found != rows:
            raise ValueError(
                f"{where}: the function returned {_described(value, found)} for {name!r}; expected results for "
                f"{counted(rows, 'row')}{_hint(value, counts)}"
            )
        if isinstance(value, torch.Tensor) and per is None:
            self._check_sure(name, rows, counts, where)
        return _on_cpu(value)

    def _check_sure(self, name: str, rows: int, counts: Counts, where: str) -> None:
        """Raise ValueError if the batch has as many graphs as nodes, so that the unit is ambiguous."""
        if name in self._sure or counts.node is None:
            return
        if int(counts.node[-1]) == rows:
            raise ValueError(
                f"{where}: the function returned {rows} results for {name!r}, but the batch has {rows} graphs and "
                f'{rows} nodes: give per="graph" or per="node"'
            )
        self._sure.add(name)


def _is_rows(value: Any) -> bool:
    """Return whether a value has its rows one by one: a list of tensors or arrays, or a nested tensor."""
    if isinstance(value, list) and value:
        return all(isinstance(row, torch.Tensor | np.ndarray) for row in value)
    return isinstance(value, torch.Tensor) and value.is_nested


def _as_ragged(value: Any, where: str) -> Any:
    """Return ragged values as a `Ragged`, arrays and rows of one shape as tensors, and other values unchanged."""
    if isinstance(value, np.ndarray):
        return _tensor(value)
    if isinstance(value, RaggedArray):
        return _checked(torch.as_tensor(value.values), torch.as_tensor(value.offsets), value.axis, where)
    if isinstance(value, Ragged):
        return _checked(value.values, value.offsets, value.axis, where)
    if isinstance(value, Padded):
        return joined(value.rows(), "offsets")
    if _is_rows(value):
        return _joined(list(value.unbind()) if isinstance(value, torch.Tensor) else list(map(_tensor, value)), where)
    return value


def _tensor(value: torch.Tensor | np.ndarray[Any, Any]) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        refuse_masked(value)
    return torch.as_tensor(value)


def _joined(rows: list[torch.Tensor], where: str) -> Ragged | torch.Tensor:
    """Return rows as one value, ragged along the axis in which they differ; rows of one shape are stacked."""
    first = rows[0]
    if not first.ndim:
        raise ValueError(f"{where} a list of tensors without dimensions: return one tensor, by torch.stack")
    for number, row in enumerate(rows):
        if row.ndim != first.ndim or row.dtype != first.dtype:
            raise ValueError(
                f"{where} a list in which number {number} is {row.dtype} {tuple(row.shape)}, the first one "
                f"{first.dtype} {tuple(first.shape)}: expected tensors of one dtype that differ along one axis"
            )
    axes = [axis for axis in range(first.ndim) if len({row.shape[axis] for row in rows}) > 1]
    if not axes and first.ndim > 1:
        return torch.stack(rows)
    axes = axes or [0]
    if len(axes) > 1 or axes[0] > 1:
        raise ValueError(
            f"{where} a list of tensors that differ along the axes {axes}, such as {tuple(first.shape)}: rows may "
            "differ along their first or their second axis alone: pad them, or flatten them and return their shapes"
        )
    result: Ragged = joined(rows, "offsets", axes[0])
    return result


def _checked(values: torch.Tensor, offsets: torch.Tensor, axis: int, where: str) -> Ragged:
    """Return values and offsets as a `Ragged` whose offsets begin at 0. Raises ValueError for invalid offsets."""
    ends = offsets.to("cpu", torch.int64)
    items = values.shape[axis] if values.ndim > axis else -1
    if ends.ndim != 1 or not len(ends) or int(ends[0]) < 0 or int(ends[-1]) > items or bool((ends.diff() < 0).any()):
        raise ValueError(
            f"{where} offsets {tuple(ends.tolist()[:3])}... for {max(0, items)} items: expected (rows + 1,) offsets "
            "that never decrease, from 0 or more to at most the number of items"
        )
    first, last = int(ends[0]), int(ends[-1])
    return ragged_type(axis)(values.narrow(axis, first, last - first), ends - first)


def _split(name: Any, value: torch.Tensor, per: Per, counts: Counts, where: str) -> Ragged:
    """Split a tensor of one result for each node or edge of a batch by graph."""
    ends = counts.node if per == "node" else counts.edge
    if ends is None:
        raise ValueError(
            f'{where}: per="{per}" needs batches of graphs with the counts of their {per}s (ptr'
            f"{', batch and edge_index' if per == 'edge' else ''}); give collate_fn=memload.graph_collate"
        )
    if not value.ndim or len(value) != int(ends[-1]):
        raise ValueError(
            f"{where}: the function returned a tensor of shape {tuple(value.shape)} for {name!r}; expected results for "
            f"the {int(ends[-1]):,} {per}s of these graphs"
        )
    return Ragged(value, ends)


def _hint(value: Any, counts: Counts) -> str:
    if not isinstance(value, torch.Tensor) or not value.ndim or counts.node is None:
        return ""
    kinds = [kind for kind, ends in (("node", counts.node), ("edge", counts.edge)) if ends is not None]
    ways = " or ".join(f'per="{kind}"' for kind in kinds)
    return f"; for results of each {' or '.join(kinds)} give {ways}, or return a memload.Ragged(values, offsets)"


def _count(value: Any) -> int | None:
    if isinstance(value, Ragged):
        return len(value.offsets) - 1
    return len(value) if isinstance(value, list) or value.dim() else None


def _described(value: Any, found: int | None) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    rows = found or 0
    return counted(rows, "text") if isinstance(value, list) else f"{counted(rows, 'row')} of different length"


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list):
        return value
    if isinstance(value, Ragged):
        return type(value)(value.values.detach().cpu().contiguous(), value.offsets)
    return value.detach().cpu()
