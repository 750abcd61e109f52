"""What the rows of a set have in common while it is written: names, dtypes, shapes and codecs, fixed by the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memload.columns.fields import check_equal_lengths, describe
from memload.formats.codecs.by_field import Codecs, check_same, coded_specs, parse_codecs, words_of
from memload.formats.shards.index import AnySpec, FieldSpec
from memload.formats.shards.ragged_input import AnyRows, RaggedRows, encoded_row, encoded_rows
from memload.formats.shards.ragged_spec import RaggedSpec


class RowFields:
    """The fields of a set that is being written.

    Args:
        ragged: names of the fields whose rows may differ in length, or by name the axis along which they do.
        codec: how to compress them, as for `memload.ShardWriter`.

    Attributes:
        specs: what the index says of them; empty until they are known.
    """

    def __init__(self, ragged: Iterable[str] | Mapping[str, int], codec: Codecs) -> None:
        self.specs: dict[str, AnySpec] = {}
        self._axes = dict(ragged) if isinstance(ragged, Mapping) else dict.fromkeys(_names(ragged), 0)
        self._codecs = parse_codecs(codec)

    @property
    def codec_words(self) -> str:
        """How they are compressed, in words; equal words mean the same."""
        return words_of(self._codecs)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, without those of fields whose rows differ in length."""
        return sum(field.row_bytes for field in self.specs.values())

    @property
    def plain_row_bytes(self) -> int:
        """The same of the fields that are not compressed: nobody knows beforehand what the others will need."""
        return sum(field.row_bytes for field in self.specs.values() if field.codec is None)

    def compress(self, codec: Codecs) -> None:
        """Compress as `codec` says, instead of what was said before; while the fields are not known."""
        if self.specs:
            raise ValueError("the fields of this set have their codecs; they are chosen before the first row")
        self._codecs = parse_codecs(codec)

    def take_over(self, specs: Mapping[str, AnySpec]) -> None:
        """Have the fields of the set that is extended; ValueError if other codecs are asked for."""
        check_same(specs, self._codecs)
        self.specs = dict(specs)

    def differing(self, axes: Mapping[str, int]) -> dict[str, AnySpec]:
        """Return the fields as they are if rows of these may differ in length along these axes."""
        specs = dict(self.specs)
        for name, axis in axes.items():
            shape = (*specs[name].shape[:axis], None, *specs[name].shape[axis + 1 :])
            specs[name] = RaggedSpec.of_rows(specs[name].dtype, shape)
        return coded_specs(specs, self._codecs)

    def encoded_row(self, row: Mapping[str, Any]) -> dict[str, AnyRows]:
        """Return one row as bytes, as a batch of one."""
        return {name: encoded_row(name, value, self._axis(name)) for name, value in row.items()}

    def encoded_rows(self, batch: Mapping[str, Any]) -> dict[str, AnyRows]:
        """Return rows, each field's in one value, as bytes; ValueError if the fields differ in length."""
        rows = {name: encoded_rows(name, value, self._axis(name)) for name, value in batch.items()}
        check_equal_lengths({name: len(value) for name, value in rows.items()}, "the fields of a batch")
        return rows

    def check(self, rows: Mapping[str, AnyRows], number: int) -> None:
        """Raise ValueError if these rows, the first of which is `number`, do not fit; the first rows fix what does."""
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
        """Along which axis rows of a field differ in length; None: along none."""
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
