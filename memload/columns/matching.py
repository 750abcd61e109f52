"""Find rows by their keys: for each row of one table, the row of another with the same key.

keys of both -> a code for each distinct key of the right, -1 for others -> the row of the right that has this code

Codes are exact: whole numbers are never converted to floating point, and texts are compared whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64] | NDArray[np.uint64]
Column = Numbers | list[str]
"""One part of the key of each row: numbers, of one dtype on both sides, or texts."""

_MANY = 1 << 16  # up to so many codes, a table is made for any number of rows
_MOST_CODES = 1 << 31  # so that two of them can be multiplied


@dataclass(frozen=True)
class Matches:
    """The rows of the right that have the keys of the left.

    Attributes:
        rows: int64 (left rows,), the first row of the right with the same key, -1 if there is none.
        repeated: int64, the rows of the right that share their key with other rows of the right.
        codes: int64 (right rows,), equal where keys are equal.
    """

    rows: NDArray[np.int64]
    repeated: NDArray[np.int64]
    codes: NDArray[np.int64]


def matched(left: Sequence[Column], right: Sequence[Column]) -> Matches:
    """Find for each row of the left the row of the right with the same key.

    Args:
        left: the parts of the keys, at least one, each of all rows.
        right: the same parts of the other table's keys.
    """
    limit = min(_MOST_CODES, max(_MANY, 4 * len(right[0])))
    codes, theirs, count = _codes(left[0], right[0], limit)
    for own, other in zip(left[1:], right[1:], strict=True):
        more, more_theirs, more_count = _codes(own, other, limit)
        codes = np.where((codes < 0) | (more < 0), -1, codes * more_count + more)
        theirs, count = theirs * more_count + more_theirs, count * more_count
        if count > limit:
            codes, theirs, count = _ranked(codes, theirs)
    first = np.full(count + 1, -1, dtype=np.int64)  # the last element is for the code -1
    first[theirs[::-1]] = np.arange(len(theirs) - 1, -1, -1)
    return Matches(first[codes], np.flatnonzero(np.bincount(theirs, minlength=count)[theirs] > 1), theirs)


Codes = tuple[NDArray[np.int64], NDArray[np.int64], int]
"""The codes of the left and of the right, and the number of possible codes."""


def _codes(left: Column, right: Column, limit: int) -> Codes:
    if isinstance(left, list) or isinstance(right, list):
        numbers: dict[object, int] = {}  # of each text, the first row that has it
        theirs = np.fromiter(map(numbers.setdefault, right, range(len(right))), dtype=np.int64, count=len(right))
        own = np.fromiter(map(numbers.get, left, itertools.repeat(-1)), dtype=np.int64, count=len(left))
        return own, theirs, max(1, len(right))
    if not len(right):
        return np.full(len(left), -1, dtype=np.int64), np.empty(0, dtype=np.int64), 1
    low, high = right.min(), right.max()
    count = int(high) - int(low) + 1
    if count > limit:
        return _ranked(left, right)
    found = np.full(len(left), -1, dtype=np.int64)
    inside = (left >= low) & (left <= high)
    found[inside] = left[inside] - low
    return found, (right - low).astype(np.int64), count


def _ranked(left: Numbers, right: Numbers) -> Codes:
    """Return codes in the order of the right's values."""
    values, theirs = np.unique(right, return_inverse=True)
    if not len(values):
        return np.full(len(left), -1, dtype=np.int64), theirs.astype(np.int64), 1
    places = np.minimum(np.searchsorted(values, left), len(values) - 1)
    return np.where(values[places] == left, places, -1), theirs.astype(np.int64).reshape(-1), len(values)
