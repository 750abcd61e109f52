"""What the loops of a script do with each batch that a loader could do ahead of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memload.cli.script import IN_FAST_LOADER, Loader, Script, Verdict, name_of, root_of
from memload.cli.script_data import is_move
from memload.cli.script_flow import Loop, loops_of
from memload.cli.script_steps import Step, done_by, step_of

_NUMBERS = frozenset(["float", "half", "bfloat16", "double"])
_MOVED = "the loader can have batches on the device ahead of the loop; then this has nothing to do"
_CONVERTED = "the loader can convert while it gathers, together with a scale, mean and std"


@dataclass(frozen=True)
class Work:
    """What one line of a loop does with a batch, and what the loaders do instead."""

    line: int
    loaders: tuple[Loader, ...]
    why: str
    change: tuple[str, ...]


def work_of_loops(script: Script, verdict: Callable[[Loader], Verdict]) -> Iterator[Work]:
    """Yield the work of each line, first what moves batches and then what converts them, in the order of lines.

    Args:
        script: the script.
        verdict: gives what is known of a loader's dataset.
    """
    seen = set()
    casts: dict[tuple[int, ...], list[tuple[int, tuple[str, str]]]] = {}
    for loop in sorted(loops_of(script), key=lambda one: one.target.lineno):
        calls = [
            node
            for statement in loop.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if root_of(node.func.value) in loop.names
        ]
        for call in sorted(calls, key=lambda one: (one.lineno, not is_move(one))):
            told = _moved(script, loop, call)
            if told and call.lineno not in seen:
                seen.add(call.lineno)
                yield Work(call.lineno, loop.loaders, _MOVED, told)
            cast = _converted(script, loop, call, verdict)
            known = casts.setdefault(tuple(one.call.lineno for one in loop.loaders), [])
            if cast and (call.lineno, cast) not in known:
                known.append((call.lineno, cast))
    for lines, known in casts.items():
        loaders = tuple(one for one in script.loaders if one.call.lineno in lines)
        yield from _casts(loaders, known)


def _moved(script: Script, loop: Loop, call: ast.Call) -> tuple[str, ...]:
    """Return the argument of the loaders that does what a move of a batch does; nothing of other calls."""
    if not is_move(call):
        return ()
    assert isinstance(call.func, ast.Attribute)
    given = [*call.args, *(one.value for one in call.keywords if one.arg == "device")]
    device = '"cuda"' if call.func.attr == "cuda" or not given else ast.unparse(given[0])
    first = min(one.call.lineno for one in loop.loaders)
    later = script.line_after(device, first)
    order = f"; line {later} makes {device}, and has to come before line {first}" if later else ""
    choices = [one for part in loop.body for one in ast.walk(part) if isinstance(one, ast.IfExp)]
    test = next((one.test for one in choices if any(inner is call for inner in ast.walk(one.body))), None)
    if test is not None and not loop.names & {one.id for one in ast.walk(test) if isinstance(one, ast.Name)}:
        device = f'{device} if {ast.unparse(test)} else "cpu"'
    return (f"device={device}  {IN_FAST_LOADER}{order}",)


def _converted(
    script: Script, loop: Loop, call: ast.Call, verdict: Callable[[Loader], Verdict]
) -> tuple[str, str] | None:
    """Return the field that a call converts to floats, and the cast that does the same; None for other calls."""
    assert isinstance(call.func, ast.Attribute)
    name = call.func.attr
    given = [ast.unparse(one) for one in [*call.args, *(k.value for k in call.keywords if k.arg == "dtype")]]
    if name not in _NUMBERS and not (name == "to" and any("float" in one for one in given)):
        return None
    whole, steps = _around(script, loop, call)
    return _field(whole, loop, verdict(loop.loaders[0])) or "FIELD", done_by(
        steps
    ).cast or "memload.Cast(torch.float32)"


def _casts(loaders: tuple[Loader, ...], found: Sequence[tuple[int, tuple[str, str]]]) -> Iterator[Work]:
    """Yield the one cast of some loaders that does what several lines do, at the first of them."""
    casts = {field: cast for _, (field, cast) in reversed(found)}
    fields = dict.fromkeys(field for _, (field, _) in found)
    code = f"cast={{{', '.join(f'{field}: {casts[field]}' for field in fields)}}}  {IN_FAST_LOADER}"
    if "FIELD" in fields:
        code += "; FIELD: a field's name, or 0, 1 in tuples"
    for line in sorted({line for line, _ in found}):
        first = found[0][0]
        why = _CONVERTED if line == first else f"likewise, by the cast of line {first}"
        yield Work(line, loaders, why, (code,) * (line == first))


def _around(script: Script, loop: Loop, call: ast.Call) -> tuple[ast.expr, list[Step]]:
    """Return the value of a batch that a call converts, and the steps of the largest expression that does only that."""
    best: tuple[ast.expr, list[Step]] = (call, [])
    for statement in loop.body:
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
    targets = loop.target
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        place = node.slice.value
    elif isinstance(node, ast.Name):
        inner = [one for one in ast.walk(targets) if isinstance(one, ast.Tuple)]
        elements = [name_of(one) for one in inner[-1].elts] if inner else []
        place = elements.index(node.id) if node.id in elements else None
    mapped = any(".map(" in line for line in verdict.advice.code)  # fields of tuples of a function have no names
    if isinstance(place, int) and place < len(verdict.fields):
        place = place if mapped else verdict.fields[place]
    elif isinstance(place, int):
        return ""
    return "" if place is None else repr(place).replace("'", '"')
