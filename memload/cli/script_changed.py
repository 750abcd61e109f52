"""Which lines change a dataset of a script after it is made, so that the call that makes it does not say what it is.

val = Rows(x, y)
val.scale = 5.0     -> line 2 sets val.scale
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memload.cli.script import LOADERS, Script, name_of, names_in
from memload.cli.script_names import assigned_in
from memload.cli.script_values import given_to

_DEPTH = 8
_PARTS = ("random_split", "Subset", "ConcatDataset")
_CHANGING = frozenset(["append", "extend", "insert", "pop", "remove", "sort", "reverse", "clear", "update"])
"""Methods of lists and dicts that change them; those of tensors end with `_`."""


def not_followed(script: Script, call: ast.Call) -> str:
    """Return the sentence that names the lines which change a dataset after a call has made it; "" without any."""
    changes = sorted(set(_changes(script, call)))
    if not changes:
        return ""
    told = ", ".join(f"line {line} {what}" for line, what in changes)
    return (
        f"not followed: {told}, after {ast.unparse(call)} is made; code in its place would be without that: have it in "
        "the class or in its arguments, and run memload init again"
    )


def _changes(script: Script, call: ast.Call) -> Iterator[tuple[int, str]]:
    """Yield the lines that change the dataset that a call makes, and what each does."""
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and _is(script, node.value, call):
            yield node.lineno, f"sets {ast.unparse(node)}"
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Attribute) and _is(script, node.value.value, call):
                yield node.lineno, f"sets {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and name_of(node.func) == "setattr" and node.args:
            if _is(script, node.args[0], call):
                yield node.lineno, f"calls {ast.unparse(node)}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _changes_by(script, node.value, call):
            yield node.lineno, f"calls {ast.unparse(node)}"


def _changes_by(script: Script, statement: ast.Call, call: ast.Call) -> bool:
    """Return whether a statement calls a method that changes the dataset, or an attribute of it in place."""
    function = statement.func
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Attribute) and (function.attr in _CHANGING or function.attr.endswith("_")):
        return _is(script, function.value.value, call)
    made = script.class_named(script.called(call))
    methods = [] if made is None else [one for one in made.body if getattr(one, "name", "") == function.attr]
    sets = any(
        target.startswith("self.")
        for method in methods
        if isinstance(method, ast.FunctionDef)
        for target, _, _ in assigned_in(method)
    )
    return sets and _is(script, function.value, call)


def _is(script: Script, node: ast.expr | None, call: ast.Call, inside: bool = False, depth: int = 0) -> bool:
    """Return whether an expression is the dataset that a call makes; with `inside`, or has it as a part."""
    if node is call:
        return True
    if node is None or depth > _DEPTH or name_of(node) in ("self", "cls"):
        return False
    found = _meant(script, node, inside)
    inside = inside or (isinstance(node, ast.Attribute) and node.attr == "dataset")
    return any(_is(script, one, call, inside, depth + 1) for one in found)


def _meant(script: Script, node: ast.expr, inside: bool) -> list[ast.expr]:
    """Return what an expression may stand for: the value of a name, elements, a part of a loader or a Subset."""
    if isinstance(node, ast.Call):
        has_parts = script.called(node) in LOADERS or script.called(node).rpartition(".")[2] in _PARTS
        named = [one.value for one in node.keywords if one.arg in ("dataset", "datasets")]
        return [*node.args, *named][:1] if inside and has_parts else []
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if isinstance(node, ast.Subscript):
        return [value for _, value in script.elements(node, node.lineno)] or [node.value]
    value = script.value_of(node, node.lineno) if name_of(node) else None
    if value is not None and value is not node:
        return [value]
    if isinstance(node, ast.Attribute) and node.attr == "dataset":
        return [node.value]
    return given_to(script, node) or [loop.iter for loop in _loops_around(script, node)]


def _loops_around(script: Script, node: ast.expr) -> Iterator[ast.For]:
    """Yield the loops around a name that assign to it."""
    for loop in script.nodes:
        if not isinstance(loop, ast.For) or name_of(node) not in [*names_in(loop.target)]:
            continue
        if any(inner is node for part in loop.body for inner in ast.walk(part)):
            yield loop
