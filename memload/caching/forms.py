"""The form of the rows of a result: all of one shape, of one shape except for the length of an axis, or texts.

rows of some samples -> a tensor, a `Ragged` or texts -> the same in the form that all rows so far have in common
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from memload.columns.ragged_forms import Ragged, as_ragged, joined, row_count, rows_of
from memload.dtypes import dtype_name

Batch = Mapping[str, Any]
"""Some rows by field: tensors on the CPU (rows, *shape), `memload.Ragged`, or lists of texts."""


class FieldRecord(Protocol):
    """What the index of a set says of a field."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Of a row, with None where rows differ."""


@dataclass(frozen=True)
class Form:
    """What all rows of a field have in common.

    Attributes:
        dtype: of the elements; None for texts.
        shape: of a row, with None for the axis along which rows differ in length.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, values: Any) -> Form:
        """Return the form of the rows of a batch."""
        if isinstance(values, list):
            return cls(None, (None,))
        if isinstance(values, Ragged):
            shape = values.values.shape
            return cls(values.values.dtype, (*shape[: values.axis], None, *shape[values.axis + 1 :]))
        return cls(values.dtype, tuple(values.shape[1:]))

    @classmethod
    def stored(cls, field: FieldRecord) -> Form:
        """Return the form of a field of which rows are stored."""
        return cls(None if getattr(field, "text", False) else field.dtype, field.shape)

    @property
    def axis(self) -> int | None:
        """The axis along which rows differ in length; None: along none."""
        return self.shape.index(None) if None in self.shape else None

    def common(self, other: Form) -> Form | None:
        """Return the form that rows of both forms have; None if they cannot be rows of one field."""
        if self == other:
            return self
        if self.dtype is None or self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return None
        pairs = enumerate(zip(self.shape, other.shape, strict=True))
        axes = {axis for axis, sides in pairs if len({*sides}) > 1 or None in sides}
        if len(axes) != 1 or max(axes) > 1:
            return None
        (axis,) = axes
        rest = (*self.shape[:axis], *self.shape[axis + 1 :])
        return None if 0 in rest else replace(self, shape=(*self.shape[:axis], None, *self.shape[axis + 1 :]))

    def __str__(self) -> str:
        if self.dtype is None:
            return "a text"
        sides = ", ".join("n" if side is None else str(side) for side in self.shape)
        return f"{dtype_name(self.dtype)} ({sides}{',' if len(self.shape) == 1 else ''})"


class Forms:
    """The forms of the fields of a result, as the rows that came so far show them.

    Args:
        known: by field, of rows that are there already.
    """

    def __init__(self, known: Mapping[str, Form] | None = None) -> None:
        self._known = dict(known or {})

    def take(self, batch: Mapping[str, Any], row: int) -> dict[str, int]:
        """Learn what rows show.

        Args:
            batch: rows by field, as `gathered` returns them.
            row: the number of the first of them.

        Returns:
            The fields whose rows before all had one shape, and that differ in length from now on, with the axis.

        Raises:
            ValueError: rows have other fields than those before, or cannot stand in one field with them.
        """
        if self._known and batch.keys() != self._known.keys():
            raise ValueError(f"row {row:,} has the fields {[*batch]}, expected {[*self._known]}")
        differ: dict[str, int] = {}
        for name, values in batch.items():
            before = self._known.get(name)
            form = _common(name, before, values, row)
            if before is not None and before.axis is None and form.axis is not None:
                differ[name] = form.axis
            self._known[name] = form
        return differ

    def let_differ(self, names: Iterable[str]) -> dict[str, int]:
        """Let rows of fields differ in length along their first axis, where they have not shown another one.

        Returns:
            The fields that had one shape so far, with the axis.
        """
        forms = {name: self._known[name] for name in names}
        chosen = {name: form for name, form in forms.items() if form.axis is None and 0 not in form.shape[1:]}
        self._known |= {name: replace(form, shape=(None, *form.shape[1:])) for name, form in chosen.items()}
        return dict.fromkeys(chosen, 0)

    def arranged(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return rows that were taken in the forms that are known: those that differ in length as a `Ragged`."""
        return {name: _arranged(values, self._known[name]) for name, values in batch.items()}


def _common(name: str, before: Form | None, values: Any, row: int) -> Form:
    """Return the form of the rows before and of these; ValueError for the first that has no place among them."""
    if not _is_list(values):
        own = Form.of(values)
        form = own if before is None else before.common(own)
        if form is not None:
            return form
    each = values if isinstance(values, list) else list(rows_of(values) if isinstance(values, Ragged) else values)
    form = before
    for number, value in enumerate(each, start=row):
        own = _form_of_row(value)
        wider = own if form is None else form.common(own)
        if wider is None:
            raise ValueError(
                f"row {number:,}: field {name!r} is {own}, and {form} in the rows before; {_remedy(form, own)}"
            )
        form = wider
    raise _of_several_types(name, each, f"{row:,} to {row + len(each) - 1:,}")


def check_types(batch: Mapping[str, Any], numbers: Sequence[int]) -> None:
    """Raise ValueError if rows with these numbers, which have forms in common, are of several types in a field."""
    for name, values in batch.items():
        if _is_list(values):
            raise _of_several_types(name, values, ", ".join(f"{number:,}" for number in numbers))


def _of_several_types(name: str, values: Sequence[Any], numbers: str) -> ValueError:
    kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in values))
    return ValueError(f"rows {numbers}: field {name!r} is of several types ({kinds}): return one")


def _is_list(values: Any) -> bool:
    """Return whether rows make no field by themselves, and are those that the function returned."""
    return isinstance(values, list) and not all(isinstance(value, str) for value in values)


def _form_of_row(value: Any) -> Form:
    if isinstance(value, str):
        return Form(None, (None,))
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")
    return Form(tensor.dtype, tuple(tensor.shape))


def _remedy(before: Form | None, own: Form) -> str:
    if before is not None and before.dtype != own.dtype:
        return "return one dtype for all rows"
    return (
        "rows of a field may differ in length along their first or their second axis, and no further: pad or crop them "
        "to one shape, or flatten them and return their shape as a field of its own"
    )


def _arranged(values: Any, form: Form) -> Any:
    if form.axis is None or not isinstance(values, torch.Tensor):
        return values
    return as_ragged(values, form.axis)


def gathered(rows: Sequence[Any], axis: int | None = None) -> Any:
    """Return the rows of one field, of which there is one at least, as one value.

    Args:
        rows: one value for each: tensors, arrays, numbers or texts.
        axis: along which rows are declared to differ in length, even where none does; None: as they are.

    Returns:
        What `default_collate` makes of them; a `Ragged` of rows that differ in length along their first or second axis;
        or the rows themselves, as a list, where they make no field: `Forms.take` says why.
    """
    if not _alike(rows):
        return list(rows)
    if isinstance(rows[0], torch.Tensor | np.ndarray):
        found = _axis(rows, axis)
        if found is not None:
            return joined([torch.as_tensor(row, device="cpu") for row in rows], "offsets", found)
        if any(row.shape != rows[0].shape for row in rows):
            return list(rows)
    return default_collate(list(rows))


def _alike(rows: Sequence[Any]) -> bool:
    """Return whether rows are of one type and dtype."""
    first = rows[0]
    if isinstance(first, torch.Tensor | np.ndarray):
        kind = torch.Tensor if isinstance(first, torch.Tensor) else np.ndarray
        return all(isinstance(row, kind) and row.dtype == first.dtype for row in rows)
    return len(set(map(type, rows))) == 1


def _axis(rows: Sequence[Any], declared: int | None) -> int | None:
    """Return the axis, the first or the second, along which rows differ, or are declared to; None if none."""
    shapes = {tuple(row.shape) for row in rows}
    if len(set(map(len, shapes))) > 1:
        return None
    axes = [axis for axis, sides in enumerate(zip(*shapes, strict=True)) if len(set(sides)) > 1 or axis == declared]
    rest = [side for axis, side in enumerate(next(iter(shapes))) if axis not in axes]
    return axes[0] if len(axes) == 1 and axes[0] < 2 and 0 not in rest else None


def nbytes_of(values: Any) -> int:
    """Return the bytes of the rows of a field as they are stored."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    if isinstance(values, Ragged):
        return values.values.nbytes + values.offsets.nbytes
    return sum(len(text.encode()) + _OFFSET for text in values)


def items_nbytes(batch: Batch) -> int:
    """Return the bytes of the fields of a batch whose rows differ in length, texts among them, without offsets."""
    found = 0
    for values in batch.values():
        if not isinstance(values, torch.Tensor):
            found += nbytes_of(values) - _OFFSET * row_count(values)
    return found


_OFFSET = 8  # bytes of the offset of a row
