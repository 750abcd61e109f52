"""Files of several named arrays: which of them become fields, and under which names.

Names are paths: "x" for an array at the top, "train/x" for one in a group, a nested dict or a folder of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from memload.columns.fields import check_name
from memload.errors import FormatError

T = TypeVar("T")
Key = str | Sequence[str] | Mapping[str, str] | None

_MOST_SHOWN = 20


def choose(path: Path, members: Mapping[str, T], key: Key, field: str | None) -> dict[str, T]:
    """Return the members that `key` selects, by the names of their fields.

    Args:
        path: the path of the file, for messages.
        members: all members of the file that can be fields.
        key: a member, or a group, whose members get names relative to it; or several of these; or members by field
            name; None for all.
        field: another name for a single one.

    Raises:
        FormatError: there are no members.
        KeyError: `key` names a member that does not exist.
        TypeError: `field` is given for several members, or `key` is not a name.
        ValueError: two members would have the same name, or one has an invalid name.
    """
    if not members:
        raise FormatError(f"{path}: holds no arrays")
    chosen = dict(members) if key is None else _picked(path, members, key)
    if field is not None:
        if len(chosen) != 1:
            raise TypeError(f"{path}: field= names a single array, but there are {_listed(chosen)}; pick one by key=")
        chosen = {field: next(iter(chosen.values()))}
    for name in chosen:
        try:
            check_name(name)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; key= gives others: key={{'x': 'the name in the file'}}") from None
    return chosen


def check_lengths(path: Path, rows: Mapping[str, int | None], picked: Key) -> None:
    """Check that all fields have the same number of rows; None stands for a single number, which has no rows.

    Raises:
        FormatError: a field is a single number.
        ValueError: the lengths differ; the message has them all.
    """
    hint = "" if picked is not None else "; pick those that belong together by key=[...]"
    for name, length in rows.items():
        if length is None:
            raise FormatError(f"{path}: {name!r} is a single number, without a first axis that counts the rows{hint}")
    if len(set(rows.values())) > 1:
        stated = ", ".join(f"{name}: {length:,}" for name, length in list(rows.items())[:_MOST_SHOWN])
        each = "" if picked is None else "; arrays that are one row each make a field by memload.ragged([...])"
        raise ValueError(f"{path}: the arrays must have the same number of rows, got {stated}{hint}{each}")


def _picked(path: Path, members: Mapping[str, T], key: str | Sequence[str] | Mapping[str, str]) -> dict[str, T]:
    chosen: dict[str, T] = {}
    if isinstance(key, Mapping) and key:
        return {name: next(iter(choose(path, members, [member], name).values())) for name, member in key.items()}
    if not isinstance(key, Iterable):
        raise TypeError(f"{path}: key= takes a name, a list of names, or a mapping to names, got {key!r}")
    for one in [key] if isinstance(key, str) else key:
        if not isinstance(one, str):
            raise TypeError(f"{path}: key= takes the names of arrays, got {one!r}")
        found = _found(members, one)
        if not found:
            raise KeyError(f"{path}: nothing is named {one!r}; there are {_listed(members)}")
        twice = found.keys() & chosen.keys()
        if twice:
            raise ValueError(f"{path}: key= brings {sorted(twice)} twice")
        chosen.update(found)
    if not chosen:
        raise ValueError(f"{path}: key= is empty; there are {_listed(members)}")
    return chosen


def _found(members: Mapping[str, T], key: str) -> dict[str, T]:
    name = key.strip("/")
    if key in members or name in members:
        return {name: members[key if key in members else name]}
    return {path.removeprefix(f"{name}/"): member for path, member in members.items() if path.startswith(f"{name}/")}


def _listed(members: Mapping[str, object]) -> str:
    shown = ", ".join(repr(name) for name in list(members)[:_MOST_SHOWN])
    return shown if len(members) <= _MOST_SHOWN else f"{shown} and {len(members) - _MOST_SHOWN} more"
