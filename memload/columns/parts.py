"""What columns are made of: their classes, the arguments of these, and the selected rows.

column -> Parts, and those of what is in it -> the same column on other storages, or in another process
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload import _core
from memload._core import Clock, Slices, Storage, Windows
from memload.columns.fields import AnyColumn

_GRID = ("rows", "item_bytes", "row_shape", "tile_shape", "storages", "table", "chain", "fill", "cut", "order")

_ON_STORAGES: dict[type, tuple[str, ...]] = {
    _core.Column: ("row_bytes", "segments"),
    _core.Tiles: ("parts",),
    _core.TileGrid: _GRID,
    _core.Windows: ("frames", "steps", "runs"),
    _core.Ragged: ("item_bytes", "planes", "segments"),
    _core.Slices: ("frames", "recordings", "times", "grid", "sampling", "element"),
}
"""By class of what lies in storages: the attributes that are the arguments of its constructor, in order."""

_MADE_OF: dict[type, tuple[str, ...]] = {
    **_ON_STORAGES,
    _core.Chain: ("filters",),
    _core.Events: ("times", "units"),
    _core.EventCounts: ("events", "units", "times", "grid"),
    _core.EventItems: ("events", "times", "window", "item"),
    _core.SliceTimes: ("starts", "spans", "lows", "highs", "counts"),
}
_COMPOSED = frozenset(["segments", "parts", "storages", "chain", "frames", "recordings", "times", "events"])
"""The attributes that have storages, or things with parts of their own."""


@dataclass(frozen=True)
class Parts:
    """What a thing was made of.

    Attributes:
        make: the name in `memload._core` of its class, or of the method of its class that makes it.
        arguments: the arguments of that.
        selection: of a column the stored rows in order; None: all of them, as they lie.
    """

    make: str
    arguments: tuple[Any, ...]
    selection: NDArray[np.int64] | None = None

    def together(self) -> Any:
        """Make the thing again."""
        made = operator.attrgetter(self.make)(_core)(*self.arguments)
        return made if self.selection is None else made.select(self.selection)


def parts_of(value: Any, inner: Callable[[Any], Any]) -> Any:
    """Return the `Parts` of a column, or of a thing in one; of what has no parts, such as an array, that itself.

    Args:
        value: the thing.
        inner: returns what becomes of a storage or a thing within it. Lists of these become tuples.
    """
    if isinstance(value, Clock):
        times = value.times
        if times is not None:
            return Parts("Clock.at_times", (times, value.period, value.longest))
        return Parts("Clock", (value.rows, value.start, value.rate))
    if type(value) not in _MADE_OF:
        return value
    found = ((name, getattr(value, name)) for name in _MADE_OF[type(value)])
    arguments = tuple(_within(one, inner) if name in _COMPOSED else one for name, one in found)
    return Parts(type(value).__name__, arguments, getattr(value, "selection", None))


def _within(found: Any, inner: Callable[[Any], Any]) -> Any:
    return tuple(_within(one, inner) for one in found) if isinstance(found, list | tuple) else inner(found)


def on_storages(column: AnyColumn, exchange: Callable[[Storage], Storage]) -> Any:
    """Return the column with each of its storages exchanged for another that has the same bytes at the same places."""
    return _exchanged(exchange, column)


def _exchanged(exchange: Callable[[Storage], Storage], value: Any) -> Any:
    if isinstance(value, Storage):
        return exchange(value)
    if type(value) not in _ON_STORAGES:
        return value
    return parts_of(value, functools.partial(_exchanged, exchange)).together()


def on_frames(column: Windows | Slices, frames: Any) -> Any:
    """Return the same windows or slices of other frames, which are in the same order."""
    parts = parts_of(column, lambda value: value)
    return replace(parts, arguments=(frames, *parts.arguments[1:])).together()


def file_storages(columns: Iterable[AnyColumn]) -> Iterator[Storage]:
    """Yield the mapped files behind columns, each once, without files that are opened for each read."""
    seen: dict[Storage, None] = {}
    for column in columns:
        seen.update(dict.fromkeys(storage for storage in column.storages if storage.mapped and not storage.closed))
    yield from seen
