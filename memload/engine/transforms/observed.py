"""Some elements of what a function is given and of what it returns: of batches, or of a few samples of a batch.

Only plain tensors on the CPU are looked at. The copies are small; an observation lives as long as a batch is made.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_ELEMENTS = 1 << 14  # of a field, that are compared at most; torch's operations take no second thread for so few
_SAMPLES = 16  # of a batch whose samples go through a function one by one
_MOST_FIELDS = 16


@dataclass(frozen=True)
class Part:
    """One tensor of a result beside a field of the same elements.

    Attributes:
        key: the field.
        layout: the layout of the result, as that of a `Cast`; None: the axes are those of the field.
        x, y: elements of both, in the order of the field.
    """

    key: Any
    layout: str | None
    x: torch.Tensor
    y: torch.Tensor


Parts = dict[Any, list[Part]]
"""By the key of a tensor of the result: the fields that have as many elements."""


@dataclass(frozen=True)
class _Elements:
    """Elements of a tensor, copied.

    Attributes:
        shape: the shape of the tensor.
        cut: the elements that were taken along each axis.
        values: the elements.
    """

    shape: torch.Size
    cut: tuple[slice, ...]
    values: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor, most: int) -> _Elements:
        """Take at most so many elements, evenly spaced along the longest axes."""
        steps, counts = [1] * x.ndim, list(x.shape)
        while np.prod(counts, dtype=np.int64) > most:
            longest = counts.index(max(counts))
            steps[longest] *= 2
            counts[longest] = -(-x.shape[longest] // steps[longest])
        cut = tuple(slice(None, None, step) for step in steps)
        return cls(x.shape, cut, _copied(x[cut]))

    def beside(self, y: torch.Tensor, row: bool) -> tuple[str | None, torch.Tensor] | None:
        """Return the layout of `y`, or of a batch of such rows, and its elements; None if it is of another shape."""
        if y.shape == self.shape:
            return None, _copied(y[self.cut])
        if y.ndim < 3 or y.movedim(-3, -1).shape != self.shape:
            return None
        moved = y.movedim(-3, -1)
        is_view = not row and moved.is_contiguous() and not y.is_contiguous()
        return "channels_last" if is_view else "NCHW", _copied(moved[self.cut])


def _copied(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


class _Given:
    """A batch that a function is given, or with `row` a sample."""

    def __init__(self, value: Any, keys: Sequence[Any], row: bool = False) -> None:
        self._keys, self._row = keys, row
        most = _ELEMENTS // _SAMPLES if row else _ELEMENTS
        self._form, self._values = _flat(value, keys)
        tensors = ((key, one) for key, one in self._values.items() if _is_plain(one))
        self._elements = {key: _Elements.of(one, most) for key, one in itertools.islice(tensors, _MOST_FIELDS)}

    def beside(self, result: Any) -> tuple[Parts, bool]:
        """Return the parts of a result, and whether it has more than tensors in the places of fields."""
        form, values = _flat(result, self._keys)
        parts = {key: found for key, one in values.items() if (found := self._parts_of(key, one))}
        others = (key for key in values if key not in parts)
        rest = form != self._form or any(values[key] is not self._values[key] for key in others)
        return parts, rest

    def _parts_of(self, key: Any, value: Any) -> list[Part]:
        """Return the fields beside which a value can be put; that of its own key comes first."""
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" else value
        if not _is_plain(value):
            return []
        found = []
        for field in sorted(self._elements, key=lambda field: field != key):
            if (beside := self._elements[field].beside(value, self._row)) is not None:
                found.append(Part(field, beside[0], self._elements[field].values, beside[1]))
        return found


def _flat(value: Any, keys: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
    """Return what tells two structures apart, and the values in a structure by field, or by position."""
    if type(value) is dict:
        return (dict, *value), value
    if type(value) in (list, tuple):
        names = keys if len(value) == len(keys) else range(len(value))
        return (type(value), *names), dict(zip(names, value, strict=True))
    return type(value), {keys[0] if len(keys) == 1 else 0: value}


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided


class Observation:
    """One batch on its way through a function of batches, or some of its samples through functions of samples.

    Args:
        keys: the fields of the dataset, in the order of a batch.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = keys
        self._generators = _process_generators()
        self._given: dict[int, _Given] = {}
        self._made = 0
        self._seen: list[Parts] = []
        self.has_rest = False
        """Whether the function did more than to put tensors in the places of fields."""
        self.failed = False
        """Whether a value could not be looked at, such as an array of a dtype that torch does not know."""

    @property
    def is_random(self) -> bool:
        """Whether the generators of Python or of numpy have moved since, by the function or by other code."""
        return self._generators != _process_generators()

    def before(self, batch: Any) -> None:
        """Copy elements of a batch that a function is to be given."""
        self._look(0, batch, row=False)

    def after(self, result: Any, number: int = 0) -> None:
        """Copy the same elements of what the function returned for it."""
        given = self._given.pop(number, None)
        if given is None:
            return
        try:
            parts, rest = given.beside(result)
        except Exception:  # objects of users may raise anything: the loop gets them as they are
            self.failed = True
        else:
            self._seen.append(parts)
            self.has_rest |= rest

    def _look(self, number: int, value: Any, *, row: bool) -> None:
        try:
            self._given[number] = _Given(value, self._keys, row)
        except Exception:  # as above
            self.failed = True

    def samples(self, samples: Iterable[Any], count: int) -> Iterator[Any]:
        """Yield so many samples, and copy elements of some of them."""
        step = -(-count // _SAMPLES)
        for number, sample in enumerate(samples):
            if number % step == 0:
                self._look(number, sample, row=True)
            yield sample

    def maker(self, make: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
        """Return a function that makes the next so many samples by `make`, and copies elements of some of them."""

        def observed(count: int) -> list[Any]:
            made = make(count)
            for number, result in enumerate(made, self._made):
                if number in self._given:
                    self.after(result, number)
            self._made += len(made)
            return made

        return observed

    def parts(self) -> Parts:
        """Return what was seen; of samples, one after the other as the rows of a batch."""
        if len(self._seen) < 2:
            return self._seen[0] if self._seen else {}
        first, *others = self._seen
        return {key: found for key in first if (found := [*_stacked(first[key], [one.get(key) for one in others])])}


def _stacked(parts: list[Part], others: list[list[Part] | None]) -> Iterator[Part]:
    for part in parts:
        rows = [part]
        for seen in others:
            rows += [one for one in seen or () if _is_alike(one, part)][:1]
        if len(rows) == len(others) + 1:
            x, y = (torch.stack([getattr(one, name) for one in rows]) for name in ("x", "y"))
            yield Part(part.key, part.layout, x, y)


def _is_alike(one: Part, other: Part) -> bool:
    """Whether two parts can be rows of one batch."""
    same = (one.key, one.layout, one.x.shape) == (other.key, other.layout, other.x.shape)
    return same and (one.x.dtype, one.y.dtype) == (other.x.dtype, other.y.dtype)


def _process_generators() -> tuple[Any, ...]:
    """Return the states of the generators of the process that code for samples draws from.

    Raises:
        Exception: the user gave numpy a generator whose state cannot be copied.
    """
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - the generator that users may draw from
    return random.getstate(), pickle.dumps(of_numpy)
