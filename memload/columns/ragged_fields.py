"""Fields whose rows differ in length, and text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from memload import _core
from memload.columns.fields import Field, HasFields, row_nbytes
from memload.columns.numbers import kind
from memload.columns.ragged_forms import FORMS, Form, Padded, batch_of
from memload.columns.storage_terms import where_stored
from memload.dtypes import dtype_name
from memload.errors import FormatError

_D = TypeVar("_D", bound="HasRaggedFields")

RaggedColumn = _core.Ragged | _core.EventItems
"""A column whose rows differ in length: as they are stored, or the events of slices of time."""


@dataclass(frozen=True)
class RaggedField(Field):
    """A field whose rows differ in length: runs of items, found by offsets.

    Args:
        dtype: the dtype of the elements; torch.uint8 for text.
        shape: the shape of a row, with None where rows differ: (None, *item), or (2, None) for rows that are joined
            along their second axis.
        column: the column that finds each row's bytes.
        form: the form of batches: "offsets" is a `memload.Ragged` of values and offsets, "padded" a `memload.Padded`,
            "jagged" a tensor of torch.nested.
        pad_value: the element that fills padded rows.
        text: whether rows are texts in UTF-8: a str in a sample, a list of str in a batch.

    Raises:
        ValueError: shape and column do not fit, or such rows have no batches of this form.
    """

    column: RaggedColumn
    form: Form = "offsets"
    text: bool = False
    pad_value: Any = 0

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
        object.__setattr__(self, "pad_value", pad_as(self.pad_value, self.dtype))
        if self.form != "offsets" and (self.axis or self.text):
            if self.text:
                what, remedy = "texts, which are a list of str in every batch", ""
            else:
                what, remedy = f"rows of the shape {self.shape}, joined along their second axis", f", or {self.remedy}"
            raise ValueError(f'{self.form!r} is not for {what}; leave them as they are, "offsets"{remedy}')

    @property
    def axis(self) -> int:
        """The axis along which rows differ in length and are joined."""
        return int(self.shape.index(None))

    @property
    def remedy(self) -> str:
        """What to do where only rows that differ along their first axis can be had; "" if these do."""
        if not self.axis:
            return ""
        turned = "x.T" if len(self.shape) == 2 else "x.swapaxes(0, 1)"
        return (
            f"store rows with the axis in which they differ first, as memload.ragged([{turned} for x in rows]), "
            f"whose rows are {(None, self.shape[0], *self.item_shape)}"
        )

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        return self.shape[self.axis + 1 :]

    @property
    def nbytes(self) -> int:
        """Bytes of the items of all rows once gathered."""
        return self.column.items * self.column.planes * self.column.item_bytes

    def lengths(self) -> torch.Tensor:
        """Return the items of each row, int64 (rows,), from offsets alone; of a text its bytes in UTF-8."""
        return torch.from_numpy(self.column.lengths(np.arange(self.rows)))

    @property
    def kind(self) -> str:
        """The word "text", or the dtype's name."""
        return "text" if self.text else super().kind

    @property
    def described(self) -> str:
        """The dtype and shape of rows for messages, with the form of batches unless it is "offsets"."""
        padding = f" with {self.pad_value}" if self._pads_otherwise else ""
        return super().described + ("" if self.form == "offsets" else f' as "{self.form}"{padding}')

    @property
    def signature(self) -> tuple[Any, ...]:
        """A value that is equal for fields whose rows fit into one batch."""
        return (*super().signature, self.form, self.text, repr(self.pad_value) if self._pads_otherwise else "")

    @property
    def pipeline_column(self) -> RaggedColumn:
        """The column that gives batches of this form."""
        return self.pipeline_column_as(self.dtype)

    def pipeline_column_as(self, dtype: torch.dtype) -> RaggedColumn:
        """Return the column that gives batches of this form and that dtype."""
        if self.form != "padded":
            return self.column
        pad = torch.tensor([self.pad_value], dtype=self.dtype, device="cpu").to(dtype)
        return self.column.padded(pad.view(torch.uint8).numpy().tobytes())

    @property
    def _pads_otherwise(self) -> bool:
        return self.form == "padded" and self.pad_value != 0

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return a fresh batch with a copy of these rows, in this field's form; see `Field.gather`."""
        self.check_in_place()
        column, lengths = self.pipeline_column, self.column.lengths(rows)
        padded = self.form == "padded"
        items = len(rows) * int(lengths.max(initial=0)) if padded else int(lengths.sum())
        values = torch.empty((items * column.planes, *self.item_shape), dtype=self.dtype, device="cpu")
        if values.nbytes:
            column.gather(rows, values.data_ptr(), values.nbytes)
        places = lengths if padded else np.concatenate([[0], np.cumsum(lengths)])
        return self.assembled(values, iter([torch.from_numpy(places)]))

    def sample(self, row: NDArray[np.int64]) -> Any:
        """Return a fresh row of its own length, or its text."""
        batch = replace(self, form="offsets").gather(row)
        return batch[0] if self.text else batch.values

    def assembled(self, values: torch.Tensor, more: Iterator[torch.Tensor]) -> Any:
        """Return the batch of these items and the numbers that follow them: offsets, or lengths."""
        places = next(more)
        if self.text:
            return texts(values, places, self.column)
        if self.form == "padded":
            longest = len(values) // max(1, len(places))
            values = values.view(len(places), longest, *values.shape[1:])
        elif self.axis:
            planes = self.column.planes
            values = values.view(planes, len(values) // planes, *values.shape[1:])
        return batch_of(values, places, self.form, self.axis)

    def padded_again(self, values: Any) -> Any:
        """Return a batch whose items and padding were cast, with the new padding value."""
        if isinstance(values, Padded):
            pad = torch.tensor(self.pad_value, dtype=self.dtype, device="cpu").to(values.values)
            outside = ~values.mask
            values.values.masked_fill_(outside.view(*outside.shape, *(1,) * len(self.item_shape)), pad)
        return values

    def recipe(self) -> dict[str, Any]:
        """Return the arguments that make this field of another column."""
        return {**super().recipe(), "form": self.form, "text": self.text, "pad_value": self.pad_value}


def texts(values: torch.Tensor, offsets: torch.Tensor, column: RaggedColumn) -> list[str]:
    """Return the texts of UTF-8 bytes that were gathered from the column.

    Raises:
        FormatError: bytes are not UTF-8.
    """
    raw = values.numpy().tobytes()
    try:
        return [raw[begin:end].decode() for begin, end in itertools.pairwise(offsets.tolist())]
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where_stored(column)}: a text is not UTF-8 ({error.reason}): {error.object[:40]!r}; write it again"
        ) from error


def forms_of_fields(fields: Mapping[Any, Field]) -> dict[Any, tuple[Form | None, int, Any]]:
    """Return, for fields whose rows differ in length, the form of batches (None for texts), axis and pad value."""
    ragged = {key: field for key, field in fields.items() if isinstance(field, RaggedField)}
    return {key: (None if field.text else field.form, field.axis, field.pad_value) for key, field in ragged.items()}


def holds_ragged(fields: Mapping[Any, Field]) -> bool:
    """Whether rows of one of the fields differ in length."""
    return any(isinstance(field, RaggedField) for field in fields.values())


def pad_as(value: Any, dtype: torch.dtype) -> Any:
    """Return the number as an element of that dtype. Raises TypeError and ValueError if the dtype cannot hold it."""
    if not isinstance(value, int | float | complex | np.number):
        raise TypeError(f"pad_value is a number, got {kind(value)}")
    try:
        held = torch.tensor(value, dtype=dtype, device="cpu").item()
    except (RuntimeError, TypeError, ValueError, OverflowError):
        held = None
    rounds = dtype.is_floating_point or dtype.is_complex
    is_nan = value != value
    if held is None or not (held == value or (rounds and (is_nan or math.isfinite(abs(held))))):
        raise ValueError(f"pad_value {value!r} is no {dtype_name(dtype)}: give one that rows of it can hold")
    return held


def with_forms(fields: Sequence[tuple[str, Field]], forms: Any, pad_value: Any = None) -> dict[str, Field]:
    """Return the fields with batches of these forms.

    Args:
        fields: the fields by name.
        forms: one form for all fields whose rows differ in length, except texts and rows joined along a second axis;
            or forms by name. `("padded", value)` is "padded" with that value.
        pad_value: the value for all fields that become padded, unless their form has its own; or values by name.
            None: 0.

    Raises:
        KeyError: no field has such a name.
        TypeError: `forms` is neither, or a pad value is no number.
        ValueError: the rows of a field have one length, or cannot have that form, or cannot hold that pad value.
    """
    if isinstance(forms, str | tuple):
        one = forms
        forms = {
            name: one
            for name, field in fields
            if isinstance(field, RaggedField) and not field.text and (one == "offsets" or not field.axis)
        }
        if not forms:
            along = [field.remedy for _, field in fields if isinstance(field, RaggedField) and not field.text]
            raise ValueError(
                "there is no field whose rows differ in length along their first axis: no form to choose"
                + (f"; {along[0]}" if along else "")
            )
    if not hasattr(forms, "keys"):
        raise TypeError(f'the form of batches is one of {FORMS}, or such by field, as {{"tokens": "padded"}}')
    found = dict(fields)
    pads = _pads_of(forms, pad_value)
    for name in forms:
        if name not in found:
            raise KeyError(f"no field {name!r}; there are {list(found)}")
        field = found[name]
        if not isinstance(field, RaggedField):
            raise ValueError(f"field {name!r}: all rows are {field.kind} {field.shape}; there is no form to choose")
        form = forms[name][0] if isinstance(forms[name], tuple) else forms[name]
        try:
            found[name] = replace(field, form=form, pad_value=pads.get(name, 0))
        except (TypeError, ValueError) as error:
            raise type(error)(f"field {name!r}: {error}") from None
    return found


def _pads_of(forms: Mapping[str, Any], pad_value: Any) -> dict[str, Any]:
    """Return the stated pad value of each field that becomes padded, by name."""
    padded = [name for name in forms if forms[name] == "padded"]
    pads = {name: form[1] for name, form in forms.items() if isinstance(form, tuple) and len(form) == 2}
    if odd := [
        form for name, form in forms.items() if isinstance(form, tuple) and (name not in pads or form[0] != "padded")
    ]:
        raise TypeError(f'the form of batches is one of {FORMS}, or ("padded", value); got {odd[0]!r}')
    if pad_value is None:
        return pads
    stated = dict(pad_value) if hasattr(pad_value, "keys") else dict.fromkeys(padded, pad_value)
    if not stated or (unpadded := [name for name in stated if name not in padded]):
        what = f"; {unpadded[0]!r} is not among those that become so here" if stated else ""
        raise ValueError(f'pad_value= is for fields whose form is "padded"{what}')
    return {**pads, **stated}


class HasRaggedFields(HasFields):
    """A dataset some of whose fields may have rows that differ in length."""

    if TYPE_CHECKING:

        def _field(self, name: str) -> Field: ...

    def with_ragged(self: _D, form: Any = None, /, *, pad_value: Any = None, **forms: Any) -> _D:
        """Return this dataset with another form of batches for the fields whose rows differ in length.

        Args:
            form: the form of all such fields. "offsets" (the default) gives a `memload.Ragged` of values and offsets;
                "padded" gives a `memload.Padded`; ("padded", -100) pads with that number instead of 0; "jagged" gives
                tensors of torch.nested.
            pad_value: the number that pads rows, for all padded fields, or a dict of numbers by field.
            forms: forms for single fields, by name.

        Raises:
            KeyError: there is no field of such a name.
            TypeError: a form is none of these, or a pad value is not a number.
            ValueError: all rows of a field have the same length, its batches cannot have that form, or its dtype cannot
                hold the pad value.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(tokens=memload.ragged([torch.arange(3), torch.arange(1)]))
            >>> next(iter(memload.FastLoader(ds.with_ragged("padded"), batch_size=2)))["tokens"].values
            tensor([[0, 1, 2],
                    [0, 0, 0]])
        """
        if (form is None) == (not forms):
            raise ValueError('with_ragged takes one form, or forms by field: with_ragged(tokens="padded")')
        return replace(self, fields=with_forms([*self.fields.items()], forms if form is None else form, pad_value))

    def lengths(self, name: str) -> torch.Tensor:
        """Return the length of each row of a field whose rows differ in length, int64 (rows,), without reading any row.

        It is the number of items along the axis in which rows differ, of a text its bytes in UTF-8: the costs for
        `memload.BudgetBatchSampler`, which fills batches by them.

        Raises:
            KeyError, TypeError: there is no such field, or the name is not a str.
            ValueError: all rows of the field have the same shape.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(tokens=memload.ragged([torch.zeros(n) for n in (3, 1, 2)]))
            >>> ds.lengths("tokens")
            tensor([3, 1, 2])
        """
        field = self._field(name)
        if not isinstance(field, RaggedField):
            raise ValueError(
                f"all rows of the field {name!r} have the shape {field.shape}: they do not differ in length"
            )
        return field.lengths()
