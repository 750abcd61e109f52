"""Folders that `memload.write` makes of recordings: a set of shards for each field, and times.

    NAME/recording.json   what there is, in words: fields, clocks, spikes, intervals, scales
    NAME/times.npz        whole nanoseconds (int64) and columns of intervals: arrays that recording.json names
    NAME/FIELD/           the rows of a field: a set of shards

docs/format.md describes every entry. recording.json is written last, so that nothing that was interrupted opens.
"""

from __future__ import annotations

import contextlib
import functools
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.clocks import Clock
from memload.columns.intervals import Intervals
from memload.columns.numbers import kind
from memload.columns.spikes import Spikes, Units
from memload.errors import ShardFormatError
from memload.formats.recordings.found import Found
from memload.formats.shards.index import RECORDING_NAME, TIMES_NAME
from memload.formats.shards.lookups import open_set

_FORMAT, _VERSION = "memload-recording", 1

Arrays = dict[str, NDArray[Any]]
"""The arrays of times.npz by name."""


def described(found: Found) -> tuple[dict[str, Any], Arrays]:
    """Return recording.json, and the arrays of times.npz.

    A clock without a field is that of rows which are decoded while they are written.

    Raises:
        ValueError: as `check_storable`.
    """
    arrays: Arrays = {}
    names = list(dict.fromkeys([*found.fields, *found.clocks]))
    folders = folders_of([name for name in names if name in found.clocks])
    fields = {}
    for number, name in enumerate(names):
        one = found.fields.get(name)
        if isinstance(one, Spikes):
            fields[name] = _of_spikes(name, one, f"spikes/{number}", arrays)
        else:
            fields[name] = {
                "folder": folders[name],
                "clock": _of_clock(found.clocks[name], f"clock/{number}", arrays),
            }
    tables = {
        name: _of_table(name, table, f"intervals/{number}", arrays)
        for number, (name, table) in enumerate(found.intervals.items())
    }
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": found.name,
        "fields": fields,
        "intervals": tables,
        "scales": {name: list(scale) for name, scale in found.scales.items()},
        "left_out": found.left_out,
    }
    return document, arrays


def check_storable(found: Found) -> None:
    """Raise ValueError if a column or the name of a unit is neither numbers nor texts; the message says where."""
    for name, table in found.intervals.items():
        for column, values in table.columns.items():
            _stored_column(f"the column {column!r} of the intervals {name!r}", values)
    for name, one in found.fields.items():
        if isinstance(one, Spikes):
            _stored_names(name, one.names)


def folders_of(names: Sequence[str]) -> dict[str, str]:
    """Return a folder for each name of a field with rows: the name, without what a folder may not have."""
    folders: dict[str, str] = {}
    for name in names:
        plain = "".join(letter if letter.isalnum() or letter in "-_ " else "_" for letter in name)
        taken = {one.casefold() for one in folders.values()}
        folders[name] = plain if plain.casefold() not in taken else f"{plain}.{len(folders)}"
    return folders


def _of_clock(clock: Clock, place: str, arrays: Arrays) -> dict[str, Any]:
    if clock.is_regular:
        rate = [clock.rate.numerator, clock.rate.denominator]
        return {"rate": rate, "start": float(clock.start), "unit": clock.unit}
    arrays[place] = clock.times(0)
    return {"times": place, "gap": clock.gap, "unit": clock.unit}


def _of_spikes(name: str, spikes: Spikes, place: str, arrays: Arrays) -> dict[str, Any]:
    names, times = spikes.units.names, spikes.units.times
    arrays[f"{place}/times"] = np.concatenate(times)
    arrays[f"{place}/counts"] = np.array([len(one) for one in times], dtype=np.int64)
    units = _stored_names(name, names)
    entry: dict[str, Any] = {"spikes": place, "begin": spikes.begin, "end": spikes.end, "units": units}
    if len(spikes.pieces[0]) > 1:
        entry["pieces"] = f"{place}/pieces"
        arrays[f"{place}/pieces"] = np.stack(spikes.pieces)
    return entry


def _stored_names(name: str, units: Sequence[Any]) -> list[int | float | str]:
    names = [_plain(one) for one in units]
    for row, one in enumerate(names):
        if not isinstance(one, int | float | str):
            raise ValueError(f"the unit {row:,} of {name!r} is named {_said(one)}; expected a number or a text")
    return names


def _of_table(name: str, table: Intervals, place: str, arrays: Arrays) -> dict[str, Any]:
    arrays[f"{place}/begins"], arrays[f"{place}/ends"] = table.begins, table.ends
    columns: dict[str, Any] = {}
    for number, (one, given) in enumerate(table.columns.items()):
        values = _stored_column(f"the column {one!r} of the intervals {name!r}", given)
        if values.dtype == object:
            columns[one] = values.tolist()
        else:
            columns[one] = f"{place}/{number}"
            arrays[columns[one]] = values
    return {"times": place, "columns": columns}


def _stored_column(what: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a column of numbers, or one of texts as objects; numbers that are objects become int64, float64 or bool.

    Raises:
        ValueError: it has texts beside numbers, or something else, such as None; the message begins with `what`.
    """
    if values.dtype.kind not in "OUS":
        return values
    cells = [_plain(one) for one in values.reshape(-1).tolist()]
    types = {type(one) for one in cells}
    if types <= {str}:
        made = np.empty(len(cells), dtype=object)
        made[:] = cells
        return made.reshape(values.shape)
    dtype = types.pop() if len(types) == 1 else float if types == {int, float} else None
    if dtype in (bool, int, float) and all(_fits(one, dtype) for one in cells):
        return np.array(cells, dtype=np.int64 if dtype is int else dtype).reshape(values.shape)
    odd = next((k for k, one in enumerate(cells) if not (isinstance(one, str | int | float) and _fits(one, int))), None)
    if odd is None:
        odd = next((k for k, one in enumerate(cells) if type(one) is not type(cells[0])), 0)
    raise ValueError(
        f"{what} has {_said(cells[odd])} in row {odd // (len(cells) // len(values)):,}; a column is written if it has "
        'numbers of 64 bits alone, or texts alone: give NaN, or "", for what is missing'
    )


def _fits(value: Any, dtype: type) -> bool:
    """Return whether an integer is the same as int64 or float64; others are."""
    if not isinstance(value, int) or dtype is bool:
        return True
    return -(2**63) <= value < 2**63 if dtype is int else abs(value) <= 2**1023 and int(float(value)) == value


def _said(value: Any) -> str:
    return "None" if value is None else kind(value)


def _plain(value: Any) -> Any:
    """Return a scalar of numpy as that of Python, and bytes as text."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain.decode() if isinstance(plain, bytes) else plain


def holds_recording(path: Path) -> bool:
    """Return whether a folder is one that `memload.write` made of a recording."""
    return (path / RECORDING_NAME).is_file()


def source_of(path: Path) -> Any:
    """Return what the rows in the folder of a recording were made of, as the writer said; raises as `read_folder`."""
    with _telling(path):
        return _document(path)["made_of"]


def read_folder(path: Path, wanted: Sequence[str] | None = None) -> Found:
    """Return the recording in a folder; rows stay there, and spikes are read when they are first used.

    Raises:
        ShardFormatError: recording.json or times.npz is damaged, or of a later version.
        KeyError: there is no field that is wanted.
    """
    with _telling(path):
        document = _document(path)
        names = list(document["fields"])
    for name in wanted or ():
        if name not in names:
            raise KeyError(f"{path}: no field {name!r}; there are {names}")
    with _telling(path):
        found = Found(name=document["name"], left_out=dict(document["left_out"]))
        for name in names if wanted is None else wanted:
            _add(found, path, name, document["fields"][name])
        found.intervals = {name: _table(path, entry) for name, entry in document["intervals"].items()}
        scales = document["scales"].items()
        found.scales = {name: (float(scale), float(offset)) for name, (scale, offset) in scales if name in found.fields}
    return found


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Tell errors of a damaged folder with its path."""
    try:
        yield
    except (ShardFormatError, FileNotFoundError):
        raise
    except (zipfile.BadZipFile, ArithmeticError, TypeError, ValueError, LookupError, AttributeError, EOFError) as error:
        raise ShardFormatError(f"{path}: a damaged recording: {type(error).__name__}: {error}") from error


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / RECORDING_NAME).read_bytes())
    if document["format"] != _FORMAT:
        raise ValueError(f"{RECORDING_NAME} has the format {document['format']!r}, expected {_FORMAT!r}")
    if document["version"] != _VERSION:
        raise ShardFormatError(
            f"{path}: a recording of version {document['version']}; this memload reads {_VERSION}: install a later one"
        )
    return document


def _add(found: Found, path: Path, name: str, entry: Mapping[str, Any]) -> None:
    if "spikes" in entry:
        units = functools.partial(_units, path, entry["spikes"], tuple(entry["units"]))
        begins, ends = _array(path, entry["pieces"]) if "pieces" in entry else (int(entry["begin"]), int(entry["end"]))
        found.fields[name] = Spikes.at_nanoseconds(units, begins, ends)
        return
    fields = open_set(_inside(path, entry["folder"]))
    if list(fields) != [name]:
        raise ValueError(f"{entry['folder']} has the fields {list(fields)}, expected {name!r}")
    clock = _clock(path, entry["clock"])
    clock.check_rows(name, fields[name].rows)
    found.fields[name], found.clocks[name] = fields[name], clock


def _inside(path: Path, folder: str) -> Path:
    if Path(folder).name != folder or folder in (".", ".."):
        raise ValueError(f"{folder!r} is no name of a folder")
    return path / folder


def _clock(path: Path, entry: Mapping[str, Any]) -> Clock:
    if "rate" in entry:
        return Clock(rate=Fraction(*entry["rate"]), start=entry["start"], unit=entry["unit"])
    return Clock.at_nanoseconds(_array(path, entry["times"]), entry["gap"], entry["unit"])


def _units(path: Path, place: str, names: tuple[Any, ...]) -> Units:
    with _telling(path):
        counts = _array(path, f"{place}/counts")
        return Units(names, np.split(_array(path, f"{place}/times"), np.cumsum(counts)[:-1]))


def _table(path: Path, entry: Mapping[str, Any]) -> Intervals:
    place = entry["times"]
    columns = {
        name: np.array(values, dtype=object) if isinstance(values, list) else _array(path, values)
        for name, values in entry["columns"].items()
    }
    return Intervals.at_nanoseconds(_array(path, f"{place}/begins"), _array(path, f"{place}/ends"), columns)


def _array(path: Path, name: str) -> NDArray[Any]:
    with (path / TIMES_NAME).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        found: NDArray[Any] = arrays[name]
        return found
