"""What an expression does to numbers, step by step, and the `memload.Cast` that does the same.

x.float() / 255, with x rows of an array -> a base, x, and steps: to torch.float32, divided by 255
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memload.cli.script import Script

_NUMBERS = {"float": "torch.float32", "half": "torch.float16", "bfloat16": "torch.bfloat16", "double": "torch.float64"}
_DTYPES = frozenset(["float32", "float16", "bfloat16", "float64"])
_OF_TENSORS = frozenset(
    [
        *("torch.from_numpy", "torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor"),
        *("numpy.asarray", "numpy.array", "numpy.ascontiguousarray", "numpy.float32", "numpy.copy"),
    ]
)
"""Calls that leave numbers as they are, but for a dtype."""
_SAME = frozenset(["contiguous", "clone", "copy", "numpy", "detach", "cpu", "item"])
_ORDER = {"scale": 0, "offset": 1, "mean": 2, "std": 3}
"""The options of a Cast in the order in which it computes."""
_OPERATIONS = {ast.Mult: "scale", ast.Add: "offset", ast.Sub: "mean", ast.Div: "std"}


@dataclass(frozen=True)
class Step:
    """One step: an option of a Cast with its code, a "dtype", "NCHW", or an "other" with the code of the whole."""

    kind: str
    code: str = ""


def step_of(script: Script, node: ast.expr, constant: Callable[[ast.expr], str]) -> tuple[ast.expr, list[Step]] | None:
    """Return the operand of an expression and what is done to it; None for what is no step.

    Args:
        script: the script.
        node: the expression.
        constant: gives the code of a number, or of one for each channel, outside of where the expression stands; ""
            if it is none.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        kind = _OPERATIONS[type(node.op)]
        if code := constant(node.right):
            return node.left, [Step(kind, code)]
        if kind in ("scale", "offset") and (code := constant(node.left)):
            return node.right, [Step(kind, code)]
        return node.left, [Step("other", ast.unparse(node))]
    if not isinstance(node, ast.Call):
        return None
    called = script.called(node)
    if called in _OF_TENSORS and node.args:
        given = [*node.args[1:], *(one.value for one in node.keywords if one.arg == "dtype")]
        implied = "torch.float32" if called.endswith(("float32", "FloatTensor", ".Tensor")) else ""
        return node.args[0], [Step("dtype", dtype) for dtype in [*map(dtype_of, given), implied] if dtype]
    if isinstance(node.func, ast.Attribute):
        steps = _of_method(script, node, node.func.attr)
        operand = (
            node.args[0] if script.called(node).startswith(("numpy.", "torch.")) and node.args else node.func.value
        )
        return operand, [Step("other", ast.unparse(node))] if steps is None else steps
    return None


def _of_method(script: Script, call: ast.Call, name: str) -> list[Step] | None:
    if name in _SAME:
        return []
    if name in _NUMBERS and not call.args:
        return [Step("dtype", _NUMBERS[name])]
    if name in ("to", "type", "astype"):
        dtypes = [dtype_of(one) for one in [*call.args, *(k.value for k in call.keywords if k.arg == "dtype")]]
        return [Step("dtype", one) for one in dtypes if one] or None
    if name in ("div", "div_", "mul", "mul_", "sub", "sub_", "add", "add_") and len(call.args) == 1:
        kinds = {"div": "std", "mul": "scale", "sub": "mean", "add": "offset"}
        number = call.args[0]
        return [Step(kinds[name.rstrip("_")], ast.unparse(number))] if isinstance(number, ast.Constant) else None
    axes = ast.unparse(ast.Tuple(list(call.args), ast.Load())) if call.args else ""
    if name in ("permute", "transpose", "moveaxis"):
        given = axes.replace("(", "").replace(")", "").replace(" ", "").rstrip(",").split(",")
        numbers = given[1:] if script.called(call).startswith(("numpy.", "torch.")) else given
        if numbers == ["2", "0", "1"] or (name == "moveaxis" and numbers in (["-1", "0"], ["2", "0"])):
            return [Step("NCHW")]
    return None


def dtype_of(node: ast.expr) -> str:
    """Return the dtype of a Cast for an expression such as `torch.float32`, `np.float32` or `"float32"`; "" if none."""
    name = ast.unparse(node).rpartition(".")[2].strip("'\"")
    name = {"float": "float32", "half": "float16", "double": "float64", "FloatTensor": "float32"}.get(name, name)
    return f"torch.{name}" if name in _DTYPES else ""


def cast_of(steps: Sequence[Step]) -> tuple[str, list[str]]:
    """Return the code of the Cast that does the steps, and the code of what it does not do.

    The Cast is "" where there is nothing for one to do. Steps behind one that no Cast does are left out of it, too.
    """
    options: dict[str, str] = {}
    dtype, planes = "", False
    rest: list[str] = []
    for step in steps:
        if step.kind == "dtype" and not rest:
            dtype = step.code
        elif step.kind == "NCHW" and not rest and not planes:
            planes = True
        elif step.kind in _ORDER and not rest and all(_ORDER[one] < _ORDER[step.kind] for one in options):
            options[step.kind] = step.code
        else:
            rest.append(step.code or step.kind)
    if not (dtype or options):
        return "", ["permute(2, 0, 1)"] * planes + rest
    listed = "".join(f", {kind}={code}" for kind, code in options.items())
    order = ', channels=-1, layout="NCHW"' if planes else ""
    return f"memload.Cast({dtype or 'torch.float32'}{listed}{order})", rest
