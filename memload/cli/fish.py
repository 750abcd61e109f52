"""The script by which fish completes commands, options and their values; shtab makes those of other shells.

complete -c memload -n 'the words so far are those of the command' -l option -x -a 'its choices' -d 'its help'
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator

_HEAD = "# Completions of memload. Copy this to ~/.config/fish/completions/memload.fish\ncomplete -c memload -f"


def fish_script(root: argparse.ArgumentParser, files: Collection[str], folders: Collection[str]) -> str:
    """Return the script of a parser and of the commands below it.

    Args:
        root: the parser.
        files: names of arguments that are paths.
        folders: names of arguments that are folders.
    """
    return "\n".join([_HEAD, *_lines(root, (), files, folders)])


def _lines(
    parser: argparse.ArgumentParser, words: tuple[str, ...], files: Collection[str], folders: Collection[str]
) -> Iterator[str]:
    """Yield the lines of a parser, whose command is these words, and of those below it."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    names = [name for group in groups for name in group.choices]
    below = " ".join(names)
    seen = [f"__fish_seen_subcommand_from {word}" for word in words]
    condition = "; and ".join([*seen, *[f"not __fish_seen_subcommand_from {below}"] * bool(below)])
    start = f"complete -c memload -n {_quoted(condition)}"
    for group in groups:
        for one in group._choices_actions:
            yield f"{start} -a {one.dest} -d {_quoted(one.help or '')}"
    for action in parser._actions:
        if action not in groups:
            yield f"{start} {_of_argument(parser, action, files, folders)}"
    for group in groups:
        for name, inner in group.choices.items():
            yield from _lines(inner, (*words, name), files, folders)


def _of_argument(
    parser: argparse.ArgumentParser, action: argparse.Action, files: Collection[str], folders: Collection[str]
) -> str:
    """Return the names of an option and what its values, or those of an argument without a name, are."""
    names = [f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in action.option_strings]
    value = ["-x"] * (action.nargs != 0 and bool(names))
    if action.choices is not None:
        value += ["-a", _quoted(" ".join(map(str, action.choices)))]
    elif action.dest in files and action.nargs != 0:
        value = ["-r"] * bool(names) + ["-F"]
    elif action.dest in folders:
        value += ["-a", "'(__fish_complete_directories)'"]
    help_text = parser._get_formatter()._expand_help(action) if action.help else ""
    return " ".join([*names, *value, "-d", _quoted(" ".join(help_text.split()))])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
