"""Reads tables of labels whole, as columns by name: CSV, TSV, JSON, JSON lines, Parquet, or columns in memory."""

from __future__ import annotations

import csv
import json
import math
import numbers
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memload.columns.fields import check_name
from memload.columns.numbers import kind
from memload.formats.cells import values_of
from memload.formats.packages import package
from memload.sizes import counted

Columns = dict[str, list[int] | list[float] | list[bool] | list[str]]
"""The values of all rows, by the name of the column."""

KEYS = ("file", "file_name", "stem", "filename", "filepath", "image", "image_path", "image_name", "key")
_MOST_NAMED = 12  # columns
_RESERVED = ("image", "mask", "file")
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Table:
    """A table whose rows name images.

    Args:
        name: the name of the file, for messages.
        keys: the cell of each row that names the image.
        columns: all other columns.
        folder: the folder of the file; None without a file.
    """

    name: str
    keys: tuple[str, ...]
    columns: Columns
    folder: Path | None = None


def read_table(given: Any, image_column: str | None = None) -> Table:
    """Return a table; each column is int64 if all its cells are whole numbers, float64 if all are numbers, or text.

    A cell without a value is NaN among numbers and "" among texts. Cells of CSV files are numbers if all cells of the
    column are. Numbers with leading zeros, such as 007, are text, and so are whole numbers that float64 would round.

    Args:
        given: the path of a .tsv, .json, .jsonl (.ndjson) or .parquet file, or of a CSV file with any other suffix, in
            UTF-8; or columns in memory, as a dict of lists, or a table of pandas, pyarrow or datasets.
        image_column: the column that names the images; None: the first existing column of ``KEYS``.

    Raises:
        ValueError: it is malformed, or has no such column, or a column has neither numbers nor texts.
        TypeError: it is no table.
        ImportError: it is a Parquet file, and pyarrow is not installed.
    """
    path = Path(given) if isinstance(given, str | os.PathLike) else None
    name = "the table" if path is None else str(path)
    columns = _in_memory(given) if path is None else _in_file(path)
    key = image_column or next((column for column in KEYS if column in columns), None)
    if key is None or key not in columns:
        where = "its first line needs" if path is not None and _is_csv(path) else "it needs a column"
        wanted = repr(image_column) if image_column else f"one of {', '.join(KEYS)}"
        remedy = "" if image_column else "; image_column= names another one"
        raise ValueError(
            f"{name}: {where} {wanted}, which names the image{remedy}. It has {_columns(columns)}{_separator(columns)}"
        )
    _check_columns(name, columns, key)
    lengths = {one: len(cells) for one, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name}: its columns have different lengths: {lengths}")
    keys = tuple(_key(name, key, number, cell) for number, cell in enumerate(columns.pop(key)))
    texts = path is not None and _is_csv(path)
    typed = {
        one: values_of(cells) if texts else _as_given(f"{name}: column {one!r}", cells)
        for one, cells in columns.items()
    }
    return Table(name, keys, typed, None if path is None else path.absolute().parent)


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() not in _READERS or path.suffix.lower() == ".tsv"


def _in_file(path: Path) -> dict[str, list[Any]]:
    return _READERS.get(path.suffix.lower(), _csv)(path)


def _in_memory(given: Any) -> dict[str, list[Any]]:
    if hasattr(given, "to_pydict"):  # pyarrow
        given = given.to_pydict()
    elif hasattr(given, "columns") and hasattr(given, "to_dict"):  # pandas
        given = given.to_dict("list")
    elif hasattr(given, "column_names") and hasattr(given, "to_dict"):  # datasets
        given = given.to_dict()
    if not isinstance(given, Mapping):
        raise TypeError(
            f"a table is a path of a .csv, .tsv, .json, .jsonl or .parquet file, or a dict of lists; got {kind(given)}"
        )
    return {name: cells.tolist() if hasattr(cells, "tolist") else list(cells) for name, cells in given.items()}


def _csv(path: Path, separator: str = ",") -> dict[str, list[Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns, *rows = [row for row in csv.reader(file, strict=True, delimiter=separator) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    duplicates = [name for name, count in Counter(columns).items() if count > 1]
    if duplicates:
        raise ValueError(f"{path}: the columns {duplicates} occur twice")
    if "" in columns and len(columns) > 1:
        raise ValueError(
            f"{path}: column {columns.index('') + 1} has no name in the first line; give it one, or leave out the "
            "index that pandas writes so: table.to_csv(path, index=False)"
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(
                f"{path}: row {number} ({', '.join(row)[:60]}) has {counted(len(row), 'cell')}, the first line "
                f"{len(columns)}; "
                'put a text with a comma in quotes: "a, b"'
            )
    return {name: [row[at] for row in rows] for at, name in enumerate(columns)}


def _json(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON in UTF-8 ({error})") from error
    if isinstance(content, Mapping) and all(isinstance(cells, list) for cells in content.values()):
        return dict(content)
    return _of_objects(path, content if isinstance(content, list) else [content])


def _json_lines(path: Path) -> dict[str, list[Any]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not in UTF-8 ({error})") from error
    return _of_objects(path, [_object(path, number, line) for number, line in enumerate(lines, 1) if line.strip()])


def _object(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}: line {number} is not JSON ({error})") from error


def _of_objects(path: Path, rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the columns of a list of objects; a missing value is None."""
    rows = list(rows)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}: row {number} is {kind(row)}; expected an object with a name for each cell")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _parquet(path: Path) -> dict[str, list[Any]]:
    pyarrow, parquet = package("pyarrow", "arrow", str(path)), package("pyarrow.parquet", "arrow", str(path))
    try:
        columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not a Parquet file ({error})") from error
    return columns


def _tsv(path: Path) -> dict[str, list[Any]]:
    return _csv(path, "\t")


_READERS: Mapping[str, Callable[[Path], dict[str, list[Any]]]] = {
    ".tsv": _tsv,
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}


def _columns(columns: Iterable[str]) -> str:
    """Return the names of columns as text, the first of many."""
    names = list(columns)
    more = len(names) - _MOST_NAMED
    further = f" and {counted(more, 'more column')}" if more > 0 else ""
    return f"{names[:_MOST_NAMED]}{further}"


def _separator(columns: Iterable[str]) -> str:
    """Return advice on a first line that is a single cell with another separator in it; else ""."""
    names = list(columns)
    other = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    return "" if other is None else f": cells are separated by commas, not by {other!r}"


def _check_columns(where: str, columns: Iterable[str], key: str) -> None:
    for name in columns:
        check_name(name)
    reserved = [name for name in columns if name in _RESERVED and name != key]
    if reserved:
        raise ValueError(
            f"{where}: the set has fields named {reserved} already: rename these columns, or, if one of them names the "
            "image of a row, give it as image_column="
        )


def _key(where: str, column: str, number: int, cell: Any) -> str:
    if isinstance(cell, str) and cell:
        return cell
    if isinstance(cell, numbers.Integral) and not isinstance(cell, bool):
        return str(cell)
    got = "nothing" if cell is None or cell == "" else kind(cell)
    raise ValueError(f"{where}: column {column!r} names the image of each row by its file; row {number} has {got}")


def _as_given(where: str, cells: Sequence[Any]) -> Any:
    """Return the cells of a column of Python values, all as one type."""
    present = [cell for cell in cells if not _missing(cell)]
    if all(isinstance(cell, str) for cell in present):
        return ["" if _missing(cell) else cell for cell in cells] if present else [math.nan] * len(cells)
    if all(isinstance(cell, bool) for cell in present) and len(present) == len(cells):
        return list(cells)
    for number, cell in enumerate(cells):
        if not _missing(cell) and (isinstance(cell, bool | str) or not isinstance(cell, numbers.Real)):
            lists = isinstance(cell, list | tuple)
            remedy = "; make a row for each element, as pandas' DataFrame.explode does" if lists else ""
            other = next((k for k, one in enumerate(cells) if type(one) is not type(cell)), None)
            beside = (
                "" if other is None else f", row {other} {'nothing' if _missing(cells[other]) else kind(cells[other])}"
            )
            raise ValueError(
                f"{where} must have only numbers, texts or bools; row {number} has {kind(cell)}{beside}{remedy}"
            )
    if len(present) == len(cells) and all(isinstance(cell, numbers.Integral) for cell in cells):
        whole = [int(cell) for cell in cells]
        if all(_LEAST <= cell <= _MOST for cell in whole):
            return whole
        raise ValueError(f"{where} has whole numbers of more than 64 bits, such as {max(whole, key=abs)}: give texts")
    rounded = [cell for cell in present if isinstance(cell, numbers.Integral) and int(cell) != float(cell)]
    if rounded:
        raise ValueError(
            f"{where} has missing values or fractions, which make it float64, and whole numbers that float64 would "
            f"round, such as {rounded[0]}: give texts"
        )
    return [math.nan if _missing(cell) else float(cell) for cell in cells]


def _missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
