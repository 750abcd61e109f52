"""Fields whose rows differ in length, and text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.errors import FormatError
from memload.fields import Field, row_nbytes
from memload.ragged_rows import FORMS, Form, batch_of


@dataclass(frozen=True)
class RaggedField(Field):
    """A field whose rows differ in length: runs of items, found by offsets.

    Args:
        dtype: of the elements; torch.uint8 for text.
        shape: of a row, with None where rows differ: (None, *item), or (2, None) for rows that are joined along their
            second axis.
        column: where the rows lie.
        form: of batches: "offsets" is a `memload.Ragged` of values and offsets, "padded" a `memload.Padded` with zeros
            behind each row, "jagged" a tensor of torch.nested.
        text: whether rows are texts in UTF-8: a str in a sample, a list of str in a batch.

    Raises:
        ValueError: shape and column do not fit, or there are no such batches.
    """

    column: _core.Ragged
    form: Form = "offsets"
    text: bool = False

    def __post_init__(self) -> None:
        if self.shape.count(None) != 1 or self.axis > 1:
            raise ValueError(f"a shape of rows that differ is (None, ...) or (n, None, ...), got {self.shape}")
        planes, item = math.prod(self.shape[: self.axis]), row_nbytes(self.dtype, self.item_shape)
        if (self.column.planes, self.column.item_bytes) != (planes, item):
            raise ValueError(
                f"a row of {self.kind} {self.shape} has {planes} runs of items of {item} bytes, those of the column "
                f"are {self.column.planes} of {self.column.item_bytes}"
            )
        if self.form not in FORMS:
            raise ValueError(f"batches of rows that differ in length are one of {FORMS}, got {self.form!r}")
        if self.form != "offsets" and (self.axis or self.text):
            what = "texts, which are a list of str" if self.text else "rows that are joined along their second axis"
            raise ValueError(f'{self.form!r} is not for {what} in every batch; leave them as they are, "offsets"')

    @property
    def axis(self) -> int:
        """The axis along which rows differ in length, and are joined."""
        return int(self.shape.index(None))

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        return self.shape[self.axis + 1 :]

    @property
    def nbytes(self) -> int:
        """Bytes of the items of all rows, as they would be gathered."""
        return self.column.items * self.column.planes * self.column.item_bytes

    @property
    def kind(self) -> str:
        """ "text", or the dtype's name."""
        return "text" if self.text else super().kind

    @property
    def described(self) -> str:
        """What rows are, for messages, and the form of batches unless it is "offsets"."""
        return super().described + ("" if self.form == "offsets" else f' as "{self.form}"')

    @property
    def signature(self) -> tuple[Any, ...]:
        """What fields have in common whose rows may stand in one batch."""
        return (*super().signature, self.form, self.text)

    @property
    def pipeline_column(self) -> _core.Ragged:
        """The column that gives batches of this form."""
        return self.column.padded() if self.form == "padded" else self.column

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return a fresh batch with a copy of these rows, in this field's form; see `Field.gather`."""
        self.check_in_place()
        column, lengths = self.pipeline_column, self.column.lengths(rows)
        padded = self.form == "padded"
        items = len(rows) * int(lengths.max(initial=0)) if padded else int(lengths.sum())
        values = torch.empty((items * column.planes, *self.item_shape), dtype=self.dtype)
        if values.nbytes:
            column.gather(rows, values.data_ptr(), values.nbytes)
        numbers = lengths if padded else np.concatenate([[0], np.cumsum(lengths)])
        return self.assembled(values, iter([torch.from_numpy(numbers)]))

    def sample(self, row: NDArray[np.int64]) -> Any:
        """Return a fresh row of its own length, or its text."""
        batch = replace(self, form="offsets").gather(row)
        return batch[0] if self.text else batch.values

    def assembled(self, values: torch.Tensor, more: Iterator[torch.Tensor]) -> Any:
        """Return the batch of these items and the numbers that follow them: offsets, or lengths."""
        numbers = next(more)
        if self.text:
            return texts(values, numbers)
        if self.form == "padded":
            longest = len(values) // max(1, len(numbers))
            values = values.view(len(numbers), longest, *values.shape[1:])
        elif self.axis:
            planes = self.column.planes
            values = values.view(planes, len(values) // planes, *values.shape[1:])
        return batch_of(values, numbers, self.form, self.axis)

    def recipe(self) -> dict[str, Any]:
        """Return what makes this field of another column."""
        return {**super().recipe(), "form": self.form, "text": self.text}


def texts(values: torch.Tensor, offsets: torch.Tensor) -> list[str]:
    """Return the texts that lie one after the other in UTF-8.

    Raises:
        FormatError: bytes are not UTF-8.
    """
    raw = values.numpy().tobytes()
    try:
        return [raw[begin:end].decode() for begin, end in itertools.pairwise(offsets.tolist())]
    except UnicodeDecodeError as error:
        raise FormatError(f"a text is not UTF-8 ({error.reason}): {error.object[:40]!r}; write it again") from error


def forms_of_fields(fields: Mapping[Any, Field]) -> dict[Any, tuple[Form | None, int]]:
    """Return of the fields whose rows differ in length the form of batches, None for texts, and the axis."""
    ragged = {key: field for key, field in fields.items() if isinstance(field, RaggedField)}
    return {key: (None if field.text else field.form, field.axis) for key, field in ragged.items()}


def with_forms(fields: Sequence[tuple[str, Field]], forms: Any) -> dict[str, Field]:
    """Return the fields with batches of these forms.

    Args:
        fields: by name.
        forms: one for all fields whose rows differ in length, texts and those of a second axis excepted; or by name.

    Raises:
        KeyError: no field has such a name.
        TypeError: `forms` is neither.
        ValueError: the rows of a field have one length, or cannot have that form.
    """
    if isinstance(forms, str):
        forms = {
            name: forms
            for name, field in fields
            if isinstance(field, RaggedField) and not field.text and (forms == "offsets" or not field.axis)
        }
        if not forms:
            raise ValueError("there is no field whose rows differ in length along their first axis: no form to choose")
    if not hasattr(forms, "keys"):
        raise TypeError(f'the form of batches is one of {FORMS}, or such by field, as {{"tokens": "padded"}}')
    found = dict(fields)
    for name in forms:
        if name not in found:
            raise KeyError(f"no field {name!r}; there are {list(found)}")
        field = found[name]
        if not isinstance(field, RaggedField):
            raise ValueError(f"field {name!r}: all rows are {field.kind} {field.shape}; there is no form to choose")
        found[name] = replace(field, form=forms[name])
    return found
