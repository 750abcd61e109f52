"""The form of the rows of a field: rows of one shape, rows that differ in length along one axis, or texts.

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
    """The entry of a field in the index of a set."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the elements."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of a row, with None where rows differ."""


@dataclass(frozen=True)
class Form:
    """The properties that all rows of a field have in common.

    Attributes:
        dtype: the dtype of the elements; None for texts.
        shape: the shape of a row, with None for the axis along which rows differ in length.
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
        """Return the form of a field of a set that has rows."""
        return cls(None if getattr(field, "text", False) else field.dtype, field.shape)

    @property
    def axis(self) -> int | None:
        """The axis along which rows differ in length; None if there is none."""
        return self.shape.index(None) if None in self.shape else None

    def common(self, other: Form) -> Form | None:
        """Return the form that fits rows of both forms; None if they cannot be rows of one field."""
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
    """The forms of the fields of a result, according to the rows so far.

    Args:
        known: the forms by field, if there are rows already.
    """

    def __init__(self, known: Mapping[str, Form] | None = None) -> None:
        self._known = dict(known or {})

    def take(self, batch: Mapping[str, Any], row: int) -> dict[str, int]:
        """Update the forms with more rows.

        Args:
            batch: the rows by field, as `gathered` returns them.
            row: the number of the first row.

        Returns:
            The fields whose earlier rows all had one shape and now begin to differ in length, with the axis.

        Raises:
            ValueError: the rows have other fields than those before, or do not fit into one field with them.
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
        """Mark fields as ragged along their first axis, unless they are ragged already.

        Returns:
            The fields that had one shape so far, with the axis.
        """
        forms = {name: self._known[name] for name in names}
        chosen = {name: form for name, form in forms.items() if form.axis is None and 0 not in form.shape[1:]}
        self._known |= {name: replace(form, shape=(None, *form.shape[1:])) for name, form in chosen.items()}
        return dict.fromkeys(chosen, 0)

    def arranged(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return rows in the forms of their fields: rows of ragged fields as a `Ragged`."""
        return {name: _arranged(values, self._known[name]) for name, values in batch.items()}


def _common(name: str, before: Form | None, values: Any, row: int) -> Form:
    """Return the common form of the rows before and of these. Raises ValueError for the first row that does not fit."""
    if not _is_list(values):
        new = Form.of(values)
        form = new if before is None else before.common(new)
        if form is not None:
            return form
    rows = values if isinstance(values, list) else list(rows_of(values) if isinstance(values, Ragged) else values)
    form = before
    for number, value in enumerate(rows, start=row):
        new = _form_of_row(value)
        wider = new if form is None else form.common(new)
        if wider is None:
            raise ValueError(
                f"row {number:,}: field {name!r} is {new}, and {form} in the rows before; {_remedy(form, new)}"
            )
        form = wider
    raise _of_several_types(name, rows, f"{row:,} to {row + len(rows) - 1:,}")


def check_types(batch: Mapping[str, Any], numbers: Sequence[int]) -> None:
    """Raise ValueError if the rows with these numbers are of several types in a field."""
    for name, values in batch.items():
        if _is_list(values):
            raise _of_several_types(name, values, ", ".join(f"{number:,}" for number in numbers))


def _of_several_types(name: str, values: Sequence[Any], numbers: str) -> ValueError:
    kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in values))
    return ValueError(f"rows {numbers}: field {name!r} is of several types ({kinds}): return one type")


def _is_list(values: Any) -> bool:
    """Return whether values are a list of rows that `gathered` could not join; texts are a field, not such a list."""
    return isinstance(values, list) and not all(isinstance(value, str) for value in values)


def _form_of_row(value: Any) -> Form:
    if isinstance(value, str):
        return Form(None, (None,))
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")
    return Form(tensor.dtype, tuple(tensor.shape))


def _remedy(before: Form | None, new: Form) -> str:
    if before is not None and before.dtype != new.dtype:
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
    """Return the rows of one field, at least one, as one value.

    Args:
        rows: one value for each row: tensors, arrays, numbers or texts.
        axis: the axis along which rows are declared to differ in length, even if none does; None: no declaration.

    Returns:
        The result of `default_collate`; or a `Ragged` of rows that differ in length along their first or second axis;
        or the list of rows, if they do not fit into one field: `Forms.take` then raises the error.
    """
    if not _same_type(rows):
        return list(rows)
    if isinstance(rows[0], torch.Tensor | np.ndarray):
        found = _axis(rows, axis)
        if found is not None:
            return joined([torch.as_tensor(row, device="cpu") for row in rows], "offsets", found)
        if any(row.shape != rows[0].shape for row in rows):
            return list(rows)
    return default_collate(list(rows))


def _same_type(rows: Sequence[Any]) -> bool:
    """Return whether rows are of one type and dtype."""
    first = rows[0]
    if isinstance(first, torch.Tensor | np.ndarray):
        kind = torch.Tensor if isinstance(first, torch.Tensor) else np.ndarray
        return all(isinstance(row, kind) and row.dtype == first.dtype for row in rows)
    return len(set(map(type, rows))) == 1


def _axis(rows: Sequence[Any], declared: int | None) -> int | None:
    """Return the first or second axis if rows differ along it, or are declared to, and along no other; else None."""
    shapes = {tuple(row.shape) for row in rows}
    if len(set(map(len, shapes))) > 1:
        return None
    axes = [axis for axis, sides in enumerate(zip(*shapes, strict=True)) if len(set(sides)) > 1 or axis == declared]
    rest = [side for axis, side in enumerate(next(iter(shapes))) if axis not in axes]
    return axes[0] if len(axes) == 1 and axes[0] < 2 and 0 not in rest else None


def nbytes_of(values: Any) -> int:
    """Return the bytes that the rows of a field take in a set."""
    if isinstance(values, torch.Tensor):
        return values.nbytes
    if isinstance(values, Ragged):
        return values.values.nbytes + values.offsets.nbytes
    return sum(len(text.encode()) + _OFFSET for text in values)


def items_nbytes(batch: Batch) -> int:
    """Return the bytes of the ragged fields and texts of a batch, without offsets."""
    found = 0
    for values in batch.values():
        if not isinstance(values, torch.Tensor):
            found += nbytes_of(values) - _OFFSET * row_count(values)
    return found


_OFFSET = 8  # bytes of the offset of a row
