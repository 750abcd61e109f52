"""Columns of keys: one whole number or text for each row, read once from a field or taken from an array."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.fields import Field
from memload.columns.matching import Column
from memload.columns.numbers import kind
from memload.columns.ragged_fields import RaggedField


@dataclass(frozen=True)
class KeyColumn:
    """One part of the keys of a dataset.

    Attributes:
        name: the name for messages.
        values: int64, uint64 or bool (rows,), or texts.
        is_field: whether the values come from a field of that name.
    """

    name: str
    values: NDArray[Any] | list[str]
    is_field: bool = False

    @property
    def what(self) -> str:
        """The kind of values, for messages."""
        if isinstance(self.values, list):
            return "text"
        return "bool" if self.values.dtype == np.bool_ else "a whole number"

    def value(self, row: int) -> int | str | bool:
        """Return the value of a row."""
        found = self.values[row]
        return found if isinstance(found, str) else found.item()

    def named(self, names: Sequence[str]) -> KeyColumn:
        """Return the column of names whose numbers these values are."""
        return replace(self, values=[names[int(number)] for number in self.values])

    @property
    def extent(self) -> str:
        """The range of numbers, or an example of texts, for messages."""
        if not len(self.values):
            return "nothing"
        if isinstance(self.values, list):
            return f"text such as {self.values[0]!r:.40}"
        return f"{self.values.min()} to {self.values.max()}"


def key_of_field(side: str, name: str, field: Field) -> KeyColumn:
    """Return the keys that a field holds.

    Raises:
        ValueError: rows are not single numbers or texts, or a number is not whole.
        TypeError: rows are complex numbers.
    """
    rows = np.arange(field.rows)
    if isinstance(field, RaggedField):
        return KeyColumn(name, _one_each(side, name, field, rows), is_field=True)
    if field.shape:
        raise ValueError(
            f"{side}: a row of field {name!r} is {field.described}; a key is one number or one text for each row, as "
            "in an array of shape (rows,)"
        )
    return KeyColumn(name, _whole(side, name, field.gather(rows)), is_field=True)


def _one_each(side: str, name: str, field: RaggedField, rows: NDArray[np.int64]) -> NDArray[Any] | list[str]:
    """Return texts, or the one number of each row: an attribute of a whole graph is a tensor (1,)."""
    if field.text:
        texts: list[str] = field.gather(rows)
        return texts
    if field.shape == (None,) and (field.column.lengths(rows) == 1).all():
        return _whole(side, name, replace(field, form="offsets").gather(rows).values)
    raise ValueError(
        f"{side}: the rows of field {name!r} are not one number each, but {field.described}; a key is one number or "
        "one text for each row"
    )


def key_of_values(side: str, name: str, values: Any, rows: int) -> KeyColumn:
    """Return the keys that an array holds: numbers or texts, one for each of `rows` rows.

    Raises:
        ValueError: their number is not `rows`, they have several axes, some are masked, or a number is not whole or
            exceeds 64 bits.
        TypeError: they are neither numbers nor texts.
    """
    if np.ma.is_masked(values):
        raise ValueError(f"{side}: the key {name} has masked values: leave such rows out by select()")
    found = values if isinstance(values, torch.Tensor) else np.asarray(values)
    if tuple(found.shape) != (rows,):
        raise ValueError(
            f"{side}: the key {name} has the shape {tuple(found.shape)}; expected ({rows},), one value for each row"
        )
    if isinstance(found, np.ndarray) and found.dtype.kind in "OUT":
        return KeyColumn(name, _objects(side, name, found))
    if isinstance(found, np.ndarray) and found.dtype.kind not in "biuf":
        decode = "; decode the texts, as by values.astype(str)" if found.dtype.kind == "S" else ""
        raise TypeError(f"{side}: the key {name} has the dtype {found.dtype}; keys are whole numbers or texts{decode}")
    return KeyColumn(name, _whole(side, name, found))


def comparable(left: KeyColumn, right: KeyColumn) -> tuple[Column, Column]:
    """Return the values of both sides in one form.

    Raises:
        TypeError: one side has numbers and the other texts.
        ValueError: a number of one side does not fit into int64.
    """
    if left.what != right.what:
        raise TypeError(
            f"the key {left.name} is {left.what} on the left{_first(left)} and {right.what} on the right"
            f"{_first(right)}: convert one of them, as by left_on= or right_on= with an array"
        )
    mine, other = left.values, right.values
    if isinstance(mine, list) or isinstance(other, list):
        return mine, other  # both are texts
    if mine.dtype == np.uint64 and other.dtype == np.uint64:
        return mine, other
    return _signed(left, mine), _signed(right, other)


def _first(key: KeyColumn) -> str:
    return f" ({key.value(0)!r:.40})" if len(key.values) else ""


def _signed(key: KeyColumn, values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype == np.uint64 and len(values) and values.max() >= 2**63:
        raise ValueError(f"the key {key.name}: {values.max()} is beyond int64, which the other side has")
    return values.astype(np.int64)


def _whole(side: str, name: str, values: Any) -> NDArray[Any]:
    """Return numbers as int64, uint64 or bool.

    Raises:
        ValueError: a number is not whole, or so large that its dtype cannot tell it from its neighbours.
        TypeError: the numbers are complex.
    """
    if isinstance(values, torch.Tensor):
        exact = 2 / torch.finfo(values.dtype).eps if values.dtype.is_floating_point else 0.0  # from here on, 1 is lost
        values = values.detach().cpu()
        values = (values.double() if values.dtype.is_floating_point else values).numpy()
    else:
        exact = float(2 / np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
    if values.dtype.kind == "c":
        raise TypeError(f"{side}: the key {name} has the dtype {values.dtype}; keys are whole numbers or texts")
    found: NDArray[Any] = values
    if found.dtype.kind != "f":
        return found if found.dtype in (np.bool_, np.uint64) else found.astype(np.int64)
    exact = min(exact, 2.0**63)
    bad = ~(np.abs(found) < exact) | (found != np.floor(found))  # NaN is neither
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{side}: the key {name} is {found[row]} in row {row} ({int(bad.sum()):,} such of {len(found):,} rows); "
            f"keys are texts or whole numbers, those of floating point below {exact:.0f}, so that they are equal or "
            "not: leave such rows out by select(), or give integers"
        )
    return found.astype(np.int64)


def _objects(side: str, name: str, values: NDArray[Any]) -> NDArray[Any] | list[str]:
    listed: list[Any] = values.tolist()
    if all(isinstance(value, str) for value in listed):
        return listed
    if all(isinstance(value, numbers.Integral) and not isinstance(value, bool) for value in listed):
        return _integers(side, name, listed)
    row, other = next((row, value) for row, value in enumerate(listed) if not isinstance(value, str))
    raise TypeError(
        f"{side}: the key {name} has {kind(other)}, {other!r:.40}, in row {row}; keys are whole numbers, or texts, in "
        "every row: leave rows without one out by select()"
    )


def _integers(side: str, name: str, listed: list[int]) -> NDArray[Any]:
    for dtype in (np.int64, np.uint64):
        bounds = np.iinfo(dtype)
        if bounds.min <= min(listed) and max(listed) <= bounds.max:
            return np.array(listed, dtype=dtype)
    raise ValueError(f"{side}: the key {name} goes from {min(listed)} to {max(listed)}, which 64 bits do not hold")
