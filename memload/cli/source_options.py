"""Opens the sources that a command names: paths, and NAME=PATH for fields side by side."""

from __future__ import annotations

import builtins
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memload.dataset.dataset import Dataset
from memload.dataset.joining import How, join
from memload.dataset.matlab import open_matlab
from memload.dataset.opening import (
    one_after_the_other,
    open,  # noqa: A004 - memload's own
)
from memload.dataset.zipping import zip  # noqa: A004 - memload's own
from memload.formats.keyed_paths import keys_of
from memload.formats.matlab import is_matlab
from memload.formats.paths import is_remote, paths_of
from memload.sizes import counted


class UnevenError(ValueError):
    """Sources that are to be put side by side differ in their numbers of rows, which `figures` states."""

    def __init__(self, figures: str) -> None:
        super().__init__(f"{figures}. {_EVEN}")
        self.figures = figures


def open_sources(
    sources: Sequence[str], stated: dict[str, Any], on: str | None, how: How | None, target: str = "DST"
) -> Dataset:
    """Open sources as one dataset: those of one name are concatenated, those of different names are put side by side.

    Args:
        sources: texts such as "betas.npy" or "betas=betas.npy".
        stated: arguments of `memload.open`.
        on: fields by which rows of different names are joined, such as "session,trial"; None joins them in order.
        how: as in `memload.join`.
        target: the directory to make, for messages.

    Raises:
        ValueError: they cannot be put side by side, or those of one name are not alike.
    """
    members: dict[str, list[tuple[str, Dataset]]] = {}
    keys: dict[str, list[str]] = {}
    for source in sources:
        name, path = name_and_value(source)
        dataset = _opened(path, stated)
        added = [*keys_of(path), *(stated[option] for option in ("row_field", "file_field") if option in stated)]
        own = [field for field in dataset.fields if field not in added]
        label = name or " and ".join(own)
        keys[label] = added
        named = dataset.rename({own[0]: name}) if name and len(own) == 1 else dataset
        members.setdefault(label, []).append((path, named))
    if on is not None and len(members) == 1:
        raise ValueError(_unnamed(members, on, target))
    parts = {label: _concatenated(given, target) for label, given in members.items()}
    if on is not None:
        return _joined(parts, on.split(","), how)
    if how is not None:
        raise ValueError("--how needs --on, which is not given")
    shared = [key for key in next(iter(keys.values())) if all(key in added for added in keys.values())]
    if len(parts) > 1 and shared:
        raise ValueError(
            f"{', '.join(parts)} have the keys {', '.join(shared)}: --on {','.join(shared)} puts rows with the same "
            "keys side by side"
        )
    if len({len(part) for part in parts.values()}) > 1:
        raise UnevenError(_uneven(parts))
    return zip(**parts)


_EVEN = (
    "Fields side by side have equally many: write each into a set of its own, or give --on FIELD, which finds rows by "
    "a field that all have"
)


def _uneven(parts: Mapping[str, Dataset]) -> str:
    listed = ", ".join(f"{name} has {counted(len(part), 'row')}" for name, part in parts.items())
    return f"the numbers of rows differ: {listed}"


def _concatenated(given: Sequence[tuple[str, Dataset]], target: str) -> Dataset:
    """Return the rows of all sources of one name; the error of those that are not alike has the next step."""
    paths, parts = [path for path, _ in given], [part for _, part in given]
    try:
        return one_after_the_other(paths, parts)
    except ValueError as error:
        raise ValueError(f"{error}; {as_fields(paths, parts, target)}") from None


def as_fields(paths: Sequence[str], parts: Sequence[Dataset], target: str = "DST") -> str:
    """Return how sources that are not alike can be written, for messages.

    Args:
        paths: those of the sources.
        parts: what is in each.
        target: the directory to make.
    """
    if len({len(part) for part in parts}) > 1:
        return _uneven(dict(builtins.zip(paths, parts, strict=True))) + ", so write each into a set of its own"
    taken = [name for part in parts if len(part.fields) > 1 for name in part.fields]
    if len({*taken}) < len(taken):
        return "write each into a set of its own"
    return f"to make them fields side by side, name each: `memload write {_with_names(paths)} {shlex.quote(target)}`"


def _with_names(paths: Sequence[str]) -> str:
    """Return sources with a NAME= for each, as a shell takes them."""
    names = [re.sub(r"\W+", "_", Path(path).stem).strip("_") for path in paths]
    names = [name if name and names.count(name) == 1 else f"{name}_{place}" for place, name in enumerate(names)]
    return " ".join(shlex.quote(f"{name}={path}") for name, path in builtins.zip(names, paths, strict=True))


def _unnamed(members: Mapping[str, Sequence[tuple[str, Dataset]]], on: str, target: str) -> str:
    """Return why sources that all have one name are not joined, and what to do."""
    ((label, given),) = members.items()
    if len(given) == 1:
        return f"--on finds rows of further sources, and there is one: {label}"
    same = f"--on puts sources of different names side by side, and these have one name, {label}"
    if len(given[0][1].fields) > 1 and " and " in label:
        return f"{same}: write each into a set of its own, and join them by memload.join"
    named = f"`memload write {_with_names([path for path, _ in given])} {shlex.quote(target)} --on {shlex.quote(on)}`"
    return f"{same}: name each, as in {named}"


def _opened(path: str, stated: dict[str, Any]) -> Dataset:
    """Open a source; files of MATLAB are read into memory."""
    places = [] if is_remote(path) or "{" in path else paths_of(path)
    if not any(map(is_matlab, places)):
        if "axis" in stated:
            raise ValueError(f"--axis is for MATLAB files up to version 7, which {path} is not")
        return open(path, **stated)
    if others := [f"--{name.replace('_', '-')}" for name in stated if name not in ("key", "axis")]:
        raise ValueError(f"{', '.join(others)}: not for MATLAB files, whose variables --key names")
    first, *rest = [open_matlab(place, **stated) for place in places]
    return first.concat(*rest) if rest else first


def _joined(parts: dict[str, Dataset], on: list[str], how: How | None) -> Dataset:
    first, *others = parts
    dataset = parts[first]
    for label, part in parts.items():
        if lacking := [field for field in on if field not in part.fields]:
            raise ValueError(
                f"--on {','.join(on)}: {label} has no field {', '.join(lacking)}; there are {', '.join(part.fields)}. "
                "Keys of files come by --row-field and a pattern such as betas{session:d}.npy; without --on, rows "
                "stand side by side in their order"
            )
    for label in others:
        try:
            dataset = join(dataset, parts[label], on, how=how or "left")
        except ValueError as error:
            raise ValueError(f"left is {first}, right is {label}: {error}") from None
    return dataset


def name_and_value(text: str) -> tuple[str, str]:
    """Split NAME=VALUE; a value that is a path with `=` in it has no name."""
    name, equals, value = text.partition("=")
    return (name, value) if equals and not Path(text).exists() else ("", text)


def open_data(sources: Sequence[str], stated: dict[str, Any], on: str | None, how: How | None) -> Any:
    """Open one dataset, or several that differ, as a dict by name.

    With a NAME= before any path, they are fields side by side, as `memload write` takes them. Paths alone are one
    dataset if their rows are alike; else each is a data set, named by its file or folder without the ending.
    """
    if on is not None or how is not None or any(name_and_value(source)[0] for source in sources):
        try:
            return open_sources(sources, stated, on, how)
        except UnevenError as error:
            raise ValueError(f"{error.figures}. Data sets of their own are given as paths without NAME=") from None
    try:
        return open(sources, **stated)
    except ValueError:
        if len(sources) < 2:
            raise
        each = [open(source, **stated) for source in sources]  # the error of one that cannot be opened at all
    names = [Path(source).stem for source in sources]
    unique = len(set(names)) == len(names)
    return dict(builtins.zip(names if unique else sources, each, strict=True))
