"""Cells of tables of text: which are numbers, and how the columns of CSV and TSV files are read.

Only what is written as a number is one: `int` and `float` of Python take 1_1, Arabic digits and "infinity", too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.ASCII)
_LEADING = re.compile(r"(?<![0-9.])0+(?=[0-9])", re.ASCII)
_LEAST, _MOST = -(2**63), 2**63 - 1
_MOST_DIGITS = 300  # of whole numbers that float64 can hold, and that Python converts


def values_of(cells: Sequence[str]) -> Any:
    """Return the cells of a column as ints if all are whole numbers, as floats if all are numbers, or as they are.

    An empty cell is NaN among numbers. Numbers with leading zeros, such as 007, are text, and so are whole numbers that
    float64 would round.
    """
    bare = [cell.strip() for cell in cells]
    whole = [cell for cell in bare if _WHOLE.fullmatch(cell)]
    rounded = any(len(cell) > _MOST_DIGITS or int(cell) != float(cell) for cell in whole)  # long numbers are text
    if len(whole) == len(bare) and all(len(cell) <= _MOST_DIGITS and _LEAST <= int(cell) <= _MOST for cell in whole):
        return [int(cell) for cell in bare]
    if any(bare) and not rounded and all(not cell or _NUMBER.fullmatch(cell) for cell in bare):
        return [float(cell) if cell else math.nan for cell in bare]
    return list(cells)


def number_of(cell: str) -> float | None:
    """Return a cell that has to be a number, with or without leading zeros; None if it is none."""
    bare = cell.strip()
    return float(bare) if _NUMBER.fullmatch(_LEADING.sub("", bare, count=1)) else None
