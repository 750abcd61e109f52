"""The names, dtypes, shapes and codecs of the fields of a set while it is written; the first row determines them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from memload.columns.fields import check_equal_lengths, describe
from memload.dtypes import is_pythons
from memload.formats.codecs.by_field import Codecs, check_same, coded_specs, parse_codecs, words_of
from memload.formats.shards.index import AnySpec, FieldSpec
from memload.formats.shards.ragged_input import AnyRows, RaggedRows, encoded_row, encoded_rows
from memload.formats.shards.ragged_spec import RaggedSpec


class RowFields:
    """The fields of a set that is being written.

    Args:
        ragged: the names of the ragged fields, or a dict from names to the axis along which rows differ.
        codec: the codecs, as for `memload.ShardWriter`.

    Attributes:
        specs: the fields in the index; empty until they are known.
    """

    def __init__(self, ragged: Iterable[str] | Mapping[str, int], codec: Codecs) -> None:
        self.specs: dict[str, AnySpec] = {}
        self._axes = dict(ragged) if isinstance(ragged, Mapping) else dict.fromkeys(_names(ragged), 0)
        self._codecs = parse_codecs(codec)
        self._given: dict[str, torch.dtype] = {}  # dtypes of the first rows, before they were converted
        self._pythons: set[str] = set()  # fields whose first row, numbers of Python's, decided the dtype

    @property
    def codec_words(self) -> str:
        """The codecs as one text; equal texts mean equal codecs."""
        return words_of(self._codecs)

    @property
    def row_bytes(self) -> int:
        """The bytes of one row, without those of ragged fields."""
        return sum(field.row_bytes for field in self.specs.values())

    @property
    def plain_row_bytes(self) -> int:
        """The bytes of one row in fields without a codec; the size of the others is not known beforehand."""
        return sum(field.row_bytes for field in self.specs.values() if field.codec is None)

    def compress(self, codec: Codecs) -> None:
        """Replace the codecs; only possible before the fields are known."""
        if self.specs:
            raise ValueError("the fields of this set have their codecs; they are chosen before the first row")
        self._codecs = parse_codecs(codec)

    def take_over(self, specs: Mapping[str, AnySpec]) -> None:
        """Adopt the fields of the set that is extended. Raises ValueError if `codec=` differs from its codecs."""
        check_same(specs, self._codecs)
        self.specs = dict(specs)

    def differing(self, axes: Mapping[str, int]) -> dict[str, AnySpec]:
        """Return the fields with those in `axes` ragged along these axes."""
        specs = dict(self.specs)
        for name, axis in axes.items():
            shape = (*specs[name].shape[:axis], None, *specs[name].shape[axis + 1 :])
            specs[name] = RaggedSpec.of_rows(specs[name].dtype, shape)
        return coded_specs(specs, self._codecs)

    def encoded_row(
        self,
        row: Mapping[str, Any],
        stated: Mapping[str, torch.dtype] | None = None,
        converted: Callable[[str], bool] | None = None,
    ) -> dict[str, AnyRows]:
        """Return one row as bytes, as a batch of one row; see `memload.ShardWriter.encoded`."""
        dtypes = stated or {}
        return {
            name: self._encoded(encoded_row, name, value, not (converted and converted(name)), dtypes.get(name))
            for name, value in row.items()
        }

    def encoded_rows(self, batch: Mapping[str, Any]) -> dict[str, AnyRows]:
        """Return a batch of rows, one value for each field, as bytes. Raises ValueError if the lengths differ."""
        rows = {name: self._encoded(encoded_rows, name, value, True) for name, value in batch.items()}
        check_equal_lengths({name: len(value) for name, value in rows.items()}, "the fields of a batch")
        return rows

    def _encoded(
        self,
        encode: Callable[..., AnyRows],
        name: str,
        value: Any,
        as_stored: bool,
        stated: torch.dtype | None = None,
    ) -> AnyRows:
        empty = isinstance(value, list | tuple) and not value
        stored = self.specs[name].dtype if name in self.specs else None
        like = stored if as_stored else None
        like = like or self._given.get(name, stated) or (stored if empty else None)
        made = encode(name, value, self._axis(name), like, name in self._pythons)
        if name not in self._given and not empty:
            self._given[name] = made.dtype
            if like is None and is_pythons(value):
                self._pythons.add(name)
        return made

    def check(self, rows: Mapping[str, AnyRows], number: int) -> None:
        """Raise ValueError if these rows, the first of which is `number`, do not fit; the first rows set the fields."""
        if not rows:
            raise ValueError("a row needs at least one field")
        if not self.specs:
            self.specs = coded_specs({name: _spec_of(value) for name, value in rows.items()}, self._codecs)
        if set(rows) != set(self.specs):
            raise ValueError(f"row {number} has the fields {sorted(rows)}, expected {sorted(self.specs)}")
        for name, field in self.specs.items():
            value = rows[name]
            if value.signature != field.signature:
                differ = value.shape[1:] == field.shape[1:] and value.shape != field.shape
                hint = f"; if rows may differ in length, say so by ragged=[{name!r}]" if differ else ""
                raise ValueError(
                    f"row {number}: field {name!r} is {_described(value)}, expected {_described(field)}{hint}"
                )

    def _axis(self, name: str) -> int | None:
        """Return the axis along which rows of a field differ in length; None if it has one shape."""
        field = self.specs.get(name)
        return field.axis if isinstance(field, RaggedSpec) else self._axes.get(name)


def _names(ragged: Iterable[str]) -> list[str]:
    if isinstance(ragged, str):
        raise TypeError(f"ragged= takes names of fields, as ragged=[{ragged!r}]")
    return list(ragged)


def _described(rows: AnyRows | AnySpec) -> str:
    return "text" if getattr(rows, "text", False) else describe(rows.dtype, rows.shape)


def _spec_of(rows: AnyRows) -> AnySpec:
    return rows.spec if isinstance(rows, RaggedRows) else FieldSpec.of_rows(rows.dtype, rows.shape)
