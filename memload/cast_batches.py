"""Casts behind the stock machinery: what the native engine does while it gathers, done to finished batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memload.cast import Cast
from memload.graph_layout import GraphBatch
from memload.iterators import AroundBatches
from memload.pyg import is_data
from memload.ragged_rows import Padded, Ragged, is_ragged, with_values


def checked_casts(casts: Mapping[Any, Cast] | None) -> dict[Any, Cast]:
    """Return the casts of a loader's ``cast=`` argument as a dict.

    Raises:
        TypeError: it is no mapping from fields to ``Cast``.
    """
    if casts is None:
        return {}
    if not isinstance(casts, Mapping):
        raise TypeError(f'cast= maps fields to casts, such as {{"stim": Cast(torch.float32)}}; got {casts!r}')
    for key, cast in casts.items():
        if not isinstance(cast, Cast):
            raise TypeError(f"cast= maps {key!r} to {cast!r}; expected a Cast, such as Cast(torch.float32)")
    return dict(casts)


class CastBatches(AroundBatches):
    """The batches of an iterator with some of their fields cast.

    Args:
        batches: an iterator with a length.
        casts: by key of a mapping, or by position in a sequence.
        names: names of the positions, where the dataset has any.
        grouped: whether a batch is a list of groups, each with the fields of its dataset.
    """

    def __init__(
        self, batches: Any, casts: Mapping[Any, Cast], names: Sequence[str] = (), grouped: bool = False
    ) -> None:
        super().__init__(batches)
        self._casts = casts
        self._names = list(names)
        self._grouped = grouped

    def __next__(self) -> Any:
        return cast_batch(next(self._batches), self._casts, self._names, self._grouped)


def cast_batch(batch: Any, casts: Mapping[Any, Cast], names: Sequence[str] = (), grouped: bool = False) -> Any:
    """Return a batch like this one, with its fields cast; the arguments are those of `CastBatches`.

    Raises:
        KeyError: a cast is for a field that the batch does not have.
        TypeError: the batch has no fields.
    """
    if grouped:  # not every dataset has every field
        return [cast_batch(group, {key: casts[key] for key in casts if key in group}) for group in batch]
    paths = [key for key in casts if isinstance(key, tuple)]
    for path in paths:
        batch = _inside(batch, path, casts[path])
    if paths:
        casts = {key: cast for key, cast in casts.items() if key not in paths}
    if not casts:
        return batch
    if isinstance(batch, GraphBatch):
        return GraphBatch.of(cast_batch(batch.attributes, casts))
    if isinstance(batch, Mapping) or is_data(batch):
        done: Any = copy.copy(batch)
        for key, cast in casts.items():
            if key not in batch:
                there = batch if isinstance(batch, Mapping) else batch.to_dict()
                raise KeyError(f"cast= names the field {key!r}; batches have {', '.join(map(repr, there))}")
            done[key] = _applied(cast, batch[key])
        return done
    if isinstance(batch, torch.Tensor | Ragged | Padded) and list(casts) == list(names):
        return _applied(casts[names[0]], batch)
    if isinstance(batch, list | tuple):
        return _rebuilt(batch, {_position(key, names, len(batch)): cast for key, cast in casts.items()})
    raise TypeError(
        f"cast= needs batches with fields, that is dicts, lists or tuples; got {type(batch).__name__}. "
        "Cast in the loop instead, by memload.cast_stim"
    )


def _applied(cast: Cast, values: Any) -> Any:
    return with_values(values, cast.apply) if is_ragged(values) else cast.apply(values)


def _inside(batch: Any, path: tuple[Any, ...], cast: Cast) -> Any:
    """A batch like this one, with what lies at the end of the path cast."""
    if len(path) == 1:
        return cast_batch(batch, {path[0]: cast})
    if isinstance(batch, Mapping) and path[0] in batch:
        done: Any = copy.copy(batch)
        done[path[0]] = _inside(batch[path[0]], path[1:], cast)
        return done
    if isinstance(batch, list) and isinstance(path[0], int) and 0 <= path[0] < len(batch):
        return [_inside(value, path[1:], cast) if k == path[0] else value for k, value in enumerate(batch)]
    raise KeyError(f"cast= names the field {path!r}; there is no {path[0]!r} in a batch of it")


def _position(key: Any, names: Sequence[str], length: int) -> int:
    if key in names:
        return names.index(key)
    if not isinstance(key, int) or not 0 <= key < length:
        raise KeyError(f"cast= names the field {key!r}; batches have the positions 0 to {length - 1}")
    return key


def _rebuilt(batch: list[Any] | tuple[Any, ...], casts: Mapping[int, Cast]) -> Any:
    values = [_applied(casts[k], value) if k in casts else value for k, value in enumerate(batch)]
    if isinstance(batch, list):
        return values
    return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
