"""What to say of values that make no array, mostly since their rows differ in length."""

from __future__ import annotations

from typing import Any


def no_array(name: str, rows: Any, reason: Exception) -> Exception:
    """Return the error for the rows of a field that make no array.

    Args:
        name: of the field.
        rows: what was given.
        reason: what torch or numpy said of them.
    """
    odd = _first_other(rows)
    if odd is None:
        return TypeError(f"field {name!r}: a {type(rows).__name__} that makes no array of numbers ({reason})")
    return ValueError(
        f"field {name!r}: row {odd} has {_told(rows[odd])}, row 0 {_told(rows[0])}. Rows that differ in length are a "
        f"ragged field: give {name}=memload.ragged(rows), or to a ShardWriter ragged=[{name!r}]"
    )


def no_row(name: str, row: Any, reason: Exception) -> Exception:
    """Return the error for one row of a field that makes no array; otherwise as `no_array`."""
    odd = _first_other(row)
    if odd is None:
        return no_array(name, row, reason)
    return ValueError(
        f"field {name!r}: a row is one array, but part {odd} of this one has {_told(row[odd])}, part 0 "
        f"{_told(row[0])}. If the parts are rows, add each by itself, to a ShardWriter with ragged=[{name!r}]"
    )


def _first_other(rows: Any) -> int | None:
    """The first of some lists or arrays whose shape is not that of number 0; None if there is none."""
    if not isinstance(rows, list | tuple) or not rows:
        return None
    shapes = [_shape(row) for row in rows]
    if None in shapes:
        return None
    return next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)


def _shape(row: Any) -> tuple[int, ...] | None:
    if hasattr(row, "shape"):
        return tuple(row.shape)
    return (len(row),) if isinstance(row, list | tuple) else None


def _told(row: Any) -> str:
    shape = _shape(row) or ()
    return f"length {shape[0]}" if len(shape) == 1 else f"shape {shape}"
