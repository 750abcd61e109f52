"""Runs in NIfTI files, such as those of fMRI: a volume for each time, and what BIDS says beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from memload.columns.clocks import SECOND, Clock
from memload.columns.intervals import Intervals
from memload.errors import FormatError
from memload.formats.nifti import NiftiHeader, is_nifti, nifti_name, open_nifti, read_header
from memload.formats.recordings.bids import SideCars, name_of, read_events, side_cars_of
from memload.formats.recordings.found import Found
from memload.sizes import counted

_UNNAMED = "volumes"


@dataclass(frozen=True)
class Run:
    """A NIfTI file whose volumes have times.

    Attributes:
        path: of the file.
        header: its header.
        clock: when the volumes begin.
        intervals: "events", if there are any.
        left_out: what is not among these, and why.
    """

    path: Path
    header: NiftiHeader
    clock: Clock
    intervals: dict[str, Intervals] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file without its ending."""
        return nifti_name(self.path)

    @property
    def field(self) -> str:
        """The name of the field of the volumes: the suffix of BIDS, such as "bold"."""
        name = name_of(self.path)
        return _UNNAMED if name is None else name.suffix

    def found(self) -> Found:
        """Return what the recording of the run has beside its field."""
        scales = {} if self.header.scale is None else {self.field: self.header.scale}
        return Found({}, {self.field: self.clock}, dict(self.intervals), scales, dict(self.left_out), self.name)


def is_run(path: Path) -> bool:
    """Return whether a path is that of a NIfTI file with several volumes, or of a damaged one."""
    try:
        return path.is_file() and is_nifti(path) and read_header(path).volumes > 1
    except FormatError:
        return True


def read_nifti(path: Path, wanted: Sequence[str] | None = None) -> Found:
    """Return the volumes of a run, which are read in place, with their clock and events.

    Args:
        path: the file.
        wanted: the name of the field, if it is checked.

    Raises:
        FormatError: the file is compressed or damaged, has one volume alone, or no time from one to the next; or a
            side-car is damaged.
        KeyError: there is no field that is wanted.
    """
    return in_place(run_of(path), wanted)


def in_place(run: Run, wanted: Sequence[str] | None = None) -> Found:
    """Return a run whose volumes are read in place; raises as `read_nifti`."""
    for name in wanted or ():
        if name != run.field:
            raise KeyError(f"{run.path}: no field {name!r}; there is {run.field!r}")
    found = run.found()
    found.fields |= open_nifti(run.path, None, run.field)
    return found


def run_of(path: Path, tr: float | None = None, raw: Path | None = None) -> Run:
    """Return what a NIfTI file and its side-cars say of a run; no volume is read.

    Args:
        path: the file, compressed or not.
        tr: seconds from one volume to the next, whatever the file says.
        raw: as in `side_cars_of`.

    Raises:
        FormatError: as `read_nifti`, but for compressed files.
    """
    header, cars = read_header(path), side_cars_of(path, raw)
    left_out: dict[str, str] = {}
    if header.volumes == 1:
        raise FormatError(f"{path}: {header}, which has no time; memload.open reads such files as rows")
    try:
        clock = _clock(path, header, cars, tr, left_out)
    except FormatError:
        raise
    except ValueError as error:
        if tr is not None:
            raise
        raise FormatError(f"{path}: the seconds between its volumes cannot be those of a clock: {error}") from error
    intervals = {}
    if cars.events is not None:
        begins, ends = clock.pieces(header.volumes)
        events = read_events(cars.events, begins[0] / SECOND, ends[-1] / SECOND)
        intervals["events"] = events.table
        if events.outside:
            left_out[cars.events.name] = events.outside
    return Run(path, header, clock, intervals, left_out)


def _clock(path: Path, header: NiftiHeader, cars: SideCars, tr: float | None, left_out: dict[str, str]) -> Clock:
    """Return the clock that the caller, the side-cars or the header state, in this order."""
    start = _seconds(cars, "StartTime", least=-math.inf)
    start = header.start if start is None else start
    if tr is not None:
        if not (math.isfinite(tr) and tr > 0):
            raise ValueError(f"tr= is the seconds from one volume to the next, more than 0; got {tr}")
        return _every(tr, start)
    timing = cars.meta.get("VolumeTiming")
    if timing is not None:
        return _at(path, header, cars, timing)
    stated = _seconds(cars, "RepetitionTime", least=0)
    if stated is None:
        if header.seconds is None:
            raise FormatError(
                f"{path}: nothing says when its {header.volumes:,} volumes were taken: pixdim[4] of the header is no "
                f"time, and {_looked_at(path, cars)}; give the seconds from one to the next, as by tr=2.0"
            )
        if not header.has_unit:
            left_out["xyzt_units"] = f"no unit of time, so that pixdim[4] = {header.seconds:g} is taken as seconds"
        return _every(header.seconds, start)
    if header.seconds is not None and header.has_unit and abs(header.seconds - stated) > 1e-3 * stated:
        left_out["pixdim[4]"] = f"{header.seconds:g} s; RepetitionTime is {stated:g} s, which is taken"
    return _every(stated, start)


def _every(seconds: float, start: float) -> Clock:
    return Clock(rate=1 / Fraction(str(float(seconds))), start=start)


def _at(path: Path, header: NiftiHeader, cars: SideCars, timing: Any) -> Clock:
    where = _saying(cars, "VolumeTiming")
    if not isinstance(timing, list) or len(timing) != header.volumes:
        given = counted(len(timing), "time") if isinstance(timing, list) else repr(timing)
        raise FormatError(f"{where} has {given}, and {path.name} {counted(header.volumes, 'volume')}")
    try:
        return Clock(timestamps=timing)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{where}: {error}") from error


def _seconds(cars: SideCars, name: str, least: float) -> float | None:
    """Return a number of the side-cars; None if there is none. Raises FormatError if it is no such number."""
    value = cars.meta.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= least:
        raise FormatError(f"{_saying(cars, name)} is {value!r}; expected a number of seconds")
    return float(value)


def _saying(cars: SideCars, name: str) -> str:
    """Say where a name of the side-cars stands: in one of these files."""
    return f"{', '.join(map(str, cars.files[-3:]))}: {name}"


def _looked_at(path: Path, cars: SideCars) -> str:
    if cars.files:
        return f"{_saying(cars, 'RepetitionTime')} is missing"
    name = name_of(path)
    return (
        "it has no name of BIDS by which a side-car is found"
        if name is None
        else (f"there is no side-car *_{name.suffix}.json that applies")
    )
