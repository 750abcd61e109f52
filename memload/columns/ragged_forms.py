"""The forms of batches of rows that differ in length: values and offsets, padded, or jagged; and text.

values   | row 0: 3 items | row 1: 1 | row 2: 2 |        offsets  | 0 | 3 | 4 | 6 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

Form = Literal["offsets", "padded", "jagged"]
FORMS: tuple[Form, ...] = ("offsets", "padded", "jagged")


class Ragged(NamedTuple):
    """Rows of different length, concatenated.

    Attributes:
        values: the items of all rows, (items, *item); where ``axis`` is not 0, rows are concatenated along that axis,
            as the (2, edges) of graphs are.
        offsets: int64 (rows + 1,). Row i is ``values[offsets[i]:offsets[i + 1]]``.

    Example:
        >>> import memload, torch
        >>> batch = memload.Ragged(torch.arange(4), torch.tensor([0, 3, 4]))
        >>> batch.lengths, batch.rows()
        (tensor([3, 1]), [tensor([0, 1, 2]), tensor([3])])
    """

    values: torch.Tensor
    offsets: torch.Tensor

    @property
    def axis(self) -> int:
        """The axis along which rows are joined."""
        return 0

    @property
    def lengths(self) -> torch.Tensor:
        """The number of items of each row: int64 (rows,)."""
        return self.offsets.diff()

    def rows(self) -> list[torch.Tensor]:
        """Return each row, as a view of the values."""
        return list(torch.split(self.values, self.lengths.tolist(), dim=self.axis))

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Return both tensors where ``torch.Tensor.to`` with these arguments puts the values; offsets stay int64."""
        values = self.values.to(*args, **kwargs)
        return type(self)(values, self.offsets.to(values.device, non_blocking=bool(kwargs.get("non_blocking"))))


class RaggedColumns(Ragged):
    """Rows of different length, concatenated along their second axis."""

    __slots__ = ()

    @property
    def axis(self) -> int:
        """The axis along which rows are joined."""
        return 1


class Padded(NamedTuple):
    """Rows of different length, each followed by zeros, or its field's `pad_value`, up to the length of the longest.

    Attributes:
        values: (rows, longest, *item).
        lengths: int64 (rows,), the items of each row.

    Example:
        >>> import memload, torch
        >>> batch = memload.Padded(torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1]))
        >>> batch.mask
        tensor([[ True,  True],
                [ True, False]])
    """

    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """A bool tensor (rows, longest) that is True for items and False for padding."""
        places = torch.arange(self.values.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]

    def rows(self) -> list[torch.Tensor]:
        """Return each row without its padding, as a view of the values."""
        return [row[:n] for row, n in zip(self.values, self.lengths.tolist(), strict=True)]

    def to(self, *args: Any, **kwargs: Any) -> Padded:
        """Return both tensors where ``torch.Tensor.to`` with these arguments puts the values; lengths stay int64."""
        values = self.values.to(*args, **kwargs)
        return Padded(values, self.lengths.to(values.device, non_blocking=bool(kwargs.get("non_blocking"))))


class RaggedArray(NamedTuple):
    """The result of `memload.ragged`: checked values and offsets of a field, and the axis that joins rows."""

    values: Any
    offsets: Any
    axis: int


def ragged_type(axis: int) -> type[Ragged]:
    """Return the type of batches whose rows are joined along this axis."""
    return RaggedColumns if axis else Ragged


def batch_of(values: torch.Tensor, numbers: torch.Tensor, form: Form, axis: int = 0) -> Any:
    """Return the batch of some rows.

    Args:
        values: the items of all rows, joined along `axis`; for "padded" in blocks of the longest row, (rows, longest,
            *item).
        numbers: offsets (rows + 1,), or for "padded" lengths (rows,).
        form: the form of the batch.
        axis: the axis along which rows are joined.
    """
    if form == "padded":
        return Padded(values, numbers)
    if form == "jagged":
        return torch.nested.nested_tensor_from_jagged(values, offsets=numbers)
    return ragged_type(axis)(values, numbers)


def as_ragged(rows: torch.Tensor, axis: int) -> Ragged:
    """Return rows of one shape, (rows, *shape), in the form of rows that may differ in length along an axis."""
    offsets = torch.arange(len(rows) + 1, device="cpu") * rows.shape[1 + axis]
    return ragged_type(axis)(rows.movedim(0, axis).flatten(axis, axis + 1).contiguous(), offsets)


def joined(rows: Sequence[torch.Tensor], form: Form, axis: int = 0, pad_value: Any = 0) -> Any:
    """Return the batch of at least one sample; `pad_value` fills padded rows."""
    lengths = torch.tensor([row.shape[axis] for row in rows], dtype=torch.int64, device="cpu")
    if form == "padded":
        return Padded(_padded(rows, int(lengths.max()), pad_value), lengths)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return batch_of(torch.cat(list(rows), dim=axis), offsets, form, axis)


def _padded(rows: Sequence[torch.Tensor], longest: int, pad_value: Any) -> torch.Tensor:
    if pad_value == 0:
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    values = rows[0].new_full((len(rows), longest, *rows[0].shape[1:]), pad_value)
    for row, place in zip(rows, values, strict=True):
        place[: len(row)] = row
    return values


def pad_value_of(values: Padded) -> Any:
    """Return the padding value of a batch, read from a row that is not its longest; 0 if all rows are equally long.

    It is for batches whose field is unknown: on a GPU it waits for the batch.
    """
    if not values.values.numel() or not bool((values.lengths < values.values.shape[1]).any()):
        return 0
    return _row_ends(values)[int(values.lengths.argmin())].item()


def _row_ends(values: Padded) -> torch.Tensor:
    """Return the last element of each row of a batch that has elements: the padding value, if the row is short."""
    return values.values[:, -1].reshape(len(values.lengths), -1)[:, 0]


def is_ragged(values: Any) -> bool:
    """Return whether a field of a batch holds rows that differ in length, in one of the forms or as a list of texts."""
    if isinstance(values, Ragged | Padded):
        return True
    if isinstance(values, torch.Tensor):
        return values.layout == torch.jagged
    return isinstance(values, list) and bool(values) and isinstance(values[0], str)


def rows_of(values: Any) -> Sequence[Any]:
    """Return the rows of a field of a batch for which `is_ragged` holds, as views where they are tensors."""
    if isinstance(values, Ragged | Padded):
        return values.rows()
    return values if isinstance(values, list) else Ragged(values.values(), values.offsets()).rows()


def row_count(values: Any) -> int:
    """Return how many rows there are in a field of a batch: in `Ragged`, a tensor, an array or a list."""
    return len(values.offsets) - 1 if isinstance(values, Ragged) else len(values)


def first_row(values: Any) -> Any:
    """Return the first row of `rows_of`, without making the others."""
    if isinstance(values, Ragged):
        return values.values.narrow(values.axis, 0, int(values.offsets[1]))
    if isinstance(values, Padded):
        return values.values[0, : int(values.lengths[0])]
    return values[0] if isinstance(values, list) else values.values()[: int(values.offsets()[1])]


def with_values(values: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a field of a batch, for which `is_ragged` holds, with `fn` applied to its items; the padding value stays.

    Raises:
        TypeError: the rows are texts.
    """
    if isinstance(values, list):
        raise TypeError("rows that are texts have no items that could be made anew")
    if isinstance(values, Ragged):
        return type(values)(fn(values.values), values.offsets)
    if isinstance(values, Padded):
        made = fn(values.values)
        if not values.values.numel():
            return Padded(made, values.lengths)
        keep = values.mask.view(*values.mask.shape, *(1,) * (made.ndim - 2))
        shortest = values.lengths.argmin().view(1)  # on its device, without a synchronisation
        pad = _row_ends(values).to(made.dtype).index_select(0, shortest)[0]
        return Padded(torch.where(keep, made, pad), values.lengths)
    return torch.nested.nested_tensor_from_jagged(fn(values.values()), offsets=values.offsets())


def taken(values: Any, rows: torch.Tensor, pad_value: Any) -> Any:
    """Return these rows of a field of a batch for which `is_ragged` holds, in the same form; a copy.

    `pad_value` fills padded rows.
    """
    each = rows_of(values)
    chosen = [each[row] for row in rows.tolist()]
    if isinstance(values, list):
        return chosen
    if isinstance(values, Padded):
        return joined(chosen, "padded", pad_value=pad_value)
    return joined(chosen, "offsets", values.axis) if isinstance(values, Ragged) else joined(chosen, "jagged")


def split_by(values: Any, counts: Sequence[int]) -> Iterator[Any]:
    """Yield runs of `counts` rows of a field of a batch for which `is_ragged` holds, as views."""
    at = 0
    for count in counts:
        yield _run(values, at, at + count)
        at += count


def _run(values: Any, start: int, stop: int) -> Any:
    if isinstance(values, list):
        return values[start:stop]
    if isinstance(values, Padded):
        lengths = values.lengths[start:stop]
        return Padded(values.values[start:stop, : int(lengths.max())].data, lengths.data)
    parts = values if isinstance(values, Ragged) else Ragged(values.values(), values.offsets())
    first, last = int(parts.offsets[start]), int(parts.offsets[stop])
    within = parts.values.narrow(parts.axis, first, last - first).data
    offsets = parts.offsets[start : stop + 1] - first
    return batch_of(within, offsets, "offsets" if isinstance(values, Ragged) else "jagged", parts.axis)
