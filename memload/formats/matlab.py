"""MATLAB files up to version 7 (level 5 MAT-files): read whole, once, by scipy.

    arrays          (n, ...), in memory with a first axis that counts the rows; vectors are (n,); their class is that
                    in MATLAB, whatever bytes the file has for them
    logical         bool
    cells           texts, or rows that differ in length
    structs         of one element: their fields, as "name/field"

Files of version 7.3 are HDF5, and have a reader of their own. The format of level 5:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memload.errors import FormatError
from memload.formats.hdf5 import is_hdf5
from memload.formats.members import Key, check_lengths, choose
from memload.formats.packages import package
from memload.formats.ragged_arrays import ragged
from memload.sizes import counted

_MAGIC = b"MATLAB 5.0 MAT-file"
_HEADER = 128
_MOST_LISTED = 12

Axis = int | Mapping[str, int] | None
"""The axis of arrays that counts the rows; or that of each array, by its name; None: the first, or that of a vector."""


class Variable(NamedTuple):
    """What a file says of a variable: its class in MATLAB, and its shape."""

    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}"


def is_matlab(path: Path) -> bool:
    """Return whether a file has the name of a MATLAB file, and is not of version 7.3."""
    return path.suffix.lower() == ".mat" and path.is_file() and not is_hdf5(path)


def read_matlab(path: Path, key: Key, field: str | None, axis: Axis) -> dict[str, Any]:
    """Return variables of a file by name, as what `field_of` takes.

    Args:
        path: the file.
        key, field: as in `choose`; fields of structs are "name/field".
        axis: which axis counts the rows; one that is stated is followed, also by vectors.

    Raises:
        FormatError: the file is damaged, of version 7.3, or a variable that is chosen is no array of numbers or texts.
        KeyError, TypeError, ValueError: as `choose` and `check_lengths`; or an array has no such axis.
        ImportError: scipy is not installed.
    """
    check_whole(path)
    members = choose(path, _loaded(path), key, field)
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


def variables_of(path: Path) -> dict[str, Variable]:
    """Return the variables of a file by name; their values are not read.

    Raises:
        FormatError: the file is damaged, or of version 7.3.
        ImportError: scipy is not installed.
    """
    check_whole(path)
    io = package("scipy.io", "matlab", str(path))
    try:
        return {name: Variable(kind, shape) for name, shape, kind in io.whosmat(str(path))}
    except Exception as error:  # scipy raises many types
        raise _damaged(path, error) from error


def refused(path: Path) -> FormatError:
    """Return the error for a file that is to be opened in place, with what it holds and what to do.

    Raises:
        FormatError: it is damaged.
    """
    try:
        held = [f"{name} {one}" for name, one in variables_of(path).items()]
    except ImportError:
        held = []
    more = f" and {len(held) - _MOST_LISTED} more" if len(held) > _MOST_LISTED else ""
    of = f" of {', '.join(held[:_MOST_LISTED])}{more}" if held else ""
    return FormatError(
        f"{path}: a MATLAB file{of}, which are stored column by column: read it once, by memload.open_matlab, or "
        f"memload write {path} DST"
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
    """Return the members of a file in the classes of MATLAB, of which scipy would make complex ones real."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _loaded_by_scipy(path, mat_dtype=True)
    others = [one for one in caught if not issubclass(one.category, np.exceptions.ComplexWarning)]
    for one in others:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if len(others) < len(caught):
        stored = _loaded_by_scipy(path, mat_dtype=False)
        found |= {name: value for name, value in stored.items() if _holds_complex(value)}
    return found


def _loaded_by_scipy(path: Path, *, mat_dtype: bool) -> dict[str, Any]:
    io = package("scipy.io", "matlab", str(path))
    try:
        with warnings.catch_warnings():  # newer releases ask whether sparse variables are matrices or arrays
            warnings.filterwarnings("ignore", ".*`spmatrix`", DeprecationWarning)
            found: dict[str, Any] = io.loadmat(str(path), mat_dtype=mat_dtype)
    except Exception as error:  # scipy raises many types
        raise _damaged(path, error) from error
    return dict(_members({name: value for name, value in found.items() if not name.startswith("__")}))


def _holds_complex(value: Any) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    return value.dtype.kind == "c" or (value.dtype == object and any(map(_holds_complex, value.reshape(-1))))


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


def _axis_of(axis: Axis, name: str) -> int | None:
    return axis.get(name) if isinstance(axis, Mapping) else axis


def _values(value: Any, axis: int | None) -> Any:
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


def _with_rows(array: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """Return an array whose first axis counts the rows; rows of two axes with one number each are numbers.

    Without an axis, (1, n) has n rows, as (n, 1) has, and (1, 1) none.
    """
    if axis is None and array.ndim == 2 and 1 in array.shape:
        return array.reshape(()) if array.size == 1 else array.reshape(-1)
    axis = 0 if axis is None else axis
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"axis={axis}: an array of shape {array.shape} has no such axis")
    rows = np.ascontiguousarray(np.moveaxis(array, axis, 0))
    return rows.reshape(-1) if rows.ndim == 2 and rows.shape[1] == 1 else rows


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
    raise FormatError(
        f"{counted(len(cells), 'cell')}, neither all texts nor all vectors of one class; convert them in MATLAB"
    )


def _rows(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list) else len(value.offsets) - 1
