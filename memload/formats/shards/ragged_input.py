"""Convert ragged rows of any form to bytes and lengths, for a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.fields import Field
from memload.columns.ragged_fields import RaggedField
from memload.columns.ragged_forms import Ragged, RaggedArray
from memload.formats.ragged_arrays import encode, field_of, is_texts, rows_joined
from memload.formats.shards.ragged_spec import RaggedSpec
from memload.formats.shards.rows import Rows, as_row, as_rows

_MOST_ROWS = 2**20  # in a block


@dataclass(frozen=True)
class RaggedRows:
    """Some rows of one ragged field.

    Attributes:
        dtype: the dtype of the elements.
        shape: the shape of a row, with None where rows differ.
        planes: the items as bytes; one array for each run of items that a row has, with the runs of all rows.
        lengths: int64 (rows,), the number of items of each row.
        text: whether the rows are texts in UTF-8.
    """

    dtype: torch.dtype
    shape: tuple[Any, ...]
    planes: tuple[NDArray[np.uint8], ...]
    lengths: NDArray[np.int64]
    text: bool = False

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """The bytes of the items."""
        return sum(plane.nbytes for plane in self.planes)

    @property
    def spec(self) -> RaggedSpec:
        """The entry of a field with such rows in an index."""
        return RaggedSpec.of_rows(self.dtype, self.shape, self.text)

    @property
    def signature(self) -> tuple[Any, ...]:
        """The properties that all rows of the field share, for comparison."""
        return self.dtype, self.shape, self.text

    def cut(self, start: int, stop: int) -> RaggedRows:
        """Return some of the rows as views."""
        item = self.spec.item_bytes
        first, last = (int(self.lengths[:at].sum()) * item for at in (start, stop))
        planes = tuple(plane[first:last] for plane in self.planes)
        return replace(self, planes=planes, lengths=self.lengths[start:stop])


AnyRows = Rows | RaggedRows


def differing_rows(rows: Rows, axis: int) -> RaggedRows:
    """Return rows of one shape as ragged rows along an axis."""
    shape = (*rows.shape[:axis], None, *rows.shape[axis + 1 :])
    count = rows.shape[0] if axis else 1
    runs = rows.data.reshape(len(rows), count, rows.data.shape[1] // max(1, count))
    planes = tuple(np.ascontiguousarray(runs[:, plane]).reshape(-1) for plane in range(count))
    return RaggedRows(rows.dtype, shape, planes, np.full(len(rows), rows.shape[axis], dtype=np.int64))


def joined_rows(parts: Sequence[RaggedRows]) -> RaggedRows:
    """Return the rows of all parts, at least one, as one object."""
    planes = tuple(np.concatenate(planes) for planes in zip(*(part.planes for part in parts), strict=True))
    return replace(parts[0], planes=planes, lengths=np.concatenate([part.lengths for part in parts]))


def encoded_row(
    name: str, value: Any, axis: int | None = None, like: torch.dtype | None = None, widens: bool = False
) -> AnyRows:
    """Return one row as bytes.

    Args:
        name: the name of the field.
        value: a text, a tensor, an array or a number.
        axis: the axis along which rows of the field may differ in length; None for fields of one shape.
        like: the dtype of the rows before, which Python's numbers take.
        widens: whether other floats take it, too, if it has them all.

    Raises:
        TypeError, ValueError: the row cannot be stored; the message names the field.
    """
    if isinstance(value, str):
        data = np.frombuffer(encode(name, value), dtype=np.uint8)
        return RaggedRows(torch.uint8, (None,), (data,), np.array([len(data)]), text=True)
    if axis is None:
        return as_row(name, value, like, widens)
    if like is None and isinstance(value, list | tuple) and not value:
        raise ValueError(
            f"field {name!r}: the first row is an empty {type(value).__name__}, which has no dtype; give "
            "numpy.empty(0, dtype) there"
        )
    row = as_row(name, value, like, widens)
    if len(row.shape) <= axis:
        raise ValueError(f"field {name!r}: a row of shape {row.shape} has no axis {axis} along which rows could differ")
    shape = (*row.shape[:axis], None, *row.shape[axis + 1 :])
    data = row.data.reshape(-1)
    count = row.shape[0] if axis else 1
    planes = tuple(data.reshape(count, -1)) if count else ()
    return RaggedRows(row.dtype, shape, planes, np.array([row.shape[axis]], dtype=np.int64))


def encoded_rows(
    name: str, values: Any, axis: int | None = None, like: torch.dtype | None = None, widens: bool = False
) -> AnyRows:
    """Return rows as bytes: an array, a `memload.ragged`, a list of texts, or a list of rows if `axis` is given.

    Python's numbers take the dtype `like` of the rows before, and so do other floats with `widens`, if it has them all.

    Raises:
        TypeError, ValueError: the rows cannot be stored; the message names the field.
    """
    texts = is_texts(values)
    if axis is not None and not isinstance(values, RaggedArray | Ragged) and not texts:
        try:
            values = rows_joined(values, axis, like)
        except (TypeError, ValueError) as error:
            raise type(error)(f"field {name!r}: {error}") from error
    if not texts and not isinstance(values, RaggedArray | Ragged):
        return as_rows(name, values, like, widens)
    field = field_of(name, values)
    return rows_of_field(field, np.arange(field.rows))


def is_ragged_data(data: Any) -> bool:
    """Return whether a value has ragged rows or texts."""
    return isinstance(data, RaggedArray | Ragged) or is_texts(data)


def blocks_of(fields: Mapping[str, Field], nbytes: int, start: int = 0) -> Iterator[dict[str, AnyRows]]:
    """Yield the rows of fields from `start` on in blocks of about `nbytes` bytes; at least one field is ragged."""
    rows = next(iter(fields.values())).rows
    mean = max(1, sum(field.nbytes for field in fields.values()) // max(1, rows))
    step = max(1, min(rows, 2 * nbytes // mean, _MOST_ROWS))
    while start < rows:
        numbers = np.arange(start, min(rows, start + step))
        sizes = np.zeros(len(numbers), dtype=np.int64)
        for field in fields.values():
            sizes += _row_sizes(field, numbers)
        fit = max(1, int(np.searchsorted(np.cumsum(sizes), nbytes, side="right")))
        yield {name: rows_of_field(field, numbers[:fit]) for name, field in fields.items()}
        start += fit


def _row_sizes(field: Field, numbers: NDArray[np.int64]) -> Any:
    if not isinstance(field, RaggedField):
        return field.row_bytes
    return field.column.lengths(numbers) * (field.column.item_bytes * field.column.planes)


def rows_of_field(field: Field, numbers: NDArray[np.int64]) -> AnyRows:
    """Return rows of a field as bytes, in newly allocated memory."""
    if not isinstance(field, RaggedField):
        values = field.gather(numbers)
        return Rows(field.dtype, field.shape, values.reshape(-1).view(torch.uint8).numpy().reshape(len(numbers), -1))
    batch = replace(field, form="offsets", text=False).gather(numbers)
    data = batch.values.reshape(-1).view(torch.uint8).numpy()
    planes = tuple(data.reshape(field.column.planes, -1))
    return RaggedRows(field.dtype, field.shape, planes, batch.lengths.numpy(), field.text)
