"""What the names in a method of a script are, where that does not depend on how it runs; and kinds of constants."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import TypeGuard

from memload.cli.script import Script, assigned, name_of, names_in, root_of

_RANDOM = ("numpy.random.", "random.", "torch.rand", "torch.normal", "torch.bernoulli", "torch.multinomial")
_GENERATORS = ("numpy.random.", "random.Random", "random.SystemRandom")
_OF_SETS = ("_dataset", "_data", "_set", "_ds", "_dataloader", "_loader", "_dl")
_RANDOM_METHODS = frozenset(
    [
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"),
        *("bernoulli", "multinomial"),
    ]
)


def local_of(method: ast.FunctionDef, name: str, before: int) -> tuple[int, ast.expr] | None:
    """Return the line and the value that a name in a method was last assigned above a line.

    It is None if that was never, if it depends on a condition or a loop, or if a statement changes the value in place.
    """
    above = [(line, value) for target, line, value in assigned_in(method) if target == name and line < before]
    if not name or not above or any(value in _dependent(method) for _, value in above):
        return None
    if any(changed == name and line < before for changed, line in _changed_in(method)):
        return None
    last = max(enumerate(above), key=lambda one: (one[1][0], one[0]))[1]
    return None if any(part == name and last[0] <= line < before for part, line in _in_parts(method)) else last


@functools.lru_cache(maxsize=64)
def _in_parts(method: ast.FunctionDef) -> tuple[tuple[str, int], ...]:
    """Return the names that get a part of a value, or each in turn, as in `x, y = flip(x, y)`, with the lines."""
    targets = [target for node in ast.walk(method) for target, _ in _assignments(node) if not name_of(target)]
    targets += [node.target for node in ast.walk(method) if isinstance(node, (ast.For, ast.NamedExpr))]
    return tuple((name, target.lineno) for target in targets for name in names_in(target))


@functools.lru_cache(maxsize=64)
def _changed_in(method: ast.FunctionDef) -> tuple[tuple[str, int], ...]:
    """Return the names whose values statements of a method change in place, or may change, with the lines."""
    found = []
    for node in ast.walk(method):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [(root_of(one), node.lineno) for one in targets if isinstance(one, ast.Subscript)]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and name_of(node.value.func) != "print":
            given = [*node.value.args, *(one.value for one in node.value.keywords)]
            called = node.value.func.value if isinstance(node.value.func, ast.Attribute) else node.value.func
            found += [(root_of(one), node.lineno) for one in [called, *given]]
    return tuple((name, line) for name, line in found if name and name != "self")


@functools.lru_cache(maxsize=64)
def _dependent(method: ast.FunctionDef) -> frozenset[ast.AST]:
    """Return what stands inside of loops, and of conditions that are more than whether an attribute is given."""
    return frozenset(
        inner
        for node in ast.walk(method)
        if isinstance(node, (ast.For, ast.While, ast.Try))
        or (isinstance(node, ast.If) and not (_of_attributes(node.test) and _only_calls_attributes(node)))
        for inner in ast.walk(node)
    )


def _of_attributes(test: ast.expr) -> bool:
    """Return whether a test asks nothing but attributes of the object, as `if self.transform is not None` does."""
    names = {one.id for one in ast.walk(test) if isinstance(one, ast.Name)}
    return names == {"self"} and not any(isinstance(one, ast.Call) for one in ast.walk(test))


def _only_calls_attributes(condition: ast.If) -> bool:
    """Return whether what a condition assigns to names are calls of attributes, as `x = self.transform(x)` is."""
    return not condition.orelse and all(
        name_of(target).startswith("self.") or (isinstance(value, ast.Call) and name_of(value.func).startswith("self."))
        for statement in condition.body
        for inner in ast.walk(statement)
        for target, value in _assignments(inner)
    )


@functools.lru_cache(maxsize=64)
def assigned_in(method: ast.FunctionDef) -> tuple[tuple[str, int, ast.expr], ...]:
    """Return the names that a method assigns to, the line of each, and the value."""
    return tuple(
        (name_of(target), value.lineno if isinstance(statement, ast.With) else getattr(statement, "lineno", 0), value)
        for statement in ast.walk(method)
        for target, value in _assignments(statement)
    )


def _assignments(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        yield from assigned(statement)
    elif isinstance(statement, ast.AugAssign):
        yield statement.target, ast.copy_location(ast.BinOp(statement.target, statement.op, statement.value), statement)
    elif isinstance(statement, ast.With):
        yield from ((one.optional_vars, one.context_expr) for one in statement.items if one.optional_vars is not None)


def free_name(script: Script, wanted: str) -> str:
    """Return a name that code beside a script's own may assign to: the wanted one, or one with a number behind it."""
    nodes = list(script.nodes)
    methods = [one for made in nodes if isinstance(made, ast.ClassDef) for one in made.body]
    local = {id(name) for one in methods if isinstance(one, ast.FunctionDef) for name in locals_of(one)}
    turns = [one.target for one in nodes if isinstance(one, (ast.For, ast.comprehension))]
    of_turns = [name for target in turns for name in ast.walk(target) if isinstance(name, ast.Name)]
    names = [one for one in nodes if isinstance(one, ast.Name) and id(one) not in local]
    in_turns = {id(name) for name in of_turns}
    otherwise = {one.id for one in names if isinstance(one.ctx, ast.Store) and id(one) not in in_turns}
    only_in_turns = {name.id for name in of_turns} - otherwise  # which each loop assigns again
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    defined = {one.name for one in nodes if isinstance(one, kinds)} | script.imported.keys()
    taken = ({one.id for one in names} - only_in_turns) | defined
    numbered = (f"{wanted}_{number}" for number in range(2, 1000))
    return wanted if wanted not in taken else next(name for name in numbered if name not in taken)


def locals_of(method: ast.FunctionDef) -> list[ast.Name]:
    """Return the places in a method of the names that it assigns to, or has as arguments."""
    nodes = [node for node in ast.walk(method) if isinstance(node, ast.Name)]
    own = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(method) if isinstance(node, ast.arg)}
    shared = {name for node in ast.walk(method) if isinstance(node, ast.Global) for name in node.names}
    return [node for node in nodes if node.id in own - shared]


def _sets_of(script: Script) -> list[ast.Call]:
    """Return the calls that make datasets which may be stored: of the script's own classes, and of torchvision."""
    classes = {node.name: node for node in script.nodes if isinstance(node, ast.ClassDef)}
    own = {
        name
        for name, made in classes.items()
        if any(isinstance(one, ast.FunctionDef) and one.name == "__getitem__" for one in made.body)
        or any(script.meaning(base).endswith("Dataset") for base in made.bases)
    }
    calls = [node for node in script.nodes if isinstance(node, ast.Call)]
    found = [
        one for one in calls if script.called(one) in own or script.called(one).startswith("torchvision.datasets.")
    ]
    return sorted(found, key=lambda one: (one.lineno, one.col_offset))


def stem_of(script: Script, call: ast.Call) -> str:
    """Return what tells a dataset from others of the script, such as "train" of `train_data`; "" of the only one."""
    sets = _sets_of(script)
    if len(sets) < 2:
        return ""
    stems = [_own_stem(script, one) for one in sets]
    place = next((place for place, one in enumerate(sets) if one is call), 0)
    before = stems[:place].count(stems[place])
    return f"{stems[place]}_{before + 1}" if before else stems[place]


def name_of_set(script: Script, call: ast.Call) -> str:
    """Return the name that the script gives to a dataset, or one that is free."""
    stem = stem_of(script, call)
    return script.name_for(call) or free_name(script, f"{stem}_dataset".lstrip("_"))


def place_of(script: Script, call: ast.Call) -> str:
    """Return where the code stands that makes a dataset in another way than a call does."""
    if not script.name_for(call):
        own = _names_of_turns(script, call)
        if own:
            made = f"in a function of {', '.join(own)} that returns `{name_of_set(script, call)}`"
            return f"{made}, called in the place of {ast.unparse(call)}"
        first, _ = script.lines_around(call)
        return f"above line {first}, with `{name_of_set(script, call)}` in the place of {ast.unparse(call)}"
    return lines_of_set(script, call)


def _names_of_turns(script: Script, call: ast.Call) -> list[str]:
    """Return the names in a call that comprehensions around it assign to, which code above their line does not have."""
    around = [one for one in script.nodes if any(inner is call for inner in ast.walk(one))]
    loops = [loop for one in around for loop in getattr(one, "generators", [])]
    assigned = {name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    return [*dict.fromkeys(one.id for one in ast.walk(call) if isinstance(one, ast.Name) and one.id in assigned)]


def lines_of_set(script: Script, call: ast.Call) -> str:
    """Return that code stands in the place of the statement in which a call makes a dataset."""
    first, last = script.lines_around(call)
    return f"in the place of line {first}" if first == last else f"in the place of lines {first} to {last}"


def _own_stem(script: Script, call: ast.Call) -> str:
    loader = next((one.name for one in script.loaders if one.given.get("dataset") is call), "")
    named = script.name_for(call) or loader or next(_names_of_parts(script, call), "")
    name = named.rpartition(".")[2] or script.called(call).rpartition(".")[2].lower()
    short = next((name.removesuffix(end) for end in _OF_SETS if name.endswith(end)), name)
    return short.strip("_") or name


def _names_of_parts(script: Script, call: ast.Call) -> Iterator[str]:
    """Yield what a dataset is called in an assignment of several: `a` of `a, b = x, y`, `a` of `sets["a"] = x`."""
    statements = [one for one in script.nodes if isinstance(one, ast.Assign)]
    for target, value in (pair for one in statements for pair in assigned(one)):
        if value is call and name_of(target):
            yield name_of(target)
        keys = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
        named = [key for key, one in keys if key is not None and one is call]
        named += [target.slice] if value is call and isinstance(target, ast.Subscript) else []
        texts = [one.value for one in named if isinstance(one, ast.Constant)]
        yield from (text for text in texts if isinstance(text, str) and text.isidentifier())


def draws_random(script: Script, node: ast.AST) -> bool:
    """Return whether a node is a call that draws random numbers, or that makes a generator of them."""
    if not isinstance(node, ast.Call):
        return False
    if script.called(node).startswith(_RANDOM):
        return True
    return isinstance(node.func, ast.Attribute) and node.func.attr in _RANDOM_METHODS


def is_generator(script: Script, node: ast.AST | None) -> bool:
    """Return whether an expression makes a generator of random numbers, of numpy or of Python."""
    return script.called(node).startswith(_GENERATORS)


def is_none(node: ast.expr) -> bool:
    """Return whether an expression is None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    """Return whether an expression is a text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def quoted(text: str) -> str:
    """Return the code of a text, in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
