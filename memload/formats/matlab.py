"""MATLAB files up to version 7 (level 5 MAT-files): read whole, once, by scipy.

    arrays          (n, ...), in memory with a first axis that counts the rows; vectors are (n,)
    logical         bool
    cells           texts, or rows that differ in length
    structs         of one element: their fields, as "name/field"

Files of version 7.3 are HDF5, and have a reader of their own. The format of level 5:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.errors import FormatError
from memload.formats.hdf5 import is_hdf5
from memload.formats.members import Key, check_lengths, choose
from memload.formats.packages import package
from memload.formats.ragged_arrays import ragged

_MAGIC = b"MATLAB 5.0 MAT-file"
_HEADER = 128
_MOST_LISTED = 12

Axis = int | Mapping[str, int]
"""The axis of arrays that counts the rows; or that of each array, by its name."""


def is_matlab(path: Path) -> bool:
    """Return whether a file has the name of a MATLAB file, and is not of version 7.3."""
    return path.suffix.lower() == ".mat" and path.is_file() and not is_hdf5(path)


def read_matlab(path: Path, key: Key, field: str | None, axis: Axis) -> dict[str, Any]:
    """Return variables of a file by name, as what `field_of` takes.

    Args:
        path: the file.
        key, field: as in `choose`; fields of structs are "name/field".
        axis: which axis counts the rows.

    Raises:
        FormatError: the file is damaged, of version 7.3, or a variable that is chosen is no array of numbers or texts.
        KeyError, TypeError, ValueError: as `choose` and `check_lengths`; or an array has no such axis.
        ImportError: scipy is not installed.
    """
    check_whole(path)
    members = choose(path, dict(_members(_loaded(path))), key, field)
    found: dict[str, Any] = {}
    unfit: list[str] = []
    for name, value in members.items():
        try:
            found[name] = _values(value, _axis_of(axis, name))
        except (FormatError, TypeError) as error:
            unfit.append(f"{path}: {name}: {error}")
    if unfit:
        remedy = f"; or leave it out by key={[*found][:_MOST_LISTED]}" if found and key is None else ""
        raise FormatError(f"{unfit[0]}{remedy}")
    check_lengths(path, {name: _rows(value) for name, value in found.items()}, key)
    for name in axis if isinstance(axis, Mapping) else ():
        if name not in found:
            raise KeyError(f"{path}: axis= names {name!r}; there are {[*found]}")
    return found


def variables_of(path: Path) -> str:
    """Return the names, classes and shapes of a file's variables as a text; "" if they cannot be listed.

    Raises:
        FormatError: the file is damaged, or of version 7.3.
    """
    check_whole(path)
    try:
        listed = package("scipy.io", "matlab", str(path)).whosmat(str(path))
    except ImportError:
        return ""
    except Exception as error:  # scipy raises many types
        raise _damaged(path, error) from error
    texts = [f"{name} {kind} {shape}" for name, shape, kind in listed[:_MOST_LISTED]]
    return ", ".join(texts) + (f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else "")


def refused(path: Path) -> FormatError:
    """Return the error for a file that is to be opened in place, with what it holds and what to do.

    Raises:
        FormatError: it is damaged.
    """
    held = variables_of(path)
    return FormatError(
        f"{path}: a MATLAB file{f' of {held}' if held else ''}, which are stored column by column: read it once, by "
        f"memload.open_matlab, or memload write {path} DST"
    )


def check_whole(path: Path) -> None:
    """Raise FormatError unless a file of level 5 ends where its last variable does."""
    start, size = _start(path), path.stat().st_size
    if is_hdf5(path):
        raise FormatError(
            f"{path}: a MATLAB 7.3 file, which is HDF5: memload.open(path, key=...) reads it in place; its axes are "
            "those of MATLAB in reverse, so that the last one counts the rows"
        )
    if not start.startswith(_MAGIC):
        return  # of level 4, or none: scipy says so
    order = "<" if start[126:128] == b"IM" else ">"
    with path.open("rb") as file:
        at = _HEADER
        while at < size:
            file.seek(at)
            tag = file.read(8)
            at += 8 + (struct.unpack(f"{order}2I", tag)[1] if len(tag) == 8 else size)
    if at > size or size < _HEADER:
        raise FormatError(
            f"{path}: cut short: its last variable ends at byte {at:,}, the file at {size:,}: get it again"
        )


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER)


def _loaded(path: Path) -> dict[str, Any]:
    io = package("scipy.io", "matlab", str(path))
    try:
        logical = {name for name, _, kind in io.whosmat(str(path)) if kind == "logical"}
        found: dict[str, Any] = io.loadmat(str(path))
    except Exception as error:  # scipy raises many types
        raise _damaged(path, error) from error
    return {
        name: value.astype(np.bool_) if name in logical else value
        for name, value in found.items()
        if not name.startswith("__")
    }


def _damaged(path: Path, error: Exception) -> FormatError:
    return FormatError(f"{path}: no MATLAB file, or a damaged one ({type(error).__name__}: {error})")


def _members(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables by name; structs of one element as their fields."""
    for name, value in variables.items():
        if isinstance(value, np.ndarray) and value.dtype.names and value.size == 1 and value.dtype.hasobject:
            inside = value.reshape(-1)[0]
            yield from _members({f"{name}/{one}": inside[one] for one in value.dtype.names})
        else:
            yield name, value


def _axis_of(axis: Axis, name: str) -> int:
    return axis.get(name, 0) if isinstance(axis, Mapping) else axis


def _values(value: Any, axis: int) -> Any:
    """Return a variable as an array with rows, a list of texts, or ragged rows."""
    if not isinstance(value, np.ndarray):
        if hasattr(value, "tocsc"):
            raise FormatError("a sparse matrix; store full(x)")
        raise FormatError(f"of a class that scipy does not read ({type(value).__name__}); convert it in MATLAB")
    if value.dtype.names or type(value) is not np.ndarray:
        what = f"a struct of {value.size} elements" if value.dtype.names else "a function, or an object of a class"
        raise FormatError(f"{what}, no array of numbers; convert it in MATLAB, such as by [x.field] or table2array")
    if value.dtype.kind == "U":
        return [str(one) for one in value.reshape(-1)]
    if value.dtype == object:
        return _of_cells(list(value.reshape(-1, order="F")))
    if value.dtype.kind == "c":
        raise FormatError("complex numbers; store real(x) and imag(x), or abs(x) and angle(x)")
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    return _with_rows(native, axis)


def _with_rows(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return an array whose first axis counts the rows: a vector without its other axis, and (n, 1, ...) as it is."""
    if array.ndim == 2 and 1 in array.shape:
        return array.reshape(()) if array.size == 1 else array.reshape(-1)
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"axis={axis}: an array of shape {array.shape} has no such axis")
    return np.ascontiguousarray(np.moveaxis(array, axis, 0))


def _of_cells(cells: list[Any]) -> Any:
    """Return texts, or rows that differ in length, each a vector."""
    plain = [one for one in cells if type(one) is np.ndarray]
    if len(plain) == len(cells) and cells:
        if all(one.dtype.kind == "U" and one.size <= 1 for one in plain):
            return ["".join(one.reshape(-1)) for one in plain]
        if all(one.dtype.kind in "biuf" and one.size == max(one.shape, default=0) for one in plain if one.size):
            kinds = {one.dtype for one in plain if one.size} or {np.dtype(np.float64)}
            if len(kinds) == 1:
                (kind,) = kinds
                return ragged([np.ascontiguousarray(one.reshape(-1), kind.newbyteorder("=")) for one in plain])
    raise FormatError(f"{len(cells)} cells, neither all texts nor all vectors of one class; convert them in MATLAB")


def _rows(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list) else len(value.offsets) - 1
