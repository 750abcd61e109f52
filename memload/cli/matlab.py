"""MATLAB files in `memload info`: their variables, which are not read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memload.formats.matlab import is_matlab, variables_of
from memload.formats.paths import is_remote, paths_of


def matlab_at(sources: Sequence[str]) -> list[Path]:
    """Return the paths of the MATLAB files that a command names; none unless all sources are such files."""
    if any(is_remote(source) or (not Path(source).exists() and "=" in source) for source in sources):
        return []  # NAME=PATH is a field
    found = [path for source in sources for path in paths_of(source)]
    return found if found and all(map(is_matlab, found)) else []


def variables_at(paths: Sequence[Path], options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the variables of files with their classes and shapes, as text and as a document.

    Raises:
        ValueError: they are to be drawn.
        FormatError: a file is damaged.
        ImportError: scipy is not installed.
    """
    if options.plot:
        raise ValueError("--plot draws what opens in place; memload write makes that of a MATLAB file")
    lines, document = [], {}
    for path in paths:
        variables = variables_of(path)
        lines.append(f"{path}: a MATLAB file, which is read once, by memload.open_matlab or memload write {path} DST")
        lines += [f"  {name}: {one}" for name, one in variables.items()]
        document[str(path)] = {name: {"class": one.kind, "shape": one.shape} for name, one in variables.items()}
    return "\n".join(lines), {"paths": paths, "variables": document, "advice": []}
