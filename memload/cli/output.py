"""Where the answer of a command goes: text for people, or with `--json` one JSON document for programs.

`--json` prints the document instead of the text. `--json=FILE`, or `--json FILE.json`, keeps it in FILE and prints the
text as ever. What is told on the way goes to standard error where the document goes to standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

STDOUT = Path("-")


def is_json(options: argparse.Namespace) -> bool:
    """Return whether standard output is for the JSON document alone."""
    return bool(options.json == STDOUT)


def say(options: argparse.Namespace, text: object) -> None:
    """Print what is told before the answer is known."""
    print(text, file=sys.stderr if is_json(options) else sys.stdout, flush=True)


def answer(options: argparse.Namespace, text: object, document: Mapping[str, Any]) -> None:
    """Print the answer as text, or as JSON where that is asked for; with a FILE do both.

    Args:
        options: those of the command, with `json`.
        text: the answer for people.
        document: the answer for programs: of dataclasses, mappings, sequences, paths, dtypes, numbers and texts.
    """
    if not is_json(options):
        print(text)
    keep(options, document)


def keep(options: argparse.Namespace, document: Mapping[str, Any]) -> None:
    """Print the document, or keep it in its FILE, if `--json` asks for it."""
    if options.json is None:
        return
    written = json.dumps(plain(document), indent=1, allow_nan=False)
    if is_json(options):
        print(written)
    else:
        options.json.write_text(f"{written}\n")


def print_line(document: object) -> None:
    """Print a document as one line of JSON, at once."""
    print(json.dumps(plain(document), allow_nan=False), flush=True)


def check_folder_of(file: Path | None, option: str) -> None:
    """Raise OSError if `file`, the value of an option, cannot be written, before minutes of work."""
    if file is None or file == STDOUT:
        return
    if file.is_dir():
        raise IsADirectoryError(f"{option} {file}: a folder; give the name of a file, which may be in it")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{option} {file}: there is no folder {file.absolute().parent}; make it first")
    written = file if file.exists() else file.parent
    if not os.access(written, os.W_OK, effective_ids=True):
        raise PermissionError(f"{option} {file}: this process may not write to {written}; name another folder")


def plain(value: Any) -> Any:
    """Return a value as what JSON has; a number that is not finite becomes None, as JSON has no such numbers.

    Example:
        >>> plain({"path": Path("x"), "shape": (2, None), "rate": float("nan")})
        {'path': 'x', 'shape': [2, None], 'rate': None}
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        return plain(value.item())
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    return str(value)
