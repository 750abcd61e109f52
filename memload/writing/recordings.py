"""Recordings as folders: a set of shards for each field, and times beside them.

    a field -> `write` -> a set in the hidden directory of the recording
    times, intervals -> times.npz, recording.json -> the directory is renamed to its place

A killed call leaves complete sets, of which the hidden directory's unfinished.json says what they were made of; the
same call keeps these.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from memload.casts.rule import Cast
from memload.columns.fields import Field
from memload.dataset.dataset import Dataset
from memload.dataset.recordings.recording import Recording
from memload.formats.codecs.by_field import Codecs, check_known, words_of
from memload.formats.paths import is_taken
from memload.formats.recordings.folder import check_storable, described, folders_of
from memload.formats.recordings.found import Found
from memload.formats.shards.index import RECORDING_NAME, TIMES_NAME
from memload.formats.shards.staging import Staging, makes, target_of, write_durably
from memload.progress import note
from memload.writing.same_source import identity_of


class WriteSet(Protocol):
    """Writes the set of one field."""

    def __call__(self, path: Path, data: Dataset, *, codec: Codecs) -> Any: ...  # noqa: D102


def write_recording(
    path: str | Path, recording: Recording, write_set: WriteSet, codec: Codecs, resume: bool, progress: bool | None
) -> Path:
    """Make the folder of a recording, and return its path; see `memload.write`.

    Args:
        path: the folder to make.
        recording: what is written.
        write_set: writes the set of a field.
        codec: as in `memload.write`.
        resume: keep the complete sets of an interrupted call.
        progress: False silences the note about these.

    Raises:
        ValueError: a column of intervals, or the name of a unit, is neither numbers nor texts.
    """
    found = _found(recording)
    check_storable(found)
    fields = {name: one for name, one in recording.fields.items() if isinstance(one, Field)}
    rows = {name: Dataset({name: replace(one, meant=None)}) for name, one in fields.items()}  # their casts are beside
    check_known(codec, rows)
    sets = {
        name: SetOf(_words(one, codec_of(name, codec)), partial(write_set, data=one, codec=codec_of(name, codec)))
        for name, one in rows.items()
    }
    return write_folder(target_of(path), sets, lambda: found, made_of(recording), resume, progress)


def _words(rows: Dataset, codec: Codecs) -> str | None:
    identity = identity_of(rows)
    return None if identity is None else f"{identity} {words_of(codec)}"


@dataclass(frozen=True)
class SetOf:
    """The set of shards of one field: a text that identifies it, or None, and what writes it to a path."""

    words: str | None
    write: Callable[[Path], Any]


def write_folder(
    target: Path,
    sets: Mapping[str, SetOf],
    found: Callable[[], Found],
    identity: Mapping[str, str] | None,
    resume: bool,
    progress: bool | None,
) -> Path:
    """Make the folder of a recording, and return its path.

    Args:
        target: the folder to make.
        sets: the set of each field with rows; the fields are those of the clocks of `found`.
        found: what the recording has beside these rows; it is called when they are written.
        identity: what the rows are made of, for `source_of`.
        resume: keep the complete sets of an interrupted call.
        progress: False silences the note about these.
    """
    check_absent(target)
    with makes(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Staging(target, append=False, keep=resume)
    try:
        kept, folders = _Kept(staging, progress), folders_of(list(sets))
        for name, one in sets.items():
            kept.write(folders[name], one)
        kept.remove_others(folders.values())
        document, arrays = described(found())
        document["made_of"] = identity
        with (staging.directory / TIMES_NAME).open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # of numpy: its options are keywords, too
        write_durably(staging.directory / RECORDING_NAME, json.dumps(document, indent=1).encode())
        staging.put_in_place()
    except BaseException:
        staging.leave()
        raise
    return target


def check_absent(target: Path) -> None:
    """Raise FileExistsError if there is something where a recording is to be written."""
    if is_taken(target):
        raise FileExistsError(f"{target}: exists already, and a recording is written as a whole; write to another path")


def made_of(recording: Recording) -> dict[str, str] | None:
    """Return what identifies the rows of a recording of files, by field; None if some are in memory alone."""
    found = {
        name: identity_of(Dataset({name: one})) for name, one in recording.fields.items() if isinstance(one, Field)
    }
    known = {name: identity for name, identity in found.items() if identity is not None}
    return known if known and len(known) == len(found) else None


def _found(recording: Recording) -> Found:
    return Found(
        dict(recording.fields),
        dict(recording.clocks),
        dict(recording.intervals),
        {name: _scale(name, cast) for name, cast in recording.casts.items()},
        dict(recording.left_out),
        recording.name,
    )


def _scale(name: str, cast: Cast) -> tuple[float, float]:
    scale, offset = float(1 if cast.scale is None else cast.scale), float(cast.offset or 0)
    if cast != Cast(cast.dtype, scale=cast.scale, offset=cast.offset):
        raise ValueError(f"the cast of {name!r} is {cast}; a recording keeps a scale and an offset alone")
    return scale, offset


def codec_of(name: str, codec: Codecs) -> Codecs:
    """Return the codec of one field."""
    if not isinstance(codec, Mapping):
        return codec
    return {name: codec[name]} if name in codec else None


class _Kept:
    """The sets of fields in the hidden directory of a recording, those of an interrupted call included."""

    def __init__(self, staging: Staging, progress: bool | None) -> None:
        self._staging, self._progress = staging, progress
        try:
            self._made_of: dict[str, str] = json.loads(staging.unfinished.read_bytes())
        except (FileNotFoundError, ValueError):
            self._made_of = {}

    def write(self, folder: str, rows: SetOf) -> None:
        """Write the set of a field, unless it is there and was made of the same rows."""
        place = self._staging.directory / folder
        if place.exists() and rows.words is not None and self._made_of.get(folder) == rows.words:
            note(f"{folder}: complete already", self._progress)
            return
        shutil.rmtree(place, ignore_errors=True)
        rows.write(place)
        if rows.words is not None:
            self._made_of[folder] = rows.words
            write_durably(self._staging.unfinished, json.dumps(self._made_of).encode())

    def remove_others(self, folders: Collection[str]) -> None:
        """Remove what an interrupted call has left and this one does not have."""
        for path in self._staging.directory.iterdir():
            if path.name in folders:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
