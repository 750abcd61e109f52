"""What expressions of a script are, where its text says so: texts, paths, and the folders of a comprehension."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator, Mapping, Sequence

from memload.cli.script import Script, name_of

_JOINED = frozenset(["os.path.join", "pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath"])
_SAME = frozenset(["str", "os.fspath", "os.fsdecode", "os.path.normpath"])


def turns_around(script: Script, call: ast.Call) -> list[dict[str, str]]:
    """Return what the names of loops and comprehensions around a call are in each turn; [{}] of a call in none.

    Those are left out whose values are no texts that the script has.
    """
    around: list[ast.For | ast.comprehension] = []
    for node in script.nodes:
        if isinstance(node, (ast.DictComp, ast.ListComp, ast.For)) and any(inner is call for inner in ast.walk(node)):
            around += [node] if isinstance(node, ast.For) else node.generators
    turns: list[dict[str, str]] = [{}]
    for part in around:
        given = script.value_of(part.iter, call.lineno)
        values = given.elts if isinstance(given, (ast.List, ast.Tuple, ast.Set)) else []
        texts = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        turns = [{**turn, name_of(part.target): text} for turn in turns for text in texts] or turns
    return turns


def turn_of(script: Script, call: ast.Call) -> str:
    """Return what tells the datasets apart that a call makes, as in a loop: "{name}/", or "" of one dataset.

    NAME is a text that the user has to fill in, since texts of arrays or functions, say, tell nothing apart.
    """
    turns = names_by_turn(script, call)
    return "".join(f"{{{name}}}/" for name in turns) if all(turns.values()) else "{NAME}/"


def names_by_turn(script: Script, node: ast.AST, depth: int = 0) -> dict[str, bool]:
    """Return the names in an expression whose values differ by turn, and of each whether all of them are constants.

    A turn is one of a loop or a comprehension around the expression, or a call of the function around it.
    """
    found: dict[str, bool] = {}
    for name in (one for one in ast.walk(node) if isinstance(one, ast.Name) and depth <= 8):
        if loops := list(_loops_of(script, name)):
            found[name.id] = all(_are_constants(script, one) for one in loops)
        elif given := {ast.unparse(one): one for one in given_to(script, name)}:
            inner = [names_by_turn(script, one, depth + 1) for one in given.values()]
            known = [text_of(script, one) is not None or isinstance(one, ast.Constant) for one in given.values()]
            if len(given) > 1 or any(inner):
                of_inner = [all(one.values()) if one else constant for one, constant in zip(inner, known, strict=True)]
                found[name.id] = all(of_inner)
        elif (value := script.value_of(name, name.lineno)) is not None:
            found |= names_by_turn(script, value, depth + 1)
    return found


def _loops_of(script: Script, name: ast.Name) -> Iterator[ast.expr]:
    """Yield what the loops and comprehensions around a name iterate over that assign to it."""
    for node in script.nodes:
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        targets = [inner for loop in loops for inner in ast.walk(loop.target) if isinstance(inner, ast.Name)]
        if name.id in {one.id for one in targets} and any(inner is name for inner in ast.walk(node)):
            yield from (loop.iter if isinstance(loop.target, ast.Name) else loop.target for loop in loops)


def _are_constants(script: Script, given: ast.expr) -> bool:
    """Return whether what a loop iterates over is a list of constants, or a range."""
    value = script.value_of(given, given.lineno)
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return all(isinstance(one, ast.Constant) for one in value.elts)
    return isinstance(value, ast.Call) and name_of(value.func) == "range"


def folders_of(script: Script, root: ast.expr | None, call: ast.Call) -> list[str]:
    """Return the folders that an expression names, one for each value of a comprehension around it; [] if unknown.

    Args:
        script: the script.
        root: the expression.
        call: the call that it is an argument of.
    """
    turns = turns_around(script, call)
    found = [None if root is None else text_of(script, root, turn, call.lineno) for turn in turns]
    return [*dict.fromkeys(text for text in found if text)] if found and all(found) else []


def text_of(
    script: Script, node: ast.expr, known: Mapping[str, str] | None = None, before: int = 10**9, depth: int = 0
) -> str | None:
    """Return the text, or the path, that an expression is; None if only running the script tells.

    Args:
        script: the script.
        node: the expression.
        known: what names are beside those that the script assigns.
        before: the line above which it assigns them.
        depth: how many names were followed to this expression.
    """
    if depth > 8:
        return None

    def of(part: ast.expr) -> str | None:
        return text_of(script, part, known, before, depth + 1)

    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if name_of(node):
        return (known or {}).get(name_of(node)) or next(filter(None, map(of, _meant(script, node, before))), None)
    if isinstance(node, ast.FormattedValue):
        return of(node.value) if node.conversion == -1 and node.format_spec is None else None
    if isinstance(node, ast.Subscript):
        value = script.value_of(node.value, before)
        pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
        key = of(node.slice)
        return next((of(one) for name, one in pairs if key and name is not None and of(name) == key), None)
    parts, between = _parts(script, node)
    texts = [of(part) for part in parts]
    known_texts = [text for text in texts if text is not None]
    if not texts or len(known_texts) < len(texts):
        return None
    return posixpath.join(*known_texts) if between == "/" else between.join(known_texts)


def _parts(script: Script, node: ast.expr) -> tuple[Sequence[ast.expr], str]:
    """Return what a path or a text is put together from, and what stands between; nothing of other expressions."""
    if isinstance(node, ast.JoinedStr):
        return node.values, ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        return (node.left, node.right), "" if isinstance(node.op, ast.Add) else "/"
    if not isinstance(node, ast.Call) or node.keywords:
        return (), ""
    called = script.called(node)
    if called in _JOINED or (called in _SAME and len(node.args) == 1):
        return node.args, "/"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "joinpath":
        return (node.func.value, *node.args), "/"
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("as_posix", "resolve", "absolute"):
        return (node.func.value,), ""
    return (), ""


def _meant(script: Script, node: ast.expr, before: int) -> Iterator[ast.expr]:
    """Yield the expressions that a name may stand for: what is assigned, a default, an argument of a command line."""
    value = script.value_of(node, before)
    if value is not None and value is not node:
        yield value
        return
    if isinstance(node, ast.Attribute):
        yield from _defaults_of_option(script, node.attr)
    elif len(values := given_to(script, node)) == 1:
        yield from values


def given_to(script: Script, node: ast.expr) -> list[ast.expr]:
    """Return what calls give to the parameter of a function that a name is, or its default; [] of other names.

    Calls of a class are those of its `__init__`.
    """
    classes = [one for one in script.nodes if isinstance(one, ast.ClassDef)]
    made = {id(method): one.name for one in classes for method in one.body if getattr(method, "name", "") == "__init__"}
    for function in (one for one in script.nodes if isinstance(one, ast.FunctionDef)):
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if name_of(node) not in names or not any(inner is node for inner in ast.walk(function)):
            continue
        behind = names.index(name_of(node)) - len(names) + len(function.args.defaults)
        place = names.index(name_of(node)) - (id(function) in made)  # a call does not give `self`
        default = function.args.defaults[behind : behind + 1] if behind >= 0 else []
        called = made.get(id(function), function.name)
        calls = [one for one in script.nodes if name_of(getattr(one, "func", None)) == called]
        found = [
            [*one.args[place:][:1], *(k.value for k in one.keywords if k.arg == name_of(node)), *default][:1]
            for one in calls
            if isinstance(one, ast.Call)
        ]
        return [value for values in found or [default] for value in values]
    return []


def declarations_of(script: Script, option: str) -> Iterator[ast.Call]:
    """Yield the calls of `add_argument` of argparse that declare an option, for `args.NAME`."""
    for node in script.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            flags = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if option in [flag.lstrip("-").replace("-", "_") for flag in flags]:
                yield node


def _defaults_of_option(script: Script, name: str) -> Iterator[ast.expr]:
    """Yield the default of an option of the command line."""
    for call in declarations_of(script, name):
        yield from (one.value for one in call.keywords if one.arg == "default")
