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
class _Conversion:
    """What a line of a loop converts: the field, the cast that does the same, the code, and what is left of it then."""

    field: str
    cast: str
    code: str
    left: str

    @property
    def plain(self) -> str:
        """The cast to the same dtype that does nothing else."""
        return f"{self.cast.partition(',')[0].rstrip(')')})"


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
    casts: dict[tuple[int, ...], list[tuple[int, _Conversion]]] = {}
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


def _converted(script: Script, loop: Loop, call: ast.Call, verdict: Callable[[Loader], Verdict]) -> _Conversion | None:
    """Return what a call converts to floats; None for other calls."""
    assert isinstance(call.func, ast.Attribute)
    name = call.func.attr
    given = [ast.unparse(one) for one in [*call.args, *(k.value for k in call.keywords if k.arg == "dtype")]]
    if name not in _NUMBERS and not (name == "to" and any("float" in one for one in given)):
        return None
    whole, base, steps = _around(script, loop, call)
    field = _field(_part(base, loop), loop, verdict(loop.loaders[0])) or "FIELD"
    left = base
    for move in (node for node in ast.walk(whole) if isinstance(node, ast.Call) and is_move(node)):
        assert isinstance(move.func, ast.Attribute)
        left = ast.Call(ast.Attribute(base, move.func.attr), move.args, move.keywords)
    cast = done_by(steps).cast or "memload.Cast(torch.float32)"
    return _Conversion(field, cast, ast.unparse(whole), ast.unparse(left))


def _casts(loaders: tuple[Loader, ...], found: Sequence[tuple[int, _Conversion]]) -> Iterator[Work]:
    """Yield the one cast of some loaders that does what several lines do, at the first of them."""
    casts: dict[str, set[str]] = {}
    for _, one in found:
        casts.setdefault(one.field, set()).add(one.cast)
    plain = {one.field: one.plain for _, one in reversed(found)}
    done = {field: next(iter(same)) if len(same) == 1 else plain[field] for field, same in casts.items()}
    code = f"cast={{{', '.join(f'{field}: {cast}' for field, cast in done.items())}}}  {IN_FAST_LOADER}"
    if "FIELD" in done:
        code += "; FIELD: a field's name, or 0, 1 in tuples"
    for line in sorted({line for line, _ in found}):
        first = found[0][0]
        why = _CONVERTED if line == first else f"likewise, by the cast of line {first}"
        twice = [one for at, one in found if at == line and done[one.field] != one.plain]
        again = "".join(f"; {one.code} becomes {one.left} here, since it would be done twice" for one in twice)
        yield Work(line, loaders, f"{why}{again}", (code,) * (line == first))


def _part(node: ast.expr, loop: Loop) -> ast.expr:
    """Return the name, or the element of a batch, at the beginning of an expression."""
    while not (isinstance(node, ast.Name) or (isinstance(node, ast.Subscript) and _is_batch(node.value, loop))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            break
    return node


def _is_batch(node: ast.expr, loop: Loop) -> bool:
    """Return whether an expression is the name of whole batches."""
    return isinstance(node, ast.Name) and node.id not in _elements(loop)


def _elements(loop: Loop) -> list[str]:
    """Return the names that a loop gives to the elements of a batch."""
    inner = [one for one in ast.walk(loop.target) if isinstance(one, ast.Tuple)]
    return [name_of(one) for one in inner[-1].elts] if inner else []


def _around(script: Script, loop: Loop, call: ast.Call) -> tuple[ast.expr, ast.expr, list[Step]]:
    """Return the largest expression that only converts what a call does, the value of a batch in it, and its steps."""
    best: tuple[ast.expr, ast.expr, list[Step]] = (call, call, [])
    for statement in loop.body:
        for node in (one for one in ast.walk(statement) if isinstance(one, ast.expr)):
            if any(inner is call for inner in ast.walk(node)):
                base, steps = _steps(script, loop, node)
                done = done_by(steps)
                of_rows = done.methods or any(step.kind == "NCHW" for step in steps)  # axes here are those of a batch
                if base is not None and len(steps) > len(best[2]) and done.whole and not of_rows:
                    best = node, base, steps
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
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        place = node.slice.value
    elif isinstance(node, ast.Name):
        elements = _elements(loop)
        place = elements.index(node.id) if node.id in elements else None
    mapped = any(".map(" in line for line in verdict.advice.code)  # fields of tuples of a function have no names
    if isinstance(place, int) and place < len(verdict.fields):
        place = place if mapped else verdict.fields[place]
    elif isinstance(place, int):
        return ""
    return "" if place is None else repr(place).replace("'", '"')
