"""Walks through nested containers: dicts and other mappings, lists, tuples, named tuples and dataclasses.

Batches, samples, results of models and contents of files are such containers. `leaves`, `leaves_with_paths` and
`mapped` walk through them; `is_leaf` decides which containers count as leaves.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch

# Objects of these types hold no tensors, or refer to far more than a batch.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)
_NO_HOLDERS = (*_PLAIN, type, ModuleType, FunctionType)


def leaves(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Yield the leaves, which are all values that are not containers, from left to right.

    Args:
        value: containers, nested in any way; or a leaf.
        is_leaf: returns True for a value that counts as a leaf even if it is a container.

    Example:
        >>> list(leaves({"a": 1, "b": [2, (3, "text")]}))
        [1, 2, 3, 'text']
    """
    return (leaf for _, leaf in leaves_with_paths(value, is_leaf))


def leaves_with_paths(
    value: Any, is_leaf: Callable[[Any], bool] | None = None, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each leaf with its path: the keys, positions and names of attributes that lead to it.

    Args:
        value, is_leaf: as for `leaves`.
        path: the path of `value` itself.

    Example:
        >>> list(leaves_with_paths({"a": 1, "b": [2, (3, "text")]}))
        [(('a',), 1), (('b', 0), 2), (('b', 1, 0), 3), (('b', 1, 1), 'text')]
    """
    members = _members(value, is_leaf)
    if members is None:
        yield path, value
        return
    for key, member in members:
        yield from leaves_with_paths(member, is_leaf, (*path, key))


def mapped(value: Any, fn: Callable[[Any], Any], is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return containers of the same types with ``fn(leaf)`` for each leaf; `fn` is called from left to right.

    Example:
        >>> mapped({"a": 1, "b": [2, (3, 4)]}, lambda number: 10 * number)
        {'a': 10, 'b': [20, (30, 40)]}
    """
    members = _members(value, is_leaf)
    return fn(value) if members is None else refilled(value, [mapped(one, fn, is_leaf) for _, one in members])


def refilled(container: Any, members: Sequence[Any]) -> Any:
    """Return a container like this one with other members; it keeps the keys and the attributes of a subclass.

    Example:
        >>> refilled({"a": 1, "b": 2}, [3, 4]), refilled((1, 2), [3, 4])
        ({'a': 3, 'b': 4}, (3, 4))
    """
    if isinstance(container, tuple):
        return _refilled_tuple(container, members)
    if type(container) is list:
        return list(members)
    if isinstance(container, MappingProxyType):
        return MappingProxyType(dict(zip(container, members, strict=True)))
    if type(container) is dict or (isinstance(container, Mapping) and not isinstance(container, MutableMapping)):
        return dict(zip(container, members, strict=True))
    made: Any = copy.copy(container)
    if isinstance(container, list):
        made[:] = members
    elif isinstance(container, MutableMapping):
        for key, member in zip(container, members, strict=True):
            made[key] = member
    else:
        for name, member in zip(_set_fields(container), members, strict=True):
            object.__setattr__(made, name, member)  # this also sets fields of frozen dataclasses
    return made


def _refilled_tuple(container: tuple[Any, ...], members: Sequence[Any]) -> Any:
    if type(container) is tuple:
        return tuple(members)
    if not hasattr(container, "__dict__") or hasattr(container, "_make"):
        return container._make(members) if hasattr(container, "_make") else type(container)(members)
    made: Any = tuple.__new__(type(container), members)  # its constructor may take other arguments
    made.__dict__.update(vars(container))
    return made


def _members(value: Any, is_leaf: Callable[[Any], bool] | None) -> list[tuple[Any, Any]] | None:
    """Return the members of a container with their keys, positions or names; None if the value is a leaf."""
    if isinstance(value, torch.Tensor) or (is_leaf is not None and is_leaf(value)):
        return None
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(name, getattr(value, name)) for name in _set_fields(value)]
    return None


def _set_fields(value: Any) -> list[str]:
    """Return the fields of a dataclass that have values: a field with ``init=False`` may have none yet."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch in the order of `map_tensors`; a jagged tensor gives its values and offsets.

    Example:
        >>> [x.item() for x in tensors_of({"a": torch.tensor(1), "b": [(torch.tensor(2), "text")]})]
        [1, 2]
    """
    tensors = (leaf for leaf in leaves(batch, _moves_itself) if isinstance(leaf, torch.Tensor))
    return [part for tensor in tensors for part in _parts_of(tensor)]


def map_tensors(
    batch: Any, fn: Callable[[torch.Tensor], torch.Tensor], other: Callable[[Any], Any] | None = None
) -> Any:
    """Return a batch like this one with ``fn(tensor)`` for each tensor; `fn` is called from left to right.

    Args:
        batch: nested containers. Mappings and dataclasses with a method ``to`` count as leaves: they move themselves.
            Jagged tensors count as their values and offsets.
        fn: takes a tensor and returns a tensor.
        other: takes each other leaf and returns its replacement; without it, other leaves stay as they are.
    """

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf if other is None else other(leaf)
        parts = [fn(part) for part in _parts_of(leaf)]
        return parts[0] if len(parts) == 1 else torch.nested.nested_tensor_from_jagged(parts[0], offsets=parts[1])

    return mapped(batch, changed, _moves_itself)


def _moves_itself(value: Any) -> bool:
    return (isinstance(value, Mapping) or dataclasses.is_dataclass(value)) and hasattr(value, "to")


def _parts_of(tensor: Any) -> list[torch.Tensor]:
    return [tensor.values(), tensor.offsets()] if tensor.layout == torch.jagged else [tensor]


def all_tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value, including those in attributes of its objects and in containers there.

    Example:
        >>> from types import SimpleNamespace
        >>> [x.item() for x in all_tensors_of([torch.tensor(1), SimpleNamespace(x=[torch.tensor(2)], n=3)])]
        [1, 2]
    """
    seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is used twice
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, _NO_HOLDERS) or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            yield from _parts_of(one)
        else:
            left += reversed(_held_by(one))


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]
