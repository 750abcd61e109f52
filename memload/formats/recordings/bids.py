"""BIDS, the Brain Imaging Data Structure: names of files, side-cars by the inheritance principle, events.

    sub-01/ses-1/func/sub-01_ses-1_task-rest_bold.nii.gz    a run: entities, and the suffix "bold"
    task-rest_bold.json                                     what all runs with these entities inherit
    sub-01/ses-1/func/sub-01_ses-1_task-rest_events.tsv     onset, duration and further columns

A side-car applies to a run if it lies in the folder of the run or above it, has the suffix that is looked for, and has
no entity that the run has not. The specification: https://bids-specification.readthedocs.io.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.clocks import SLACK
from memload.columns.intervals import Intervals
from memload.errors import FormatError
from memload.formats.cells import number_of, values_of
from memload.formats.nifti import is_compressed, is_nifti, nifti_name
from memload.formats.paths import nothing_at
from memload.sizes import counted

LONG_NAMES = {"subject": "sub", "session": "ses", "acquisition": "acq", "reconstruction": "rec", "direction": "dir"}
"""What people write for entities whose keys in names of files are shorter."""

Entity = str | int | Sequence[str | int] | None
"""A value of an entity, several of them, or any."""

_NOTHING = ("", "n/a")  # cells without a value
_SHORTEST = SLACK / 1e9  # seconds that an event without a duration has
_FOLDERS = ("func", "sub-*/func", "ses-*/func", "sub-*/ses-*/func")


@dataclass(frozen=True)
class BidsName:
    """The name of a file: its entities, such as {"sub": "01", "task": "rest"}, and its suffix, such as "bold"."""

    entities: Mapping[str, str]
    suffix: str

    @classmethod
    def read(cls, name: str) -> BidsName | None:
        """Return the parts of a name without its ending; None if it is not one of BIDS."""
        *pairs, suffix = name.split("_")
        entities = dict(pair.partition("-")[::2] for pair in pairs)
        if not pairs or not suffix.isalnum() or not all(key and value for key, value in entities.items()):
            return None
        return cls(entities, suffix)

    def inherits(self, other: BidsName, suffix: str) -> bool:
        """Return whether a side-car of that name and suffix applies to this one."""
        return other.suffix == suffix and other.entities.items() <= self.entities.items()


def name_of(path: Path) -> BidsName | None:
    """Return the BIDS name of a file or folder of a run; None if it has none, or no subject."""
    name = BidsName.read(nifti_name(path) if is_nifti(path) else path.name)
    return name if name is not None and "sub" in name.entities else None


def runs_in(root: Path, suffix: str) -> list[Path]:
    """Return the NIfTI files of runs below a folder of BIDS, of a subject or of a session, sorted by their paths.

    Of a run that is there twice, compressed and not, the one is taken that can be read in place.
    """
    folders = [folder for pattern in _FOLDERS for folder in sorted(root.glob(pattern))]
    if root.name == "func":
        folders.append(root)
    found: dict[Path, Path] = {}
    for path in sorted(one for folder in folders for one in folder.iterdir() if is_nifti(one)):
        name = name_of(path)
        if name is not None and name.suffix == suffix and not path.name.startswith("."):
            without = path.with_name(nifti_name(path))
            if without not in found or is_compressed(found[without]):
                found[without] = path
    return list(found.values())


def chosen_runs(root: Path, runs: Sequence[Path], suffix: str, wanted: Mapping[str, Entity]) -> dict[str, Path]:
    """Return the runs whose names have the values that are wanted, by their names.

    Raises:
        FormatError: there are no runs.
        KeyError: none of them has a value that is wanted.
    """
    if not runs:
        there = sorted(one.name for one in root.iterdir())[:12]
        raise FormatError(
            f"{root}: no runs of BIDS: expected sub-*/[ses-*/]func/*_{suffix}.nii or .nii.gz; there are {there}"
        )
    named = {run: name_of(run) for run in runs}
    left = list(runs)
    for key, values in wanted.items():
        if values is None:
            continue
        entity = LONG_NAMES.get(key, key)
        allowed = [values] if isinstance(values, str | int) else list(values)
        having = {run: name.entities.get(entity) for run in left if (name := named[run]) is not None}
        left = [run for run, value in having.items() if any(_is(value, one, entity) for one in allowed)]
        if not left:
            there = sorted({value for value in having.values() if value is not None})
            raise KeyError(f"{root}: no run has the {key} {values!r}; there are {', '.join(there) or 'none with one'}")
    return {nifti_name(run) if is_nifti(run) else run.name: run for run in left}


def check_fetched(root: Path, runs: Sequence[Path]) -> None:
    """Raise FileNotFoundError if runs in a data set are links to files that are not here."""
    missing = [one for one in runs if not one.exists()]
    if missing:
        raise FileNotFoundError(
            f"{root}: {len(missing):,} of {len(runs):,} runs are not here, such as {missing[0].name}, "
            f"{nothing_at(missing[0])}"
        )


def _is(value: str | None, wanted: str | int, entity: str) -> bool:
    if value is None:
        return False
    if isinstance(wanted, int):
        return value.isdecimal() and int(value) == wanted
    return value == wanted.removeprefix(f"{entity}-")


def is_bids(path: Path) -> bool:
    """Return whether a folder has runs of BIDS: NIfTI files in the folders "func" of subjects."""
    return path.is_dir() and bool(runs_in(path, "bold"))


@dataclass(frozen=True)
class SideCars:
    """What lies beside a run.

    Attributes:
        meta: what its .json files say; what lies nearer to the run wins.
        files: these files.
        events: the .tsv file of its events; None if there is none.
    """

    meta: Mapping[str, Any]
    files: tuple[Path, ...]
    events: Path | None


def side_cars_of(path: Path, raw: Path | None = None) -> SideCars:
    """Return the side-cars of a run.

    Args:
        path: the run; without a BIDS name, it has none.
        raw: a data set beside that of the run in which they are looked for, too, such as that from which the run was
            derived; what lies in the data set of the run wins.

    Raises:
        FormatError: a .json file is no object of JSON.
        FileNotFoundError: one is a link to a file that is not here.
    """
    name = name_of(path)
    if name is None:
        return SideCars({}, (), None)
    folders = folders_of(path)
    if raw is not None:
        folders = [*_from(raw, _below_root(path)), *folders]
    files = tuple(_that_apply(name, name.suffix, ".json", folders))
    meta: dict[str, Any] = {}
    for file in files:
        meta |= _json(file)
    return SideCars(meta, files, next(reversed([*_that_apply(name, "events", ".tsv", folders)]), None))


def folders_of(path: Path) -> list[Path]:
    """Return the folder of a file and those above it, up to the root of its data set, from there on."""
    below = _below_root(path)
    return [*_from(path.absolute().parents[len(below)], below)]


def _below_root(path: Path) -> list[str]:
    """Return the folders between the root of a data set and a file, such as ["sub-01", "func"]."""
    parts = path.absolute().parent.parts
    first = next((number for number, part in enumerate(parts) if part.startswith("sub-")), len(parts))
    return [*parts[first:]]


def _from(root: Path, below: Sequence[str]) -> Iterator[Path]:
    """Yield a root and the folders from there to a file."""
    yield root
    for part in below:
        root /= part
        yield root


def _that_apply(name: BidsName, suffix: str, ending: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the side-cars that apply to a run: those that say more about it later."""
    for folder in folders:
        here = []
        for path in sorted(folder.glob(f"*{suffix}{ending}")):
            other = BidsName.read(path.name.removesuffix(ending)) or BidsName({}, path.name.removesuffix(ending))
            if name.inherits(other, suffix):
                here.append((len(other.entities), path))
        yield from (path for _, path in sorted(here))


def _text(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError(f"{path}: {nothing_at(path)}")
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: no text in UTF-8: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected an object with names such as RepetitionTime, got {type(found).__name__}")
    return found


@dataclass(frozen=True)
class Events:
    """The events of a run: those that it contains, and how many lie outside of it, in words; "" if none does."""

    table: Intervals
    outside: str


def read_events(path: Path, start: float, stop: float) -> Events:
    """Return the events in a .tsv file that a run from `start` to `stop` contains, at least in part.

    An event without a duration, or one of 0, is an interval of a microsecond; the column "duration" keeps what the
    file says, NaN for "n/a". Columns are int64, float64 or texts, as in `values_of`.

    Raises:
        FormatError: onset or duration are missing or no numbers, a duration is negative, no event lies in the run, two
            columns have one name, or a line is no row of the table.
    """
    lines, columns = _table(path)
    onset = _seconds(path, lines, columns, "onset")
    duration = _seconds(path, lines, columns, "duration")
    for row in np.flatnonzero(~np.isfinite(onset))[:1].tolist():
        raise FormatError(f"{path}: line {lines[row]}: its onset is {columns['onset'][row]!r}; expected seconds")
    for row in np.flatnonzero(duration < 0)[:1].tolist():
        raise FormatError(f"{path}: line {lines[row]}: its duration is {duration[row]:g} s")
    end = onset + np.maximum(np.nan_to_num(duration, nan=0.0, posinf=0.0), _SHORTEST)
    within = (onset < stop) & (end > start)
    outside = ""
    if not within.all():
        row = int(np.flatnonzero(~within)[0])
        outside = (
            f"{int((~within).sum()):,} of {len(onset):,} events lie outside of the run, {start:g} to {stop:g} s, such "
            f"as line {lines[row]} at {onset[row]:g} s"
        )
        if not within.any():
            raise FormatError(f"{path}: {outside}; onsets are seconds from the first volume on")
    kept = {name: _values(cells)[within] for name, cells in columns.items() if name != "onset"}
    return Events(Intervals(onset[within], end[within], {**kept, "duration": duration[within]}), outside)


def _table(path: Path) -> tuple[list[int], dict[str, list[str]]]:
    """Return the number of the line of each row, and the cells of each column by its name."""
    split = ((number, _cells(path, number, line)) for number, line in enumerate(_text(path).split("\n"), 1))
    rows = [(number, row) for number, row in split if any(row)]
    names = rows[0][1] if rows else []
    _check_names(path, names)
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise FormatError(
                f"{path}: line {number} has {counted(len(row), 'cell')}, expected {len(names)}: {', '.join(names)}"
            )
    columns = {name: [row[place] for _, row in rows[1:]] for place, name in enumerate(names)}
    return [number for number, _ in rows[1:]], columns


def _cells(path: Path, number: int, line: str) -> list[str]:
    """Return the cells of a line; one that begins with a double quote may hold tabs, and ends with another."""
    if '"' not in line:
        return [cell.strip() for cell in line.split("\t")]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter="\t", strict=True))]
    except csv.Error as error:
        raise FormatError(
            f"{path}: line {number}: {line[:80]!r} has a cell that begins with a double quote; expected one at its "
            "end, too, and double quotes within it twice"
        ) from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in ("onset", "duration"):
        if name not in names:
            hint = "; are its cells parted by tabs?" if len(names) == 1 else ""
            raise FormatError(f"{path}: no column {name!r}; its columns are {[*names]}{hint}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FormatError(f"{path}: several columns are named {twice[0]!r}; its columns are {[*names]}")


def _seconds(path: Path, lines: Sequence[int], columns: Mapping[str, list[str]], name: str) -> NDArray[np.float64]:
    values = np.empty(len(lines))
    for row, cell in enumerate(columns[name]):
        value = math.nan if cell in _NOTHING else number_of(cell)
        if value is None:
            raise FormatError(f"{path}: line {lines[row]}: its {name} is {cell!r}; expected seconds")
        values[row] = value
    return values


def _values(cells: Sequence[str]) -> NDArray[Any]:
    """Return the cells of a column as int64 or float64 if all are numbers, and as texts otherwise."""
    values = values_of(["" if cell in _NOTHING else cell for cell in cells])
    return np.array(cells, dtype=object) if not values or isinstance(values[0], str) else np.array(values)
