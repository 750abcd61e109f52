"""Says errors in the words of the command line, where Python's own name an argument: `--key` for `key=[...]`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_VALUE = r"""\[[^]]*\]|\([^)]*\)|\{[^}]*\}|"[^"]*"|'[^']*'|[\w.]*\w"""
_ARGUMENT = re.compile(rf"(?<![\w./=-])([a-z][a-z_]*)=(?=((?:{_VALUE})?))\2(?![=/])")
_SUBJECT = re.compile(r"^([a-z][a-z_]*)(?= (?:is|must|takes)\b)")
_ITEM = re.compile(r"""["']([^"']*)["'](?:: *["']?([^"',}]*)["']?)?""")
_OF_HEIGHT_AND_WIDTH = ("--size", "--crop")  # options whose values are 480x640


def in_options(text: str, options: Collection[str], given: Sequence[str] = ()) -> str:
    """Return an error with arguments of Python as options, if the command has these.

    What stands in the parentheses of a call is a program in Python, and stays; so does what was given, such as a path
    with a `=` in it.

    Args:
        text: the error.
        options: those of the command, such as "--key".
        given: the words of the command line.

    Example:
        >>> in_options("x.npz: pick those that belong together by key=[...], or call f(key='x')", ["--key"])
        "x.npz: pick those that belong together by --key, or call f(key='x')"
        >>> in_options("as in cast={'data': 'bfloat16'}; append=True adds", ["--cast", "--append"])
        'as in --cast data=bfloat16; --append adds'
    """

    def said(found: re.Match[str]) -> str:
        option, place = _named(found[1]), found.start()
        stays = option not in options or calls[place] or any(begun.startswith(word, place) for word in given)
        return found[0] if stays else _said(option, found[2])

    begun = _SUBJECT.sub(lambda found: option if (option := _named(found[1])) in options else found[1], text)
    calls = _in_calls(begun)
    return _ARGUMENT.sub(said, begun)


def _named(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def _said(option: str, value: str) -> str:
    """Return an option with its value, once for each of several."""
    if value.startswith(("[", "{")):
        pairs = _ITEM.findall(value)
        return " ".join(f"{option} {name}{other and f'={other}'}" for name, other in pairs) or option
    if value.startswith("("):
        value = value[1:-1].replace(" ", "").rstrip(",").replace(",", "x" if option in _OF_HEIGHT_AND_WIDTH else ",")
    return f"{option} {value.strip(chr(34) + chr(39))}" if value not in ("", "True", "...") else option


def _in_calls(text: str) -> list[bool]:
    """Return for each character whether it stands in the parentheses of a call, as `f(x)` has them."""
    opened: list[bool] = []
    inside = []
    for place, letter in enumerate(text):
        inside.append(any(opened))
        if letter == "(":
            opened.append(place > 0 and (text[place - 1].isalnum() or text[place - 1] == "_"))
        elif letter == ")" and opened:
            opened.pop()
    return inside
