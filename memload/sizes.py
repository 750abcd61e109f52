"""Counts, those of bytes, and the sides of images, as people write and read them."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)


def parse_size(size: int | str) -> int:
    """Return the bytes of `size`: a count, or a text such as "512MB" (decimal) or "64 MiB" (binary).

    Raises:
        TypeError: it is neither a number nor a text.
        ValueError: the text is not of that form, or the size is below one byte.
    """
    if isinstance(size, str):
        match = _PATTERN.fullmatch(size)
        if match is None:
            raise ValueError(f'not a size: {size!r}; expected a number of bytes, or a text such as "512MB" or "64 MiB"')
        size = int(float(match[1]) * _UNITS[(match[2] or "").upper()])
    if not isinstance(size, numbers.Real):
        raise TypeError(f'a size is a number of bytes, or a text such as "512MB", got {type(size).__name__}')
    if not 1 <= size < math.inf:
        raise ValueError(f"a size must be at least one byte, and finite, got {size}")
    return int(size)


def format_size(nbytes: float) -> str:
    """Return `nbytes` for reading, in decimal units with three digits: 512 B, 1.05 kB, 2.17 GB."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB" if size < 999.5 else f"{size:,.0f} TB"


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a count and what is counted, for reading; `several` is that for any count but 1, by default with an "s".

    Example:
        >>> counted(1, "row"), counted(2000, "row"), counted(1, "file is", "files are")
        ('1 row', '2,000 rows', '1 file is')
    """
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def sides_of(name: str, given: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Return height and width of an image, of which one number is a square; None for None.

    Args:
        name: that of the argument, for the error.
        given: its value.

    Raises:
        ValueError: it is neither, or a side is no whole number from 1 on.

    Example:
        >>> sides_of("size", 224), sides_of("size", (480, 640))
        ((224, 224), (480, 640))
    """
    if given is None:
        return None
    sides = (given, given) if isinstance(given, int) else tuple(given)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(f"{name} is (height, width), or one number for squares, each at least 1; got {given!r}")
    return sides[0], sides[1]
