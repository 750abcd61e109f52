"""The structure of a batch: which containers its tensors lie in, as default_collate would give them."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


class Layout(abc.ABC):
    """A tree whose leaves are tensors. Layouts are equal where batches have the same structure."""

    reads_values = False
    """Whether `build` reads values of tensors, so that tensors without values will not do."""

    @abc.abstractmethod
    def build(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Return a batch of as many tensors as there are leaves, taken from left to right."""


@dataclass(frozen=True)
class Only(Layout):
    """The tensor itself."""

    def build(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Return the next tensor."""
        return next(tensors)


@dataclass(frozen=True)
class DictOf(Layout):
    """A dict; members by name."""

    members: tuple[tuple[str, Layout], ...]

    def build(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Return a dict."""
        return {name: member.build(tensors) for name, member in self.members}


@dataclass(frozen=True)
class ListOf(Layout):
    """A list, which is what default_collate makes of tuples."""

    members: tuple[Layout, ...]

    def build(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Return a list."""
        return [member.build(tensors) for member in self.members]


@dataclass(frozen=True)
class TensorDictOf(Layout):
    """A TensorDict.

    Attributes:
        members: its entries by name.
        row_size: its batch size without the first axis.
        device: its device, or None if it has none.
    """

    members: tuple[tuple[str, Layout], ...]
    row_size: tuple[int, ...]
    device: torch.device | None

    def build(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Return a TensorDict."""
        entries = {name: member.build(tensors) for name, member in self.members}
        rows = len(next(iter(entries.values())))
        return sys.modules["tensordict"].TensorDict(entries, batch_size=(rows, *self.row_size), device=self.device)


@dataclass(frozen=True)
class Graphs(Layout):
    """Of samples that are graphs, which default_collate makes no batch of."""

    def build(self, tensors: Iterator[torch.Tensor]) -> Any:  # noqa: ARG002 - as of every layout
        """There is no such batch: a collate function has to say what becomes of graphs."""
        raise TypeError("batches of graphs need collate_fn=memload.graph_collate")


def paths(layout: Layout) -> list[tuple[str | int, ...]]:
    """Return where each tensor lies in a batch, from left to right: the names and positions that lead there."""
    if isinstance(layout, DictOf | TensorDictOf):
        return [(name, *path) for name, member in layout.members for path in paths(member)]
    if isinstance(layout, ListOf):
        return [(k, *path) for k, member in enumerate(layout.members) for path in paths(member)]
    return [()]


def flat(kind: str, names: Iterator[str] | list[str]) -> Layout:
    """Return the layout of a memload dataset with these fields: "dict", "tuple" or "only"."""
    if kind == "dict":
        return DictOf(tuple((name, Only()) for name in names))
    return ListOf(tuple(Only() for _ in names)) if kind == "tuple" else Only()
