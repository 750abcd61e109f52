"""default_collate for samples that are made one after the other: large fields go into the batch while they are hot.

default_collate is given all samples of a batch at once. Where a function makes them, each lies in fresh memory by then,
and the batch takes fresh memory again. Here each large array is copied as soon as it is made, into memory that was a
batch before, so that the function's next sample finds the memory of its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.dlpack import from_dlpack

from memload import _core
from memload.collate_rules import default_collate_fn_map

_LARGE = 16 << 10  # bytes of a field that is worth a copy of its own
_ARRAYS_AS_SHIPPED = default_collate_fn_map.get(np.ndarray)


class FieldSlots:
    """Lends memory for the large fields of batches, to each field of its own, so that each is a storage of its own.

    Several threads may ask.

    Args:
        batches: of so many, the memory is kept for later ones.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._of: dict[int, _core.Slots] = {}

    def take(self, field: int, nbytes: int) -> torch.Tensor:
        """Return so many uninitialised bytes for the field of this number, counted from 0."""
        if field not in self._of:
            self._of.setdefault(field, _core.Slots(self._batches))
        return from_dlpack(self._of[field].take(nbytes))


def collate_as_made(samples: Iterable[Any], count: int, slots: FieldSlots) -> Any:
    """Return ``default_collate([*samples])``.

    Args:
        samples: ``count`` of them, at least one; each is made when it is asked for.
        count: how many.
        slots: lend the memory of the large fields of the batch.
    """
    made = iter(samples)
    first = next(made)
    large = {name: value for name, value in _parts(first) if _is_large(value)}
    if not large:
        return default_collate([first, *made])
    columns = _columns(large, count, slots)
    small: list[Any] = []
    for row, sample in enumerate(_again(first, made)):
        if not _alike(sample, first) or not all(columns[name].put(row, _part(sample, name)) for name in columns):
            before = [_whole(first, part, columns, k) for k, part in enumerate(small)]
            return default_collate([*before, sample, *made])
        small.append({name: value for name, value in _parts(sample) if name not in columns})
    rest = _collated(small, type(first)) if small[0] else {}
    whole = {name: columns[name].batch if name in columns else rest[name] for name, _ in _parts(first)}
    if type(first) is dict:
        return whole
    return [*whole.values()] if type(first) in (tuple, list) else whole[0]


class _Column:
    """One large field of a batch that is being made, and what each of its values must be like."""

    def __init__(self, like: Any, batch: torch.Tensor) -> None:
        self._kind, self._dtype, self._shape = type(like), like.dtype, like.shape
        self.batch = batch
        self._rows: Any = batch if self._kind is torch.Tensor else batch.numpy()

    def put(self, row: int, value: Any) -> bool:
        """Copy a value; False if it is not like the first, and nothing was done."""
        if type(value) is not self._kind or value.dtype != self._dtype or value.shape != self._shape:
            return False
        if not _is_plain(value):
            return False
        self._rows[row] = value
        return True

    def row(self, row: int) -> Any:
        """Return a value that was put, as what it was."""
        return self._rows[row]


def _collated(small: list[dict[Any, Any]], container: type) -> dict[Any, Any]:
    """What default_collate makes of parts of samples, by name: in containers of their kind, which matters to it."""
    if container is dict:
        found: dict[Any, Any] = default_collate(small)
        return found
    return dict(zip(small[0], default_collate([container(part.values()) for part in small]), strict=True))


def _columns(large: dict[Any, Any], count: int, slots: FieldSlots) -> dict[Any, _Column]:
    columns = {}
    for number, (name, value) in enumerate(large.items()):
        memory = slots.take(number, value.nbytes * count)
        dtype = value.dtype if type(value) is torch.Tensor else torch.from_numpy(np.empty(0, value.dtype)).dtype
        columns[name] = _Column(value, memory.view(dtype).view(count, *value.shape).data)  # to autograd no view
    return columns


def _is_large(value: Any) -> bool:
    if type(value) is np.ndarray:
        numeric = value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype.char != "g"
        rules_as_shipped = default_collate_fn_map.get(np.ndarray) is _ARRAYS_AS_SHIPPED
        return numeric and rules_as_shipped and value.nbytes >= _LARGE and _is_plain(value)
    return type(value) is torch.Tensor and _is_plain(value) and value.nbytes >= _LARGE


def _is_plain(value: Any) -> bool:
    """Whether default_collate would do nothing but copy its bytes, in their order."""
    if type(value) is np.ndarray:
        return bool(value.flags.c_contiguous)
    return (
        value.device.type == "cpu"
        and value.layout == torch.strided
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_complex())
    )


# Of a dict, tuple or list the parts are its values; anything else is the one part of itself.


def _parts(sample: Any) -> Iterable[tuple[Any, Any]]:
    if type(sample) is dict:
        return sample.items()
    return enumerate(sample) if type(sample) in (tuple, list) else [(0, sample)]


def _part(sample: Any, name: Any) -> Any:
    return sample[name] if type(sample) in (dict, tuple, list) else sample


def _alike(sample: Any, first: Any) -> bool:
    if type(sample) is not type(first):
        return False
    if type(first) is dict:
        return bool(sample.keys() == first.keys())
    return type(first) not in (tuple, list) or len(sample) == len(first)


def _whole(first: Any, small: dict[Any, Any], columns: dict[Any, _Column], row: int) -> Any:
    """A sample as it was, of what was put into columns and the rest."""
    parts = {name: columns[name].row(row) if name in columns else small[name] for name, _ in _parts(first)}
    if type(first) is dict:
        return parts
    return type(first)(parts.values()) if type(first) in (tuple, list) else parts[0]


def _again(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others
