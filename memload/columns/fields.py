"""One field of a dataset: the type and shape of its rows, and the column that reads them."""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload._core import Column, EventCounts, EventItems, Ragged, Slices, Tiles, Windows
from memload.columns.blocks import Blocks, join_blocks, select_blocks
from memload.columns.numbers import kind
from memload.columns.storage_terms import StorageTerms, stored_as
from memload.dtypes import dtype_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Base = DataclassInstance
else:
    Base = object

_H = TypeVar("_H", bound="HasFields")

RESERVED_NAME = "__metadata__"  # of the safetensors format
UNNAMED = "data"
"""The name of the field of a file that holds one array without a name, whatever the file is called."""

TAG = "dataset_idx"
"""The name of the field that numbers the joined dataset of each row."""

MOST_ROWS = 2**53
MOST_BYTES = 2**63


AnyColumn = Column | Tiles | Windows | Ragged | Slices | EventCounts | EventItems
"""Rows: each is one run of bytes, a part of decoded chunks, a window of frames, a run of items, or a slice of time."""


@dataclass(frozen=True, eq=False)
class MemoryOwner:
    """A tensor whose memory a field reads in place, and the tensor's address when the field was made.

    Torch can move a tensor's memory, and then frees the old address even if others still read there. Where the tensor
    maps a file, the field reads the file, and the address does not matter.
    """

    name: str
    tensor: torch.Tensor
    address: int | None

    guarded = True
    """Whether a pass checks for changes of the tensor's values."""

    def check(self) -> None:
        """Raise RuntimeError if the tensor's memory has been moved."""
        if self.address is not None and self.tensor.data_ptr() != self.address:
            raise RuntimeError(
                f"field {self.name!r}: the tensor's memory was moved after the dataset was made, by resize_(), "
                "share_memory_(), set_() or sending the tensor to another process; do that first, then make the dataset"
            )


@dataclass(frozen=True)
class Field:
    """One field of a dataset: the dtype and shape that it has in a row, and the column that finds each row's bytes.

    `memload.open`, `memload.from_arrays` and similar functions make fields; `ds.fields` has them by name. Beside the
    attributes below, ``rows``, ``row_bytes`` and ``nbytes`` give its size, and ``gather(rows)`` reads some of its rows.

    Attributes:
        dtype: the dtype of the elements, as stored.
        shape: the shape of one row; a side is None where rows differ in length.
        column: the native object that finds the bytes of a row by its number.

    Example:
        >>> import memload, torch
        >>> memload.from_arrays(stim=torch.zeros(10, 3, 8, 8)).fields["stim"].row_bytes
        768
    """

    resident: ClassVar[bool] = False
    """Whether a device gathers the rows from its own memory, rather than native threads from files and arrays."""

    built: ClassVar[torch.dtype | None] = None
    """The dtype of batches that a device builds from copied parts; None if batches are copied as they are."""

    dtype: torch.dtype
    shape: tuple[Any, ...]
    column: AnyColumn = field(repr=False)
    owners: tuple[MemoryOwner, ...] = field(default=(), compare=False, repr=False)
    digest: str = field(default="", compare=False, repr=False)
    """A digest that differs between files of the same form, made without reading rows; "" if there is none."""
    blocks: Blocks | None = field(default=None, compare=False, repr=False)
    """A reader of all rows chunk by chunk, faster than row by row where chunks hold one element of many rows."""
    meant: tuple[float, float] | None = field(default=None, kw_only=True, repr=False)
    """The scale and the offset by which, as its file says, stored values become what is meant; None: they are."""

    def __post_init__(self) -> None:
        expected = row_nbytes(self.dtype, self.shape)
        if self.column.row_bytes != expected:
            raise ValueError(
                f"a row of {describe(self.dtype, self.shape)} has {expected} bytes, "
                f"but the column has {self.column.row_bytes}"
            )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.column.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.column.row_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the row numbers that were made for one pass only."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows once gathered."""
        return self.rows * self.row_bytes

    @property
    def stored(self) -> StorageTerms:
        """A description of how the rows are stored, with the cost of reading one."""
        return stored_as(self.column)

    @property
    def kind(self) -> str:
        """The name of the dtype, for messages."""
        return dtype_name(self.dtype)

    @property
    def described(self) -> str:
        """The dtype and shape of rows, for messages: "uint8 (425, 425, 3)"."""
        scale = "" if self.meant is None else " with the scale {:g} and the offset {:g}".format(*self.meant)
        return f"{self.kind} {self.shape}{scale}"

    @property
    def signature(self) -> tuple[Any, ...]:
        """A value that is equal for fields whose rows fit into one batch."""
        return (self.dtype, self.shape) if self.meant is None else (self.dtype, self.shape, self.meant)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one item of the pipeline, which is a row."""
        return self.shape

    @property
    def pipeline_column(self) -> Any:
        """The column that the pipeline reads."""
        return self.column

    def pipeline_column_as(self, dtype: torch.dtype) -> Any:  # noqa: ARG002 - padding depends on it
        """Return the column that the pipeline reads to make batches of that dtype."""
        return self.pipeline_column

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return a fresh tensor (len(rows), *shape) with a copy of these rows.

        Args:
            rows: int64, each in [0, self.rows), in any order.

        Raises:
            IndexError: a row is out of range.
            ShardReadError: a file can no longer be read.
            RuntimeError: a tensor's memory was moved.
        """
        self.check_in_place()
        batch = torch.empty((len(rows), *self.shape), dtype=self.dtype, device="cpu")
        if batch.nbytes:
            self.column.gather(rows, batch.data_ptr(), batch.nbytes)
        return batch

    def sample(self, row: NDArray[np.int64]) -> Any:
        """Return a fresh copy of the one row whose number `row` holds; otherwise like `gather`."""
        return self.gather(row)[0]

    def assembled(self, values: torch.Tensor, more: Iterator[torch.Tensor]) -> Any:  # noqa: ARG002 - for other kinds
        """Return this field's part of a batch.

        Args:
            values: the pipeline's output for this field.
            more: yields further outputs, if a field of this kind has any.
        """
        return values

    def recipe(self) -> dict[str, Any]:
        """Return the arguments for this field of another column: `type(field)(column=column, **field.recipe())`."""
        return {"dtype": self.dtype, "shape": self.shape} | ({} if self.meant is None else {"meant": self.meant})

    def check_in_place(self) -> None:
        """Raise RuntimeError if the memory of a tensor was moved since the field was made; call it before reading.

        The check costs nothing for fields that borrow no tensor, and a tenth of a microsecond for each tensor.
        """
        for owner in self.owners:
            owner.check()

    def select(self, rows: NDArray[np.int64]) -> Field:
        """Return the field of these rows, in this order. Raises IndexError at the first that is not there."""
        return replace(self, column=self.column.select(rows), blocks=select_blocks(self.blocks, rows))

    @staticmethod
    def concat(fields: Sequence[Field]) -> Field:
        """Return the rows of the first field, then of the second, and so on; dtypes and shapes are equal."""
        owners = dict.fromkeys(owner for one in fields for owner in one.owners)
        column = _concat([one.column for one in fields])
        digest, blocks = digest_of(one.digest for one in fields), join_blocks([one.blocks for one in fields])
        return replace(fields[0], column=column, owners=tuple(owners), digest=digest, blocks=blocks)


def _concat(columns: Sequence[AnyColumn]) -> AnyColumn:
    if any(isinstance(column, Tiles) for column in columns):
        columns = [Tiles([column]) if isinstance(column, Column) else column for column in columns]
    kinds = {type(column).__name__ for column in columns}
    if len(kinds) > 1:
        raise ValueError(
            f"rows that are stored in different ways ({', '.join(sorted(kinds))}) cannot be one field: write them as "
            "shards by memload.write first"
        )
    return type(columns[0]).concat(columns)  # type: ignore[arg-type]  # all of one kind


def digest_of(texts: Iterable[str]) -> str:
    """Return a short text that differs if one of `texts` does; "" if all are empty."""
    joined = "\n".join(texts)
    return xxhash.xxh3_64_hexdigest(joined.encode()) if joined.strip() else ""


def row_nbytes(dtype: torch.dtype, shape: Iterable[int]) -> int:
    """Return the bytes of one row."""
    return dtype.itemsize * math.prod(shape)


def check_size(dtype: torch.dtype, shape: Iterable[int], rows: int = 1) -> None:
    """Raise ValueError unless 64 bits can count `rows` rows and their bytes, with an empty side counted as one.

    Shapes that come from outside are checked here before they are multiplied.
    """
    sides = tuple(shape)
    if rows >= MOST_ROWS:
        raise ValueError(f"{rows} rows; there can be fewer than 2^53")
    counted = (max(1, side) for side in (rows, *sides))
    if any(nbytes >= MOST_BYTES for nbytes in itertools.accumulate(counted, operator.mul, initial=dtype.itemsize)):
        raise ValueError(f"{rows} times {dtype_name(dtype)} {sides!r:.80} multiplies to 2^63 bytes or more")


def describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Return dtype and shape for messages: "uint8 (425, 425, 3)"."""
    return f"{dtype_name(dtype)} {shape}"


def check_name(name: object) -> None:
    """Raise ValueError unless `name` can name a field: text, not empty, and not reserved by the file format."""
    if not isinstance(name, str) or not name or name == RESERVED_NAME:
        raise ValueError(f"not a name for a field: {name!r}; expected a text that is neither empty nor {RESERVED_NAME}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not a name for a field: {name!r} cannot be written as UTF-8") from error


def check_equal_lengths(lengths: Mapping[str, int], what: str) -> None:
    """Raise ValueError with all lengths unless they are equal."""
    if len(set(lengths.values())) > 1:
        stated = ", ".join(f"{name}: {length:,}" for name, length in lengths.items())
        raise ValueError(f"{what} must have the same number of rows, got {stated}")


def not_a_dataset(position: int, member: object) -> TypeError:
    """Return the error for joining an object that is no dataset of memload, with advice."""
    remedy = "expected one.concat(two, three), or memload.concat([one, two])"
    if isinstance(member, str | os.PathLike):
        remedy = "memload.open([one, two]) opens several paths as one dataset"
    if isinstance(member, torch.utils.data.Dataset):
        remedy = (
            "expected datasets of memload's, as memload.open and memload.from_arrays make them. Functions and views of "
            "samples come after the join: memload.concat([one, two]).map(fn); torch.utils.data.ConcatDataset joins "
            "datasets of any kind"
        )
    return TypeError(f"dataset {position} is {kind(member)}; {remedy}")


def check_same_fields(first: Mapping[str, Field], other: Mapping[str, Field], position: int) -> None:
    """Raise ValueError with the first difference unless dataset `position` has the same fields as the first."""
    if set(first) != set(other):
        raise ValueError(f"dataset {position} has the fields {sorted(other)}, the first one has {sorted(first)}")
    for name, own in first.items():
        if own.signature != other[name].signature:
            raise ValueError(
                f"field {name!r} is {other[name].described} in dataset {position}, but {own.described} in the first one"
            )


def renamed(fields: Mapping[str, Field], names: Mapping[str, str]) -> dict[str, Field]:
    """Return the fields in their order; `names` maps old names to new ones.

    Raises:
        TypeError: `names` is no mapping.
        KeyError: no field has an old name.
        ValueError: two fields would have one name, or a new name cannot be stored.
    """
    if not isinstance(names, Mapping):
        raise TypeError(f'rename takes a mapping from old names to new ones, such as {{"data": "stim"}}, got {names!r}')
    for old, new in names.items():
        if old not in fields:
            raise KeyError(f"rename: no field {old!r}; there are {list(fields)}")
        check_name(new)
    made: dict[str, Field] = {}
    for old, own in fields.items():
        new = names.get(old, old)
        if new in made:
            raise ValueError(f"rename: two fields would have the name {new!r}; there are {list(fields)}")
        made[new] = own
    return made


class HasFields(Base):
    """Rows of named fields: the part of a dataset's interface that lower packages may use."""

    fields: Mapping[str, Field]

    if TYPE_CHECKING:

        def __len__(self) -> int: ...

        @property
        def nbytes(self) -> int:
            """Return the bytes of all rows of all fields."""

        def select(self: _H, rows: Any) -> _H:
            """Return these rows, in this order."""
