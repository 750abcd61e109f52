"""What a function of a batch returned: a tensor of one result for each row, results that differ in length, or texts.

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

Per = Literal["row", "graph", "node", "edge"]
PER: tuple[Per, ...] = ("row", "graph", "node", "edge")


class Counts:
    """Where the nodes and edges of each graph of a batch begin and end; looked up when they are asked for.

    Args:
        batch: any; only batches of graphs can tell. It may change afterwards.
    """

    def __init__(self, batch: Any) -> None:
        self._ptr, self._edges, self._of_node = (
            value if isinstance(value, torch.Tensor) else None
            for value in (getattr(batch, name, None) for name in ("ptr", "edge_index", "batch"))
        )

    @functools.cached_property
    def node(self) -> torch.Tensor | None:
        """Of nodes: int64 (graphs + 1,) on the CPU; None: nobody can tell."""
        return None if self._ptr is None or self._ptr.ndim != 1 else self._ptr.cpu()

    @functools.cached_property
    def edge(self) -> torch.Tensor | None:
        """Of edges, which lie in the order of graphs; otherwise as `node`."""
        if self.node is None or self._edges is None or self._of_node is None:
            return None
        each = torch.bincount(self._of_node[self._edges[0].long()], minlength=len(self.node) - 1)
        return torch.cat([each.new_zeros(1), each.cumsum(0)]).cpu()


class Returned:
    """Takes what a function returned for each chunk.

    Args:
        per: what the first axis of its tensors counts, for all of them or by name; None: rows, unless this is
            ambiguous.

    Attributes:
        differing: names of results that may differ in length even where none does, since rows came one by one.

    Raises:
        ValueError, TypeError: `per` is none of these.
    """

    def __init__(self, per: Any) -> None:
        named = dict(per) if isinstance(per, Mapping) else {None: per}
        for one in named.values():
            if one is not None and one not in PER:
                raise ValueError(f"per= is one of {', '.join(map(repr, PER))}, or such by name; got {one!r}")
        self._per: Mapping[Any, Per | None] = named
        self.differing: set[str] = set()
        self._sure: set[str] = set()  # of these it showed that they count rows

    def taken(self, name: Any, value: Any, rows: int, counts: Counts, where: str) -> Any:
        """Return a result on the CPU.

        Raises:
            TypeError: it is no result.
            ValueError: it is not that of so many rows, or it is ambiguous whether it counts rows or nodes.
        """
        told = f"{where}: the function returned for {name!r}"
        if _is_rows(value):
            self.differing.add(name)
        try:
            value = _as_ragged(value, told)
        except TypeError as error:  # an array that torch has no equal of
            raise TypeError(f"{told} {error}") from None
        per = self._per[name] if name in self._per else self._per.get(None)
        if isinstance(value, torch.Tensor) and per in ("node", "edge"):
            value = _cut(name, value, per, counts, where)
        texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if not isinstance(name, str) or not (texts or isinstance(value, torch.Tensor | Ragged)):
            raise TypeError(
                f"{where}: the function returned {name!r}: {type(value).__name__}; expected a tensor, a list of texts, "
                "a list of tensors, a memload.Ragged or a nested tensor of what differs in length, or a dict of these"
            )
        found = _count(value)
        if found != rows:
            raise ValueError(
                f"{where}: the function returned {_told(value, found)} for {name!r}; expected results for {rows} rows"
                f"{_hint(value, counts)}"
            )
        if isinstance(value, torch.Tensor) and per is None:
            self._check_sure(name, rows, counts, where)
        return _on_cpu(value)

    def _check_sure(self, name: str, rows: int, counts: Counts, where: str) -> None:
        """Raise ValueError if a tensor has as many rows as there are graphs, and as there are nodes."""
        if name in self._sure or counts.node is None:
            return
        if int(counts.node[-1]) == rows:
            raise ValueError(
                f"{where}: the function returned {rows} results for {name!r}, and these graphs are {rows}, with {rows} "
                'nodes: say which is meant by per="graph" or per="node"'
            )
        self._sure.add(name)


def _is_rows(value: Any) -> bool:
    """Return whether rows come one by one: as a list of tensors or arrays, or as a nested tensor."""
    if isinstance(value, list) and value:
        return all(isinstance(row, torch.Tensor | np.ndarray) for row in value)
    return isinstance(value, torch.Tensor) and value.is_nested


def _as_ragged(value: Any, where: str) -> Any:
    """Return what differs in length as a `Ragged`; anything else as it is, arrays and rows of one shape as tensors."""
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
    """Return rows as one, along the axis in which they differ; where none does, later ones tell which it is."""
    first = rows[0]
    if not first.ndim:
        raise ValueError(f"{where} a list of tensors without dimensions: expected one tensor of them, by torch.stack")
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
    """Values and offsets, which begin at 0 and end where the items do."""
    ends = offsets.to("cpu", torch.int64)
    items = values.shape[axis] if values.ndim > axis else -1
    if ends.ndim != 1 or not len(ends) or int(ends[0]) < 0 or int(ends[-1]) > items or bool((ends.diff() < 0).any()):
        raise ValueError(
            f"{where} offsets {tuple(ends.tolist()[:3])}... for {max(0, items)} items: expected (rows + 1,) that do "
            "not fall, from 0 or more to at most the number of items"
        )
    first, last = int(ends[0]), int(ends[-1])
    return ragged_type(axis)(values.narrow(axis, first, last - first), ends - first)


def _cut(name: Any, value: torch.Tensor, per: Per, counts: Counts, where: str) -> Ragged:
    """Return a tensor of one result for each node, or edge, of all graphs, as the graphs have them."""
    ends = counts.node if per == "node" else counts.edge
    if ends is None:
        raise ValueError(
            f'{where}: per="{per}" is for batches of graphs that tell their {per}s (ptr'
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
    return f"; results for each {' or '.join(kinds)} are declared by {ways}, or are a memload.Ragged(values, offsets)"


def _count(value: Any) -> int | None:
    if isinstance(value, Ragged):
        return len(value.offsets) - 1
    return len(value) if isinstance(value, list) or value.dim() else None


def _told(value: Any, found: int | None) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{found} texts" if isinstance(value, list) else f"{found} rows of different length"


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list):
        return value
    if isinstance(value, Ragged):
        return type(value)(value.values.detach().cpu().contiguous(), value.offsets)
    return value.detach().cpu()
