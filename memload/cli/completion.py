"""`memload completion`: prints the script by which a shell completes commands, options and their values.

The script is made of the parsers themselves, by shtab but for fish, once: pressing Tab starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from memload.cli.fish import fish_script
from memload.cli.main import parser
from memload.cli.output import answer

_FILES = frozenset(["path", "paths", "script", "plot", "report", "log", "out", "json", "write", "mask", "table"])
_FOLDERS = frozenset(["folder", "root", "images", "masks"])


def run(options: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        ImportError: shtab is not installed, and the shell is not fish.
    """
    root = parser()
    if options.shell == "fish":
        script = fish_script(root, _FILES, _FOLDERS)
        answer(options, script, {"shell": options.shell, "script": script})
        return 0
    try:
        import shtab
    except ImportError as missing:
        raise ImportError('shtab makes the script: pip install "memload[completion]"') from missing
    for action in _actions(root):
        if action.dest in _FILES and action.choices is None:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    script = shtab.complete(root, options.shell)
    answer(options, script, {"shell": options.shell, "script": script})
    return 0


def _actions(root: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield all arguments of a parser and of the commands below it."""
    for action in root._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
