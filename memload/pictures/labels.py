"""Labels of pictures: the folders they lie in, or a table; numbers become numbers, text becomes text."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from memload.fields import check_name
from memload.pictures.files import listed, stem_of

Labels = dict[str, list[int] | list[float] | list[str]]
"""By field, the value of each picture in turn."""

KEYS = ("file", "file_name", "stem")
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.ASCII)
_LEAST, _MOST = -(2**63), 2**63 - 1


def labels_of_folders(names: Sequence[str]) -> Labels:
    """Return `label`, the number of the folder each picture lies in, in alphabetical order; and `label_name`.

    Args:
        names: of the pictures, as paths below their common folder: "cats/17.jpg" lies in "cats".

    Raises:
        ValueError: some lie in none.
    """
    outside = [name for name in names if "/" not in name]
    if outside:
        raise ValueError(f'labels="folders" takes the folder of each picture; these lie in none: {listed(outside)}')
    folders = [name.partition("/")[0] for name in names]
    numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
    return {"label": [numbers[folder] for folder in folders], "label_name": folders}


def labels_of_table(path: Path, names: Sequence[str]) -> Labels:
    """Return the columns of a CSV file, in the order of the pictures.

    A column is int64 if all its cells are whole numbers, float64 if all are numbers (an empty cell is NaN, if there are
    others), and text otherwise; numbers with leading zeros, such as 007, are names, and so text. So are
    whole numbers that both would round.

    Args:
        path: of a UTF-8 file with names of columns in its first line, one of them `file`, `file_name` or `stem`.
        names: of the pictures; a row names one with or without suffix.

    Raises:
        ValueError: a column, a row or a picture has no partner, or several; the message lists them.
    """
    columns, rows = _read(path)
    key = next((name for name in KEYS if name in columns), None)
    if key is None:
        raise ValueError(
            f"{path}: its first line needs one of {', '.join(KEYS)}, which names the picture; it has {columns}"
            f"{_cells(columns)}"
        )
    _check_columns(path, columns)
    by_stem = _by_stem(path, [row[columns.index(key)] for row in rows], names)
    ordered = [rows[by_stem[stem_of(name)]] for name in names]
    return {name: _typed([row[at] for row in ordered]) for at, name in enumerate(columns) if name not in KEYS}


def _cells(columns: Sequence[str]) -> str:
    """What to say of a first line that is a single cell with another separator in it."""
    other = next((mark for mark in ";\t|" if len(columns) == 1 and mark in columns[0]), None)
    return "" if other is None else f": cells are separated by commas, not by {other!r}"


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            columns, *rows = [row for row in csv.reader(file, strict=True) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(
                f"{path}: row {number} ({', '.join(row)[:60]}) has {len(row)} cells, the first line {len(columns)}; "
                'a text with a comma stands in quotes: "a, b"'
            )
    return columns, rows


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    for name in columns:
        check_name(name)
    twice = [name for name, count in Counter(columns).items() if count > 1]
    taken = [name for name in columns if name in ("image", "mask")]
    if twice or taken:
        raise ValueError(f"{path}: the columns {twice or taken} {'occur twice' if twice else 'are names of pictures'}")


def _by_stem(path: Path, keys: Sequence[str], names: Sequence[str]) -> Mapping[str, int]:
    """Return the row of each picture, by stem."""
    known = {name: stem_of(name) for name in names} | {stem_of(name): stem_of(name) for name in names}
    stems = [known.get(key.removeprefix("./")) for key in keys]
    counts = Counter(stem for stem in stems if stem is not None)
    without = [name for name in names if stem_of(name) not in counts]
    strange = [key for key, stem in zip(keys, stems, strict=True) if stem is None]
    twice = [stem for stem, count in counts.items() if count > 1]
    wrong = [
        f"{len(those)} {what}: {listed(those)}"
        for those, what in (
            (without, "pictures have no row"),
            (strange, "rows name no picture"),
            (twice, "pictures have several rows"),
        )
        if those
    ]
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    return {stem: row for row, stem in enumerate(stems) if stem is not None}


def _typed(cells: list[str]) -> list[int] | list[float] | list[str]:
    bare = [cell.strip() for cell in cells]
    if all(_WHOLE.fullmatch(cell) for cell in bare) and all(_LEAST <= int(cell) <= _MOST for cell in bare):
        return [int(cell) for cell in bare]
    rounded = any(_WHOLE.fullmatch(cell) and int(cell) != float(cell) for cell in bare)  # long numbers are names
    if any(bare) and not rounded and all(not cell or _NUMBER.fullmatch(cell) for cell in bare):
        return [float(cell) if cell else math.nan for cell in bare]
    return cells
