"""Read the rows of a dataset with ragged fields in blocks, for a writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.fields import HasFields
from memload.columns.ragged_fields import RaggedField
from memload.formats.codecs.codec import Codec
from memload.formats.shards.ragged_input import AnyRows, RaggedRows, blocks_of, rows_of_field
from memload.formats.shards.rows import Rows
from memload.writing.conversion import Conversion, Form
from memload.writing.row_sources import gather_rows
from memload.writing.same_source import identity_of
from memload.writing.transposing import Transposer, segments_of


class RaggedRowSource:
    """The rows of a dataset with at least one ragged field."""

    def __init__(self, dataset: HasFields, rows: Any) -> None:
        self._dataset = dataset if rows is None else dataset.select(rows)
        self.rows = len(self._dataset)
        self.nbytes = self._dataset.nbytes
        self.transposed_bytes = sum(field.nbytes for field in self._dataset.fields.values() if field.blocks is not None)
        self.forms: dict[str, Form] = {name: (field.dtype, field.shape) for name, field in self._dataset.fields.items()}

    def identity(self) -> str | None:
        """Return a text that identifies these rows, also in another process; None if there is none."""
        return identity_of(self._dataset)

    def bytes_before(self, row: int) -> int:
        """Return the bytes of the rows before this one."""
        return self._dataset.select(range(row)).nbytes if row else 0

    def sample(self, conversions: Mapping[str, Conversion], numbers: NDArray[np.int64]) -> dict[str, Rows]:
        """Return some converted rows; of a ragged field their items, grouped as a codec groups them."""
        found: dict[str, Rows] = {}
        for name, field in self._dataset.fields.items():
            conversion = conversions.get(name, Conversion())
            if isinstance(field, RaggedField):
                rows = rows_of_field(field, numbers)
                found[name] = _item_blocks(converted(rows, conversion) if name in conversions else rows)
            else:
                found[name] = conversion.apply(gather_rows(field, numbers))
        return found

    @property
    def ragged(self) -> frozenset[str]:
        """The names of the ragged fields."""
        return frozenset(name for name, field in self._dataset.fields.items() if isinstance(field, RaggedField))

    def blocks(
        self, conversions: Mapping[str, Conversion], start: int, nbytes: int, transposer: Transposer
    ) -> Iterator[tuple[dict[str, AnyRows], int]]:
        """Yield the converted rows from `start` on, about `nbytes` bytes at once, and the bytes read for them."""
        fields = dict(self._dataset.fields)
        across = {name: field for name, field in fields.items() if field.blocks is not None}
        every = {name: conversions.get(name, Conversion()) for name in across}
        rest = {name: conversion for name, conversion in conversions.items() if name not in across}
        for segment in segments_of(fields):
            if segment.stop <= start:
                continue
            if across:  # otherwise there is one segment with all rows
                numbers = np.arange(segment.start, segment.stop)
                made = transposer.rows(across, every, segment)
                here = {name: made[name] if name in made else field.select(numbers) for name, field in fields.items()}
            for block in blocks_of(here if across else fields, nbytes, max(0, start - segment.start)):
                read = sum(rows.nbytes for rows in block.values())
                yield block | {name: converted(block[name], conversion) for name, conversion in rest.items()}, read


def _item_blocks(rows: AnyRows) -> Rows:
    """Return the items of rows in groups, each of as many items as a codec compresses at once by default."""
    assert isinstance(rows, RaggedRows)
    item = rows.spec
    items = rows.planes[0].nbytes // max(1, item.item_bytes) if rows.planes else 0
    group = max(1, min(items, Codec("zstd").of(rows.dtype, item.item_shape).rows or 1))
    data = np.concatenate([plane[: items // group * group * item.item_bytes] for plane in rows.planes])
    return Rows(rows.dtype, (group, *item.item_shape), data.reshape(-1, group * item.item_bytes))


def converted(rows: AnyRows, conversion: Conversion) -> AnyRows:
    """Return converted rows; in ragged rows each item is scaled or cast.

    Raises:
        TypeError: the rows are texts.
    """
    if not isinstance(rows, RaggedRows):
        return conversion.apply(rows)
    if rows.text:
        raise TypeError("texts can be neither scaled nor cast; leave their field out")
    item, bare = rows.spec, replace(conversion, mask=None)
    planes = [
        bare.apply(Rows(rows.dtype, item.item_shape, plane.reshape(-1, item.item_bytes))) for plane in rows.planes
    ]
    data = tuple(np.ascontiguousarray(plane.data).reshape(-1) for plane in planes)
    return replace(rows, dtype=planes[0].dtype, planes=data)
