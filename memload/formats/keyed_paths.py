"""Paths whose names have keys in them: "betas_session{session:d}.hdf5" finds files, and of each its session.

pattern -> paths that match, in natural order -> a KeyedPath for each: the path, and what its name says
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memload.formats.paths import PathLike, entries_of, instead_of, matching, natural, paths_of

Value = int | str
"""The value of a key: a whole number or a text."""

_PLACEHOLDER = re.compile(r"\{([^{}/]*)\}")
_KEY = re.compile(r"([^\W\d]\w*)(:d)?")
_DIGITS = r"(?<![0-9])[0-9]+(?![0-9])"  # all digits that stand together, wherever what is before them ends
_MOST_DIGITS = 18


@dataclass(frozen=True)
class KeyedPath:
    """A path, and the keys in its name.

    Attributes:
        path: the path, as given or found.
        keys: the values by name, in the order of the pattern.
    """

    path: Path
    keys: Mapping[str, Value] = field(default_factory=dict)


def places_of(path: PathLike | Iterable[PathLike]) -> list[KeyedPath]:
    """Return the paths as `paths_of` does, and for patterns with {name} or {name:d} the keys too.

    {name} stands for a text of one character or more without a slash, {name:d} for a maximal run of digits. An existing
    path is never a pattern. *, ? and [ have the same meaning as without keys.

    Raises:
        FileNotFoundError: nothing matches a pattern.
        ValueError: a pair of braces has no name in it, or a path can match in two ways.
        TypeError: the value is not a path.
    """
    return [place for entry in entries_of(path) for place in _places(entry)]


def keys_of(path: PathLike) -> list[str]:
    """Return the names of the keys of a pattern; none for a path."""
    return list(_names(os.fspath(path))) if _is_keyed(path) else []


def _places(path: Any) -> list[KeyedPath]:
    if not _is_keyed(path):
        return [KeyedPath(found) for found in paths_of([path])]
    pattern = re.sub("//+", "/", str(os.fspath(path)))
    names = _names(pattern)
    longest, shortest = (_expression(pattern, names, lazy=lazy) for lazy in (False, True))
    found = []
    for name in matching(_PLACEHOLDER.sub("*", pattern)):
        match = longest.fullmatch(name)
        if match is None:
            continue  # for example "session_test" where digits are required
        other = shortest.fullmatch(name)
        if other is None or match.groupdict() != other.groupdict():
            raise ValueError(
                f"{name}: matches {pattern!r} in two ways, as {match.groupdict()} and as "
                f"{other and other.groupdict()}; put what separates the keys into the pattern, or make them {{name:d}}"
            )
        found.append(KeyedPath(Path(name), {key: _value(name, key, match[key], names[key]) for key in names}))
    if not found:
        instead = instead_of(Path(_PLACEHOLDER.sub("*", pattern)))
        raise FileNotFoundError(f"{pattern}: no path matches this pattern{instead}")
    return sorted(found, key=lambda place: natural(place.path))


def _is_keyed(path: Any) -> bool:
    if not isinstance(path, str | os.PathLike):
        return False
    text = os.fspath(path)
    return isinstance(text, str) and bool(_PLACEHOLDER.search(text)) and not Path(text).exists()


def _names(pattern: str) -> dict[str, bool]:
    """Return the names in braces, and whether each stands for a number."""
    names: dict[str, bool] = {}
    for inner in _PLACEHOLDER.findall(pattern):
        key = _KEY.fullmatch(inner)
        if key is None:
            raise ValueError(
                f"{pattern}: expected the name of a key in braces, as in {{session}} for a text or {{session:d}} for a "
                f"number, got {{{inner}}}"
            )
        if names.setdefault(key[1], bool(key[2])) != bool(key[2]):
            raise ValueError(f"{pattern}: {key[1]!r} is both a text and a number; write it the same way each time")
    return names


def _expression(pattern: str, names: Mapping[str, bool], *, lazy: bool) -> re.Pattern[str]:
    """Return the expression of a name in which each part is as long, or as short, as possible."""
    more, seen, parts = "?" if lazy else "", set[str](), []
    for literal, inner in zip(*[iter([*_PLACEHOLDER.split(pattern), ""])] * 2, strict=True):
        parts.append(_of_glob(literal, more))
        key = inner.partition(":")[0]
        if key in seen:
            parts.append(f"(?P={key})")
        elif key:
            parts.append(f"(?P<{key}>{_DIGITS if names[key] else f'[^/]+{more}'})")
            seen.add(key)
    return re.compile("".join(parts), re.DOTALL)


def _of_glob(literal: str, more: str) -> str:
    """Return the expression of the text between keys, which may have *, ? and [ in it."""
    found = []
    for part in re.findall(r"\*\*/?|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[", literal):
        if part.startswith("**"):
            found.append(f".*{more}")
        elif part in ("*", "?"):
            found.append(f"[^/]*{more}" if part == "*" else "[^/]")
        elif part.startswith("[") and len(part) > 1:
            inner = part[1:-1].replace("\\", r"\\").replace("[", r"\[")
            found.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            found.append(re.escape(part))
    return "".join(found)


def _value(path: str, key: str, text: str, number: bool) -> Value:
    if not number:
        return text
    if len(text.lstrip("0")) > _MOST_DIGITS:
        raise ValueError(f"{path}: {key!r} would be {text}, which 64 bits do not hold; make it a text, as {{{key}}}")
    return int(text)
