"""Which loops of a script are over which of its loaders, also through its functions.

loader = DataLoader(...)   -> the name
f(loader)                  -> the name of the argument of f
return a, b; x, y = f()    -> the names that are assigned
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memload.cli.script import Loader, Script, name_of, names_in, root_of

_WRAPPERS = frozenset(["enumerate", "iter", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.rich.tqdm"])
_DEPTH = 3


@dataclass(frozen=True)
class Loop:
    """A `for` over loaders, in a statement or in a comprehension.

    Attributes:
        target: what its batches are assigned to.
        body: what it does with each.
        loaders: the loaders that it may be over: several where a function has them as an argument.
    """

    target: ast.expr
    body: Sequence[ast.AST]
    loaders: tuple[Loader, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names that batches, or their parts, are given."""
        return frozenset(names_in(self.target))


def loops_of(script: Script) -> Iterator[Loop]:
    """Yield the `for` loops over loaders of this script, also where functions take or return them."""
    by_name: dict[str, list[Loader]] = {}
    for loader in (one for one in script.loaders if one.name):
        by_name.setdefault(loader.name, []).append(loader)
    for _ in range(_DEPTH):  # functions that are given, or return, what another one returned
        for name, given in [*_as_results(script, by_name), *_as_arguments(script, by_name)]:
            known = by_name.setdefault(name, [])
            known += [one for one in given if one not in known]
    for node in script.nodes:
        turns = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        body = node.body if isinstance(node, ast.For) else [node]
        for turn in turns:
            source, target = turn.iter, turn.target
            while isinstance(source, ast.Call) and source.args and script.called(source) in _WRAPPERS:
                if script.called(source) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                    target = target.elts[1]
                source = source.args[0]
            if root_of(source) in by_name:
                yield Loop(target, body, tuple(by_name[root_of(source)]))


def _as_arguments(script: Script, by_name: dict[str, list[Loader]]) -> Iterator[tuple[str, list[Loader]]]:
    """Yield the names that loaders have inside functions of the script that they are given to."""
    functions = {node.name: node.args.args for node in script.nodes if isinstance(node, ast.FunctionDef)}
    for node in script.nodes:
        if isinstance(node, ast.Call) and name_of(node.func) in functions:
            parameters = [one.arg for one in functions[name_of(node.func)]]
            given = [*zip(parameters, node.args, strict=False), *((one.arg, one.value) for one in node.keywords)]
            yield from ((name, by_name[root_of(value)]) for name, value in given if name and root_of(value) in by_name)


def _as_results(script: Script, by_name: Mapping[str, list[Loader]]) -> Iterator[tuple[str, list[Loader]]]:
    """Yield the names of functions that return loaders, and those that their results are assigned to."""
    returned: dict[str, list[ast.expr]] = {}
    for function in (one for one in script.nodes if isinstance(one, ast.FunctionDef)):
        values = [one.value for one in ast.walk(function) if isinstance(one, ast.Return) and one.value is not None]
        returned.setdefault(function.name, []).extend(values)
    for name, values in returned.items():
        if found := [loader for value in values for loader in _loaders_in(script, value, by_name)]:
            yield name, found
    for node in (one for one in script.nodes if isinstance(one, ast.Assign)):
        values = returned.get(name_of(node.value.func), []) if isinstance(node.value, ast.Call) else [node.value]
        for target in node.targets:
            for part, given in (pair for value in values for pair in _pairs(target, value)):
                if found := _loaders_in(script, given, by_name):
                    yield from ((name, found) for name in names_in(part))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is assigned with its value, one by one where both are tuples."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _loaders_in(script: Script, value: ast.expr, by_name: Mapping[str, list[Loader]]) -> list[Loader]:
    """Return the loaders that a value is, or that a tuple, list or dict has."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Dict)):
        parts = value.values if isinstance(value, ast.Dict) else value.elts
        return [loader for part in parts for loader in _loaders_in(script, part, by_name)]
    made = [one for one in script.loaders if one.call is value]
    value = value.value if isinstance(value, ast.Subscript) else value  # an element of a dict or tuple of loaders
    is_whole = name_of(value) or (isinstance(value, ast.Call) and isinstance(value.func, ast.Name))
    return made or (by_name.get(root_of(value), []) if is_whole else [])
