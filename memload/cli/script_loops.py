"""What the loops of a script do with each batch that a loader could do ahead of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memload.cli.script import Loader, Loop, Script, Verdict, name_of, root_of
from memload.cli.script_data import is_move
from memload.cli.script_steps import Step, done_by, step_of

_NUMBERS = frozenset(["float", "half", "bfloat16", "double"])


@dataclass(frozen=True)
class Work:
    """What one line of a loop does with a batch, and what the loader does instead."""

    line: int
    loader: Loader
    why: str
    change: tuple[str, ...]


def work_of_loops(script: Script, verdict: Callable[[Loader], Verdict]) -> Iterator[Work]:
    """Yield the work of each line, first what moves batches and then what converts them, in the order of lines.

    Args:
        script: the script.
        verdict: gives what is known of a loader's dataset.
    """
    seen = set()
    loops = sorted(script.loops(), key=lambda one: one.node.lineno)
    for loop in loops:
        calls = [
            node
            for statement in loop.node.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if root_of(node.func.value) in loop.names
        ]
        for call in sorted(calls, key=lambda one: (one.lineno, not is_move(one))):
            for order, told in enumerate((_moved(script, loop, call), _converted(script, loop, call, verdict))):
                if told is not None and (call.lineno, order) not in seen:
                    seen.add((call.lineno, order))
                    yield Work(call.lineno, loop.loader, *told)


def _moved(script: Script, loop: Loop, call: ast.Call) -> tuple[str, tuple[str, ...]] | None:
    if not is_move(call):
        return None
    assert isinstance(call.func, ast.Attribute)
    given = [*call.args, *(one.value for one in call.keywords if one.arg == "device")]
    device = '"cuda"' if call.func.attr == "cuda" or not given else ast.unparse(given[0])
    later = script.line_after(device, loop.loader.call.lineno)
    order = f"; line {later} makes {device}, and has to come before line {loop.loader.call.lineno}" if later else ""
    return "the loader can have batches on the device ahead of the loop; then this has nothing to do", (
        f"device={device}  # in FastLoader{order}",
    )


def _converted(
    script: Script, loop: Loop, call: ast.Call, verdict: Callable[[Loader], Verdict]
) -> tuple[str, tuple[str, ...]] | None:
    assert isinstance(call.func, ast.Attribute)
    name = call.func.attr
    given = [ast.unparse(one) for one in [*call.args, *(k.value for k in call.keywords if k.arg == "dtype")]]
    if name not in _NUMBERS and not (name == "to" and any("float" in one for one in given)):
        return None
    whole, steps = _around(script, loop, call)
    cast = done_by(steps).cast
    field = _field(whole, loop, verdict(loop.loader))
    return "the loader can convert while it gathers, together with a scale, mean and std", (
        f"cast={{{field or 'FIELD'}: {cast or 'memload.Cast(torch.float32)'}}}  # in FastLoader"
        + ("" if field else "; FIELD: a field's name, or 0, 1 in tuples"),
    )


def _around(script: Script, loop: Loop, call: ast.Call) -> tuple[ast.expr, list[Step]]:
    """Return the value of a batch that a call converts, and the steps of the largest expression that does only that."""
    best: tuple[ast.expr, list[Step]] = (call, [])
    for statement in loop.node.body:
        for node in (one for one in ast.walk(statement) if isinstance(one, ast.expr)):
            if any(inner is call for inner in ast.walk(node)):
                base, steps = _steps(script, loop, node)
                done = done_by(steps)
                of_rows = done.methods or any(step.kind == "NCHW" for step in steps)  # axes here are those of a batch
                if base is not None and len(steps) > len(best[1]) and done.whole and not of_rows:
                    best = base, steps
    return best


def _steps(script: Script, loop: Loop, node: ast.expr) -> tuple[ast.expr | None, list[Step]]:
    if isinstance(node, (ast.Name, ast.Subscript)) and root_of(node) in loop.names:
        return node, []
    if is_move(node):
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Attribute)
        base, before = _steps(script, loop, node.func.value)
        dtypes = step_of(script, node, lambda _: "")
        return base, [*before, *(one for one in (dtypes[1] if dtypes else []) if one.kind == "dtype")]
    step = step_of(script, node, lambda one: ast.unparse(one) if _is_number(script, one) else "")
    if step is None:
        return None, []
    base, before = _steps(script, loop, step[0])
    return base, [*before, *step[1]]


def _is_number(script: Script, node: ast.expr) -> bool:
    value = script.value_of(node, node.lineno)
    return isinstance(value, ast.Constant) and isinstance(value.value, (int, float))


def _field(node: ast.expr, loop: Loop, verdict: Verdict) -> str:
    """Return the code of the field, by its name or place, that a value of a batch is; "" if unknown."""
    place: object = None
    targets = loop.node.target
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        place = node.slice.value
    elif isinstance(node, ast.Name):
        inner = [one for one in ast.walk(targets) if isinstance(one, ast.Tuple)]
        elements = [name_of(one) for one in inner[-1].elts] if inner else []
        place = elements.index(node.id) if node.id in elements else None
    if isinstance(place, int) and place < len(verdict.fields):
        place = verdict.fields[place]
    elif isinstance(place, int):
        return ""
    return "" if place is None else repr(place).replace("'", '"')
