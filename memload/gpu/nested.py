"""The tensors of a batch, in whichever containers they lie."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch

# What has no tensors, or far more than a batch is about.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)
_NO_HOLDERS = (*_PLAIN, type, ModuleType, FunctionType)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, from left to right; those of objects that are no containers are not found.

    Example:
        >>> [x.item() for x in tensors_of({"a": torch.tensor(1), "b": [(torch.tensor(2), "text")]})]
        [1, 2]
    """
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    rebuilt(batch, note)
    return found


def all_tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, and those that objects in it have as attributes, or in containers there.

    Example:
        >>> from types import SimpleNamespace
        >>> [x.item() for x in all_tensors_of([torch.tensor(1), SimpleNamespace(x=[torch.tensor(2)], n=3)])]
        [1, 2]
    """
    found: list[torch.Tensor] = []
    seen: dict[int, Any] = {}  # kept meanwhile, so that no number comes twice
    left = [batch]
    while left:
        value = left.pop()
        if isinstance(value, _NO_HOLDERS) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            jagged: Any = value
            found += [jagged.values(), jagged.offsets()] if value.layout == torch.jagged else [value]
        else:
            left += reversed(_members(value))
    return found


def _members(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]


def rebuilt(batch: Any, fn: Callable[[torch.Tensor], torch.Tensor], other: Callable[[Any], Any] | None = None) -> Any:
    """Return a batch like this one, with `fn` of each tensor, from left to right.

    Args:
        batch: tensors in dicts and other mappings, tuples, named tuples, lists and dataclasses, nested in any way.
            Jagged tensors count as their values and offsets.
        fn: makes a tensor of a tensor.
        other: makes something of whatever is neither a tensor nor such a container; without it, that stays as it is.
    """
    if isinstance(batch, torch.Tensor):
        if batch.layout != torch.jagged:
            return fn(batch)
        jagged: Any = batch
        values = fn(jagged.values())
        return torch.nested.nested_tensor_from_jagged(values, offsets=fn(jagged.offsets()))
    if isinstance(batch, tuple):
        members = [rebuilt(member, fn, other) for member in batch]
        return type(batch)(*members) if hasattr(batch, "_fields") else type(batch)(members)
    if isinstance(batch, list):
        members = [rebuilt(member, fn, other) for member in batch]
        return members if type(batch) is list else _list_like(batch, members)
    if isinstance(batch, Mapping) and not hasattr(batch, "to"):
        return _mapping_like(batch, {key: rebuilt(value, fn, other) for key, value in batch.items()})
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and not hasattr(batch, "to"):
        return _dataclass_like(batch, fn, other)
    return batch if other is None else other(batch)


def _list_like(batch: list[Any], members: list[Any]) -> Any:
    made = copy.copy(batch)
    made[:] = members
    return made


def _mapping_like(batch: Mapping[Any, Any], members: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return members
    if isinstance(batch, MappingProxyType):
        return MappingProxyType(members)
    made: Any = copy.copy(batch)  # keeps what a subclass has besides, such as the factory of a defaultdict
    made.update(members)
    return made


def _dataclass_like(
    batch: Any, fn: Callable[[torch.Tensor], torch.Tensor], other: Callable[[Any], Any] | None = None
) -> Any:
    made = copy.copy(batch)
    for field in dataclasses.fields(batch):
        object.__setattr__(made, field.name, rebuilt(getattr(batch, field.name), fn, other))
    return made
