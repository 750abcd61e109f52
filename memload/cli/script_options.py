"""What of a script's datasets depends on how it is called: options of its command line, and its environment."""

from __future__ import annotations

import ast
import re

from memload.cli.script import Script, name_of
from memload.cli.script_values import declarations_of, given_to, names_by_turn, turn_of

_NAMES = frozenset(["args", "opt", "opts", "options", "cfg", "config", "conf", "hparams", "flags", "FLAGS"])
_OUTSIDE = frozenset(["sys.argv", "os.environ"])
_ASKED = frozenset(["os.getenv", "os.environ.get", "input"])
_PATHS = re.compile(r"root|dir|path|folder|file|data|location", re.IGNORECASE)


def turn_by_run(script: Script, call: ast.Call, made: ast.ClassDef) -> str:
    """Return what a folder's name ends with, where a call makes several datasets, in one run or from run to run."""
    turn = turn_of(script, call)
    return turn if "{NAME}" in turn else turn + "".join(f"{{{code}}}/" for code in _by_run(script, call, made)[0])


def notes_of_options(script: Script, call: ast.Call, made: ast.ClassDef | None = None) -> list[str]:
    """Return what is said of options that change the dataset of a call, and do not name its folder."""
    plain, others = _by_run(script, call, made)
    codes = ", ".join(others if made is not None else [*plain, *others])  # no class: its folder has a fixed name
    return [f"{codes} may change the data, and not the folder: give each value a folder of its own"] if codes else []


def _by_run(script: Script, call: ast.Call, made: ast.ClassDef | None = None) -> tuple[list[str], list[str]]:
    """Return the code of what tells apart the datasets that a call makes from run to run, and what only changes them.

    Args:
        script: the script.
        call: the call that makes the dataset.
        made: its class, if the script has it.
    """
    own = {} if made is None else _options_of_class(script, made, call)
    whole = {code.partition(".")[0] for code in own}  # `args`, of which a class takes `args.split`
    found = {code: plain for code, plain in options_of(script, call).items() if code not in whole} | own
    of_runs = {code: plain for code, plain in found.items() if code not in names_by_turn(script, call)}
    return [code for code in of_runs if of_runs[code]], [code for code in of_runs if not of_runs[code]]


def options_of(script: Script, node: ast.AST, depth: int = 0) -> dict[str, bool]:
    """Return the code of what in an expression the call of the script gives, and of each whether it can name a folder.

    That is an option such as `args.split`, an element of `sys.argv`, or a variable of the environment. What can name a
    folder is a number, or one of some texts; a path or any text cannot.
    """
    found: dict[str, bool] = {}
    if depth > 8:
        return found
    bases = {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and holds_options(script, part.value):
            found[ast.unparse(part)] = _names_folders(script, part.attr)
        elif (isinstance(part, ast.Subscript) and script.meaning(part.value) in _OUTSIDE) or (
            isinstance(part, ast.Call) and script.called(part) in _ASKED
        ):
            found[ast.unparse(part)] = False
        elif isinstance(part, ast.Name) and id(part) not in bases and holds_options(script, part):
            found[part.id] = False
        elif isinstance(part, ast.Name) and (values := _values(script, part)):
            inner = [options_of(script, one, depth + 1) for one in values]
            if given_to(script, part) and any(inner):
                found[part.id] = all(all(one.values()) for one in inner)  # the function around it has no other name
            else:
                found |= {code: plain for one in inner for code, plain in one.items()}
    return found


def depends_on_callers(script: Script, node: ast.expr) -> bool:
    """Return whether an expression has options, parameters of functions or attributes of `self`."""
    names = [one for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))]
    given = any(name_of(one).startswith("self.") or given_to(script, one) for one in names)
    return given or bool(options_of(script, node))


def holds_options(script: Script, node: ast.AST, depth: int = 0) -> bool:
    """Return whether a name has the options of the command line, as `args = parser.parse_args()` has."""
    if not isinstance(node, ast.Name) or depth > 8:
        return False
    values = [*_values(script, node)]
    if not values:
        return node.id in _NAMES and node.id not in script.imported
    return any(_is_parsed(one) or holds_options(script, one, depth + 1) for one in values)


def _options_of_class(script: Script, made: ast.ClassDef, call: ast.Call) -> dict[str, bool]:
    """Return the options that a class reads itself, of all options that a call gives it or of those of the script."""
    init = next((one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    names = [] if init is None else [one.arg for one in init.args.args][1:]
    given = dict(zip(names, call.args, strict=False)) | {one.arg: one.value for one in call.keywords if one.arg}
    outside = {name: one.id for name, one in given.items() if isinstance(one, ast.Name) and holds_options(script, one)}
    found = {}
    for part in ast.walk(made):
        if isinstance(part, ast.Attribute) and (base := name_of(part.value).removeprefix("self.")):
            if base in outside:
                found[f"{outside[base]}.{part.attr}"] = _names_folders(script, part.attr)
            elif base not in names and holds_options(script, part.value):
                found[ast.unparse(part)] = _names_folders(script, part.attr)
    return found


def _values(script: Script, name: ast.Name) -> list[ast.expr]:
    """Return what a name is given by calls of its function, or was last assigned."""
    value = None if (given := given_to(script, name)) else script.value_of(name, name.lineno)
    return given or [one for one in [value] if one is not None and one is not name]


def _is_parsed(value: ast.expr) -> bool:
    calls = (one.func for one in ast.walk(value) if isinstance(one, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr in ("parse_args", "parse_known_args") for one in calls)


def _names_folders(script: Script, option: str) -> bool:
    """Return whether the values of an option are numbers or single words, as those of `choices=` are."""
    for call in declarations_of(script, option):
        given = {one.arg: one.value for one in call.keywords if one.arg}
        action, kind, default = (given.get(name) for name in ("action", "type", "default"))
        if "choices" in given or name_of(kind) in ("int", "float", "bool"):
            return True
        if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
            return True
        if isinstance(default, ast.Constant) and not _PATHS.search(option):
            return default.value is not None and not re.search(r"[/\\.~]", str(default.value))
    return False
