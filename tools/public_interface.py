"""Writes tests/project/public_interface.txt, or says what users would miss: a line for each thing that they can write.

PYTHONPATH=. python tools/public_interface.py            # what was lost and what is new; exit status 1 if there is any
PYTHONPATH=. python tools/public_interface.py --record   # after a change that is meant: writes the file anew

Recorded are the names of `memload.__all__`, the arguments of functions, the arguments, methods and attributes of
classes, the classes that they are instances of, and every option of every command.
"""

from __future__ import annotations

import argparse
import ast
import enum
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memload
from memload.cli import main as cli

RECORD = Path(__file__).resolve().parent.parent / "tests" / "project" / "public_interface.txt"
OURS = "memload"  # the package whose classes are recorded
_OF_EXTRAS = frozenset(["ray"])  # packages whose classes are bases only where an extra is installed
_PROTOCOLS = frozenset(
    [
        *("__add__", "__bool__", "__call__", "__contains__", "__enter__", "__eq__", "__exit__", "__getitem__"),
        *("__hash__", "__iter__", "__len__", "__next__"),
    ]
)


def names() -> Iterator[str]:
    """A line for each name of `memload.__all__`, for each method and for each attribute."""
    for name in memload.__all__:
        member = getattr(memload, name)
        if inspect.isclass(member):
            yield from of_class(name, member)
        elif callable(member):
            yield f"{name}{arguments(member)}"
        else:
            yield name


def of_class(name: str, cls: type) -> Iterator[str]:
    """The constructor, the bases, the methods and the attributes of a class, without what others' classes bring."""
    ours = [base for base in cls.__mro__ if _is_ours(base)]
    is_made_by_users = any({"__init__", "__new__"} & vars(base).keys() for base in ours)
    yield f"{name}{arguments(cls) if is_made_by_users and not issubclass(cls, enum.Enum) else ''}"
    bases = [_said(base) for base in cls.__mro__[1:-1] if base.__module__ != "typing"]
    if any(bases):
        yield f"{name} is a {', '.join(filter(None, bases))}"
    found = {}
    for base in reversed(ours):
        found |= dict.fromkeys(_attributes(base), ...) | vars(base)
    for inner, member in found.items():
        if member is not None and (not inner.startswith("_") or inner in _PROTOCOLS):
            plain = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            bound = not isinstance(member, staticmethod)
            called = f"{arguments(plain, bound=bound)}" if inspect.isfunction(plain) else ""
            yield f"{name}.{inner}{called}"


def _said(base: type) -> str:
    """How a base is known to users; "" where it is not."""
    if _is_ours(base):
        return base.__name__ if base.__name__ in memload.__all__ else ""
    origin = base.__module__.partition(".")[0]
    if origin in _OF_EXTRAS:
        return ""
    return base.__name__ if origin == "builtins" else f"{origin}.{base.__name__}"


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == OURS


def _attributes(cls: type) -> Iterator[str]:
    """What the methods of a class assign to `self`, and what its body declares without a value."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    yield target.attr
    yield from inspect.get_annotations(cls)


def arguments(member: Any, bound: bool = False) -> str:
    """The arguments of a callable without types, such as "(dataset, *, seed=0)"; "(?)" where Python knows none."""
    try:
        parameters = list(inspect.signature(member).parameters.values())[bound:]
    except ValueError:
        return "(?)"
    parts, named_only = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not named_only:
            parts.append("*")
        named_only = named_only or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        parts.append(f"{stars}{one.name}" + ("" if one.default is one.empty else f"={value(one.default)}"))
        if one.kind is one.POSITIONAL_ONLY and not any(
            other.kind is other.POSITIONAL_ONLY for other in parameters[parameters.index(one) + 1 :]
        ):
            parts.append("/")
    return f"({', '.join(parts)})"


def value(default: Any) -> str:
    """A default as a user would write it; "..." for what no user writes."""
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, tuple):
        return f"({', '.join(map(value, default))})"
    if type(default).__name__ == "dtype":
        return str(default)
    plain = default is None or isinstance(default, (bool, int, float, str, bytes))
    return repr(default) if plain else getattr(default, "__name__", "...")


def options() -> Iterator[str]:
    """A line for each argument of each command."""
    yield from options_of("memload", cli.parser())


def options_of(said: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """A line for a command itself, one for each of its arguments, and those of the commands below it."""
    yield said
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from options_of(f"{said} {name}", command)
            continue
        takes = [] if action.nargs is None else [f"nargs={action.nargs}"]
        takes += [] if action.choices is None else [f"of {'|'.join(map(str, action.choices))}"]
        takes += [] if action.default in (None, argparse.SUPPRESS) else [f"default={value(action.default)}"]
        takes += ["required"] if action.required and action.option_strings else []
        yield " ".join([said, "/".join(action.option_strings) or action.dest, *takes])


def interface() -> list[str]:
    """All lines, sorted."""
    return sorted({*names(), *options()})


def difference(kept: list[str], now: list[str]) -> str:
    """What was lost and what is new, and what to do where it is meant; empty if nothing is."""
    lost, new = ([line for line in one if line not in other] for one, other in ((kept, now), (now, kept)))
    if not lost and not new:
        return ""
    lines = [*(f"lost:  {line}" for line in lost), *(f"added: {line}" for line in new)]
    return "\n".join([*lines, "If this is meant: python tools/public_interface.py --record"])


def main(arguments: list[str] | None = None) -> int:
    """Compare or record; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the file anew")
    if parser.parse_args(arguments).record:
        RECORD.write_text("".join(f"{line}\n" for line in interface()))
        return 0
    said = difference(RECORD.read_text().splitlines(), interface())
    print(said or "nothing was lost, nothing is new")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
