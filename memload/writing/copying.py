"""Copy the rows of any source into a writer: converted, in blocks, beside a bar."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from memload.columns.fields import row_nbytes
from memload.columns.ragged_fields import holds_ragged
from memload.dataset.dataset import Dataset
from memload.formats.hugging_face import is_hugging_face, stated_dtypes
from memload.formats.ragged_arrays import field_of
from memload.formats.shards.ragged_input import is_ragged_data
from memload.progress import Bar, byte_bar
from memload.writing.conversion import Conversion, Conversions
from memload.writing.ragged_row_source import RaggedRowSource, converted
from memload.writing.row_sources import ArrayRows, DatasetRows, RowSource
from memload.writing.transposing import Transposer
from memload.writing.writer import RowWriter

_BLOCK_BYTES = 2**24  # bytes of rows at once, at their largest
_TRANSPOSED_BYTES = 2**26  # bytes of blocks at once, in sources that are not stored row by row


def row_source_of(data: Any, rows: Any) -> RowSource | RaggedRowSource | None:
    """Return rows of a known number; None for an iterable of rows, from which `rows` cannot select."""
    if isinstance(data, Mapping) and any(map(is_ragged_data, data.values())):
        data = Dataset({name: field_of(name, values) for name, values in data.items()})
    if isinstance(data, Dataset):
        return RaggedRowSource(data, rows) if holds_ragged(data.fields) else DatasetRows(data, rows)
    if isinstance(data, Mapping):
        return ArrayRows(data, rows)
    if rows is not None:
        raise TypeError(f"rows= selects from a dataset or from arrays; data is of type {type(data).__name__}")
    return None


def converted_row_bytes(row_source: RowSource, chosen: Mapping[str, Conversion]) -> int:
    """Return the bytes of one converted row."""
    forms = {name: chosen[name].form(*form) if name in chosen else form for name, form in row_source.forms.items()}
    return sum(row_nbytes(*form) for form in forms.values())


def copy_row_source(
    writer: RowWriter,
    row_source: RowSource | RaggedRowSource,
    chosen: Mapping[str, Conversion],
    progress: bool | None,
    shared: Bar | None = None,
) -> None:
    """Write all rows that the writer does not have yet, converted, beside a bar of their own or one that is shared."""
    if isinstance(row_source, RaggedRowSource):
        total = row_source.nbytes + row_source.transposed_bytes
        with byte_bar("write", total, progress, done=row_source.bytes_before(writer.rows_there)) as bar:
            transposer = Transposer(writer.scratch, _TRANSPOSED_BYTES, bar)
            for ragged_block, nbytes in row_source.blocks(chosen, writer.rows_there, _BLOCK_BYTES, transposer):
                writer.extend_rows(ragged_block)
                bar.update(nbytes)
        return
    row_bytes = converted_row_bytes(row_source, chosen)
    largest = sum(chosen.get(name, Conversion()).working_bytes(*form) for name, form in row_source.forms.items())
    step = max(1, min(row_source.rows, _BLOCK_BYTES // max(1, largest)))
    total = row_bytes * row_source.rows + row_source.transposed_bytes
    done = row_bytes * writer.rows_there
    own = byte_bar("write", total, progress, done=done) if shared is None else contextlib.nullcontext(shared)
    if shared is not None:
        shared.update(done)
    with own as bar:
        transposer = Transposer(writer.scratch, _TRANSPOSED_BYTES, bar)
        for block in row_source.blocks(chosen, writer.rows_there, step, transposer):
            writer.extend_rows(block)
            bar.update(sum(rows.data.nbytes for rows in block.values()))


def copy_rows(
    writer: RowWriter,
    data: Any,
    conversions: Conversions,
    progress: bool | None,
    told: Callable[[dict[str, Conversion]], None] = lambda _: None,
) -> None:
    """Write the rows of an iterable, converted. `told` gets the conversions by field before the first row is added."""
    with byte_bar("write", None, progress) as bar:
        rows = rows_of(data)
        stated = rows.stated if isinstance(rows, _StatedRows) else {}
        _write_rows(writer, rows, stated, conversions, bar, told)


class _StatedRows(Iterator[Any]):
    """The rows of a `datasets.Dataset`, which are numbers of Python's, and the dtypes that it has for them."""

    def __init__(self, dataset: Any) -> None:
        self._rows, self.stated = iter(dataset), stated_dtypes(dataset)

    def __next__(self) -> Any:
        return next(self._rows)


def rows_of(data: Any) -> Any:
    """Return an iterator. Raises TypeError if the value is not an iterable of rows."""
    if isinstance(data, str | os.PathLike):
        raise TypeError(
            f"data is the path {str(data)!r}; give memload.open of it. The directory to make comes first, as in "
            'memload.write("shards/", data)'
        )
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a pandas DataFrame
        raise TypeError(
            f"data is a {type(data).__name__}; give arrays by name: {{name: data[name].to_numpy() for name in data}}, "
            "and texts as data[name].tolist()"
        )
    if hasattr(data, "dtype"):
        raise TypeError(f'data is a {type(data).__name__}; give it a name: memload.write(path, {{"stim": array}})')
    try:
        return _StatedRows(data) if is_hugging_face(data) else iter(data)
    except TypeError:
        raise TypeError(
            f"data is of type {type(data).__name__}; expected a dataset, arrays by name, or an iterable of rows"
        ) from None


def _write_rows(
    writer: RowWriter,
    rows: Iterable[Mapping[str, Any]],
    stated: Mapping[str, torch.dtype],
    conversions: Conversions,
    bar: Bar,
    told: Callable[[dict[str, Conversion]], None],
) -> None:
    chosen: dict[str, Conversion] | None = None
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"row {number} is a {type(row).__name__}; expected a mapping from field names to values, such as "
                '{"stim": ..., "robs": ...}; for rows without names give ({"stim": x, "robs": y} for x, y in data)'
            )
        encoded = writer.encoded(row, stated, conversions.may_change)
        if chosen is None:
            chosen = conversions.of({name: (value.dtype, value.shape) for name, value in encoded.items()})
            told(chosen)
        encoded.update({name: converted(encoded[name], step) for name, step in chosen.items() if name in encoded})
        writer.append_rows(encoded)
        bar.update(sum(value.nbytes for value in encoded.values()))
