"""Several paths as one dataset: lists, and patterns such as "betas_session*.hdf5"."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

PathLike = str | os.PathLike[str]


def paths_of(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the paths that are meant: each as it is, and a text with *, ? or [ as all that match, sorted by name.

    Numbers in names count as numbers, so that session2 comes before session10. A text that is itself a path is one.

    Raises:
        FileNotFoundError: nothing matches a pattern.
        ValueError: a list, or a path, is empty.
        TypeError: it is no path.
    """
    if isinstance(path, str | os.PathLike):
        return _matching(path)
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise TypeError(f"expected a path, a pattern, or a list of these, got {path!r}")
    found = [one for each in path for one in _matching(each)]
    if not found:
        raise ValueError("an empty list of paths; expected at least one")
    return found


def _matching(path: PathLike) -> list[Path]:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected a path, got {path!r}")
    text = os.fspath(path)
    if not text:
        raise ValueError("an empty path; the folder that you are in is '.'")
    if not isinstance(path, str) or not glob.has_magic(text) or Path(text).exists():
        return [Path(text)]
    found = [Path(match) for match in glob.glob(text, recursive=True)]  # noqa: PTH207 - which takes absolute patterns
    if not found:
        raise FileNotFoundError(f"{text}: no path matches this pattern")
    return sorted(found, key=natural)


def natural(path: Path) -> list[tuple[int, str]]:
    """Return what sorts paths as people count: digits by their value, everything else by its letters."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(int(part), part) if k % 2 else (0, part) for k, part in enumerate(parts)]
