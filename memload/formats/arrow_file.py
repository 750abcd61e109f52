"""Read Arrow files, and directories of them that Hugging Face datasets saved: columns are fields, read in place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memload.columns.fields import Field, check_equal_lengths
from memload.errors import FormatError, first_line
from memload.formats.arrow import Buffers, UnfitColumnError, column_field
from memload.formats.members import Key, choose
from memload.formats.packages import package
from memload.formats.signatures import ARROW_MAGIC, SAVED_SPLITS, SAVED_STATE


def open_arrow(path: Path, key: Key, field: str | None) -> dict[str, Field]:
    """Return the columns of an Arrow file as fields: an IPC file or stream, such as Hugging Face datasets writes.

    Raises:
        FormatError: the file is damaged or compressed, or a column's rows are not runs of bytes.
        KeyError, TypeError: as `choose`.
        ImportError: pyarrow is not installed.
    """
    return columns_as_fields(path, _columns([path]), key, field)


def open_saved(path: Path, key: Key, field: str | None) -> dict[str, Field]:
    """Return the columns of a directory that `datasets.Dataset.save_to_disk` made, as fields.

    Raises:
        FormatError, KeyError, TypeError, ImportError: as `open_arrow`.
    """
    return columns_as_fields(path, _columns(_saved_files(path)), key, field)


def _saved_files(path: Path) -> list[Path]:
    """Return the data files in a directory that datasets saved."""
    if (path / SAVED_SPLITS).exists() and not (path / SAVED_STATE).exists():
        splits = ", ".join(repr(str(path / split)) for split in _json(path / SAVED_SPLITS).get("splits", ()))
        raise FormatError(f"{path}: holds several splits of a dataset; open one of them: {splits}")
    state = _json(path / SAVED_STATE)
    if state.get("_indices_data_files"):
        raise FormatError(f"{path}: was saved by an old release of datasets, with a selection; load and save it again")
    files = state.get("_data_files")
    names = [file.get("filename") for file in files] if isinstance(files, list) else []
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise FormatError(f"{path / SAVED_STATE}: names no data files in its directory")
    return [path / name for name in names]


def arrow_names(path: Path) -> list[str]:
    """Return the names of the columns of an Arrow file, or of a directory that datasets saved.

    Raises:
        FormatError, ImportError: as `open_arrow`.
    """
    return list(_columns(_saved_files(path) if path.is_dir() else [path]))


def columns_as_fields(
    path: Path | str, columns: Mapping[str, Sequence[Any]], key: Key, field: str | None
) -> dict[str, Field]:
    """Return Arrow arrays by column name as fields.

    Raises:
        FormatError: rows of a column are not runs of bytes; the message names all such columns.
        KeyError, TypeError: as `choose`.
    """
    chosen = choose(Path(path), columns, key, field)
    buffers, fields, unfit = Buffers(), dict[str, Field](), dict[str, str]()
    for name, arrays in chosen.items():
        try:
            fields[name] = column_field(name, arrays, buffers)
        except UnfitColumnError as error:
            unfit[name] = str(error)
    if unfit:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in unfit.items())
        remedy = f"; leave them out by key={list(fields)}" if fields and key is None else ""
        remedy += "; or write all of them as shards: memload.write(DIRECTORY, rows), with a dict for each row"
        raise FormatError(f"{path}: columns that cannot be read in place: {reasons}{remedy}")
    check_equal_lengths({name: field.rows for name, field in fields.items()}, f"{path}: the columns")
    return fields


def _columns(paths: Sequence[Path]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for path in paths:
        names, batches = _batches(path.absolute())
        if columns and list(columns) != names:
            raise FormatError(f"{path}: has the columns {names}, the first file has {list(columns)}")
        for position, name in enumerate(names):
            columns.setdefault(name, []).extend(batch.column(position) for batch in batches)
    return columns


def _batches(path: Path) -> tuple[list[str], list[Any]]:
    pa = package("pyarrow", "arrow", str(path))
    try:
        with pa.memory_map(str(path)) as source:
            whole = source.read_buffer(source.size())
            schema, read = _reader(source)
            batches = []
            for batch in read:
                batch.validate()
                _check_mapped(path, (whole.address, whole.address + whole.size), batch)
                batches.append(batch)
    except (FormatError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # pyarrow's errors, and those of its extension types
        raise FormatError(f"{path}: not a valid Arrow file: {first_line(error)}") from error
    names = list(schema.names)
    if len(set(names)) != len(names):
        raise FormatError(f"{path}: two columns have the same name: {names}")
    return names, batches or [pa.RecordBatch.from_pylist([], schema=schema)]


def _reader(source: Any) -> tuple[Any, Iterator[Any]]:
    """Return the schema of an open file and its record batches, which are views of the mapped file if uncompressed."""
    import pyarrow as pa

    source.seek(0)
    start = source.read(len(ARROW_MAGIC))
    source.seek(0)
    if start == ARROW_MAGIC:
        reader = pa.ipc.open_file(source)
        return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))
    stream = pa.ipc.open_stream(source)
    return stream.schema, iter(stream)


def _check_mapped(path: Path, mapped: tuple[int, int], batch: Any) -> None:
    begin, end = mapped
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size and not begin <= buffer.address <= end - buffer.size:
                raise FormatError(
                    f"{path}: its buffers are compressed, so that no row can be read without the whole of them; write "
                    "the file without compression, as datasets and pyarrow.ipc.new_file do by default, and "
                    'pyarrow.feather.write_feather(..., compression="uncompressed")'
                )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
