"""One field of a dataset: the type and shape of its rows, and where they lie."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from memload._core import Column, Ragged, Tiles, Windows
from memload.dtypes import dtype_name
from memload.rows.blocks import Blocks, join_blocks, select_blocks
from memload.rows.stored import Stored, stored_as

RESERVED_NAME = "__metadata__"  # of the safetensors format
MOST_ROWS = 2**53
MOST_BYTES = 2**63


AnyColumn = Column | Tiles | Windows | Ragged
"""Rows as they lie: each one run of bytes, inside chunks that are decoded, a window of frames, or a run of items."""


@dataclass(frozen=True, eq=False)
class Lender:
    """A tensor whose memory a field reads in place, and the address that it had when the field was made.

    Torch can move a tensor's memory, and frees it at the old address whoever else still reads there. Where the tensor
    maps a file, it is the file that is read, and no address counts.
    """

    name: str
    tensor: torch.Tensor
    address: int | None

    watched = True
    """Whether a pass looks for changes of the tensor's values."""

    def check(self) -> None:
        """Raise RuntimeError if the tensor's memory has been moved."""
        if self.address is not None and self.tensor.data_ptr() != self.address:
            raise RuntimeError(
                f"field {self.name!r}: the tensor's memory was moved after the dataset was made, by share_memory_(), "
                "set_() or sending the tensor to another process; do that first, then make the dataset"
            )


@dataclass(frozen=True)
class Field:
    """One field of a dataset: the dtype and shape that it has in a row, and the column that finds each row's bytes.

    Made by `memload.open`, `memload.from_arrays` and the like; `ds.fields` has them by name. Beside the attributes
    below, ``rows``, ``row_bytes`` and ``nbytes`` give its size, and ``gather(rows)`` reads some of its rows.

    Attributes:
        dtype: of the elements, as stored.
        shape: of one row; a side is None where rows differ in length.
        column: native arithmetic from a row's number to its bytes.

    Example:
        >>> import memload, torch
        >>> memload.from_arrays(stim=torch.zeros(10, 3, 8, 8)).fields["stim"].row_bytes
        768
    """

    dtype: torch.dtype
    shape: tuple[Any, ...]
    column: AnyColumn = field(repr=False)
    lenders: tuple[Lender, ...] = field(default=(), compare=False, repr=False)
    digest: str = field(default="", compare=False, repr=False)
    """A digest that tells the files from others of the same form without reading their rows; "" if there is none."""
    blocks: Blocks | None = field(default=None, compare=False, repr=False)
    """Reads all rows chunk by chunk, which is faster than row by row where chunks hold one element of many rows."""

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
    def nbytes(self) -> int:
        """Bytes of all rows, as they would be gathered."""
        return self.rows * self.row_bytes

    @property
    def stored(self) -> Stored:
        """How the rows are stored, in words, and what reading one costs."""
        return stored_as(self.column)

    @property
    def kind(self) -> str:
        """What rows are made of, for messages: the dtype's name."""
        return dtype_name(self.dtype)

    @property
    def described(self) -> str:
        """What rows are, for messages: "uint8 (425, 425, 3)"."""
        return f"{self.kind} {self.shape}"

    @property
    def signature(self) -> tuple[Any, ...]:
        """What fields have in common whose rows may stand in one batch."""
        return self.dtype, self.shape

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of what the pipeline counts: of one row."""
        return self.shape

    @property
    def pipeline_column(self) -> Any:
        """The column that the pipeline reads."""
        return self.column

    def pipeline_column_as(self, dtype: torch.dtype) -> Any:  # noqa: ARG002 - what pads rows depends on it
        """Return the column that the pipeline reads to make batches of that dtype."""
        return self.pipeline_column

    @property
    def built(self) -> torch.dtype | None:
        """The dtype of what a device builds of what crossed to it; None: nothing, a batch crosses as it is."""
        return None

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return a fresh tensor (len(rows), *shape) with a copy of these rows.

        Args:
            rows: int64, each in [0, self.rows), in any order.

        Raises:
            IndexError: a row is out of range.
            ShardReadError: a file cannot be read any more.
            RuntimeError: a tensor's memory was moved away.
        """
        self.check_in_place()
        batch = torch.empty((len(rows), *self.shape), dtype=self.dtype, device="cpu")
        if batch.nbytes:
            self.column.gather(rows, batch.data_ptr(), batch.nbytes)
        return batch

    def sample(self, row: NDArray[np.int64]) -> Any:
        """Return a fresh copy of one row, whose number is the only one in `row`; otherwise as `gather`."""
        return self.gather(row)[0]

    def assembled(self, values: torch.Tensor, more: Iterator[torch.Tensor]) -> Any:  # noqa: ARG002 - for other kinds
        """Return what a batch has of this field.

        Args:
            values: what the pipeline made of it.
            more: gives its further outputs, if a field of this kind has any.
        """
        return values

    def recipe(self) -> dict[str, Any]:
        """Return what makes this field of another column: `type(field)(column=column, **field.recipe())`."""
        return {"dtype": self.dtype, "shape": self.shape}

    def check_in_place(self) -> None:
        """Raise RuntimeError if the memory of a tensor was moved since the field was made; to be called before reading.

        It costs nothing for fields that borrow no tensor, and a tenth of a microsecond for each tensor.
        """
        for lender in self.lenders:
            lender.check()

    def select(self, rows: NDArray[np.int64]) -> Field:
        """Return the field of these rows, in this order. Raises IndexError at the first that is not there."""
        return replace(self, column=self.column.select(rows), blocks=select_blocks(self.blocks, rows))

    @staticmethod
    def concat(fields: Sequence[Field]) -> Field:
        """Return the rows of the first field, then of the second, and so on; dtypes and shapes are equal."""
        lenders = dict.fromkeys(lender for one in fields for lender in one.lenders)
        column = _concat([one.column for one in fields])
        digest, blocks = digest_of(one.digest for one in fields), join_blocks([one.blocks for one in fields])
        return replace(fields[0], column=column, lenders=tuple(lenders), digest=digest, blocks=blocks)


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
    """Return a short text that differs if one of these does; "" if all are empty."""
    joined = "\n".join(texts)
    return xxhash.xxh3_64_hexdigest(joined.encode()) if joined.strip() else ""


def row_nbytes(dtype: torch.dtype, shape: Iterable[int]) -> int:
    """Return the bytes of one row."""
    return dtype.itemsize * math.prod(shape)


def check_size(dtype: torch.dtype, shape: Iterable[int], rows: int = 1) -> None:
    """Raise ValueError unless 64 bits can count `rows` rows and their bytes, an empty side taken for one.

    Whatever holds a shape from outside is checked here, before anything multiplies it.
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


def check_same_fields(first: Mapping[str, Field], other: Mapping[str, Field], position: int) -> None:
    """Raise ValueError with the first difference unless dataset `position` has fields like those of the first."""
    if set(first) != set(other):
        raise ValueError(f"dataset {position} has the fields {sorted(other)}, the first one has {sorted(first)}")
    for name, own in first.items():
        if own.signature != other[name].signature:
            raise ValueError(
                f"field {name!r} is {other[name].described} in dataset {position}, but {own.described} in the first one"
            )
