"""What an expression does to numbers, step by step, and the `memload.Cast` and methods of batches that do the same.

x.unsqueeze(0).float() / 255, with x rows of an array -> a base, x, and steps: a new axis, to torch.float32, divided by
255 -> memload.Cast(torch.float32, std=255), and batch["x"].unsqueeze(1)
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
_WHOLE = {
    **dict.fromkeys(("long", "int64", "longlong", "int_", "int"), "to(torch.int64)"),
    **{name: f"to(torch.{name})" for name in ("int32", "int16", "int8", "uint8", "bool")},
}
"""What does to a batch what a conversion to whole numbers, by the name of a method or of a dtype, does to a row."""
_SAME = frozenset(["contiguous", "clone", "copy", "numpy", "detach", "cpu"])
_ORDER = {"scale": 0, "offset": 1, "mean": 2, "std": 3}
"""The options of a Cast in the order in which it computes."""
_OPERATIONS = {ast.Mult: "scale", ast.Add: "offset", ast.Sub: "mean", ast.Div: "std"}


@dataclass(frozen=True)
class Step:
    """One step of what is done to a row.

    Attributes:
        kind: an option of a Cast, "dtype", "NCHW", "batch" for what a method of the whole batch does, "tensor" where an
            array becomes one of torch's, "number" where a row of one number becomes one of Python's, or "other".
        code: of an option or a dtype its value, of "batch" the call of the method, of "other" the whole expression.
    """

    kind: str
    code: str = ""


@dataclass(frozen=True)
class Done:
    """What does the steps of a row to a batch: first a Cast, then methods of the batch.

    Attributes:
        cast: the code of the Cast; "" where there is nothing for one to do.
        methods: the calls of methods, such as "unsqueeze(1)".
        whole: whether these are all the steps; else none is done, and a function of samples has to do all of them.
        notes: what may differ.
    """

    cast: str = ""
    methods: tuple[str, ...] = ()
    whole: bool = True
    notes: tuple[str, ...] = ()


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
    if isinstance(node, ast.Subscript) and _is_new_axis(script, node.slice):
        return node.value, [Step("batch", "unsqueeze(1)")]
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value, [Step("other", ast.unparse(node))]
    if not isinstance(node, ast.Call):
        return None
    called = script.called(node)
    if called in _OF_TENSORS and node.args:
        given = [*node.args[1:], *(one.value for one in node.keywords if one.arg == "dtype")]
        steps = [_to_dtype(one) or Step("other", ast.unparse(node)) for one in given]
        implied = called.endswith(("float32", "FloatTensor", ".Tensor"))
        made = [Step("tensor")] * called.startswith("torch.")
        return node.args[0], [*made, *steps, *[Step("dtype", "torch.float32")] * implied]
    if isinstance(node.func, ast.Attribute):
        of_module = called.startswith(("numpy.", "torch.")) and bool(node.args)
        steps_of_method = _of_method(node, node.func.attr, node.args[1:] if of_module else node.args, called)
        operand = node.args[0] if of_module else node.func.value
        return operand, [Step("other", ast.unparse(node))] if steps_of_method is None else steps_of_method
    return None


def _is_new_axis(script: Script, where: ast.expr) -> bool:
    """Return whether an index is that of `x[None]`, which puts an axis before the others."""
    is_none = isinstance(where, ast.Constant) and where.value is None
    if isinstance(where, ast.Tuple) and len(where.elts) == 2:  # x[None, ...] and x[None, :]
        rest = where.elts[1]
        is_all = isinstance(rest, ast.Slice) and rest.lower is rest.upper is rest.step is None
        is_all = is_all or (isinstance(rest, ast.Constant) and rest.value is ...)
        return is_all and _is_new_axis(script, where.elts[0])
    return is_none or script.meaning(where) == "numpy.newaxis"


def _to_dtype(node: ast.expr) -> Step | None:
    """Return the step to a dtype; None if it is none that is known here."""
    if dtype := dtype_of(node):
        return Step("dtype", dtype)
    name = ast.unparse(node).rpartition(".")[2].strip("'\"")
    return Step("batch", _WHOLE[name]) if name in _WHOLE else None


def _of_method(call: ast.Call, name: str, given: Sequence[ast.expr], called: str) -> list[Step] | None:
    """Return the steps of a method of an array, or of a function of a module, with its arguments behind the array."""
    if name in _SAME:
        return []
    if name == "item" and not call.args:
        return [Step("number")]
    if name in _NUMBERS and not call.args:
        return [Step("dtype", _NUMBERS[name])]
    if name in _WHOLE and not call.args:
        return [Step("batch", "to(torch.int32)" if name == "int" else _WHOLE[name])]
    if name in ("to", "type", "astype"):
        named = [one.value for one in call.keywords if one.arg == "dtype"]
        steps = [_to_dtype(one) for one in [*call.args, *named]]
        return [one for one in steps if one is not None] or None
    if name in ("div", "div_", "mul", "mul_", "sub", "sub_", "add", "add_") and len(given) == 1 and not call.keywords:
        kinds = {"div": "std", "mul": "scale", "sub": "mean", "add": "offset"}
        number = given[0]
        return [Step(kinds[name.rstrip("_")], ast.unparse(number))] if isinstance(number, ast.Constant) else None
    return _of_shape(name, given, called) if not call.keywords else None


def _of_shape(name: str, given: Sequence[ast.expr], called: str) -> list[Step] | None:
    """Return the step that gives a row another shape, or another order of its axes."""
    single = given[0] if len(given) == 1 and isinstance(given[0], (ast.Tuple, ast.List)) else None
    numbers = [_whole(one) for one in (single.elts if single is not None else given)]
    axes = [one for one in numbers if one is not None]
    if len(axes) < len(numbers):
        return None
    if (name in ("permute", "transpose") and axes == [2, 0, 1]) or (name == "moveaxis" and axes in ([-1, 0], [2, 0])):
        return [Step("NCHW")]
    if name in ("unsqueeze", "expand_dims", "squeeze") and len(axes) == 1:
        return [Step("batch", f"{name.replace('expand_dims', 'unsqueeze')}({_behind(axes[0])})")]
    if name in ("flatten", "ravel") and not axes:
        return [Step("batch", "flatten(1)")]
    if name in ("reshape", "view") and axes:
        shape = "flatten(1)" if axes == [-1] else f"flatten(1).unflatten(1, ({', '.join(map(str, axes))},))"
        return [Step("batch", shape.replace(",))", "))") if len(axes) > 1 else shape)]
    if name in ("permute", "transpose") and sorted(axes) == list(range(len(axes))) and len(axes) > 2:
        return [Step("batch", f"permute({', '.join(map(str, [0, *map(_behind, axes)]))})")]
    if (name in ("t", "T") and not axes) or (name in ("permute", "transpose") and axes == [1, 0]):
        return [Step("batch", "transpose(1, 2)")]
    if name == "transpose" and len(axes) == 2 and not called.startswith("numpy."):
        return [Step("batch", f"transpose({_behind(axes[0])}, {_behind(axes[1])})")]
    return None


def _behind(axis: int) -> int:
    """Return the axis of a batch that an axis of its rows is."""
    return axis + 1 if axis >= 0 else axis


def _whole(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def dtype_of(node: ast.expr) -> str:
    """Return the dtype of a Cast for an expression such as `torch.float32`, `np.float32` or `"float32"`; "" if none."""
    name = ast.unparse(node).rpartition(".")[2].strip("'\"")
    name = {"float": "float32", "half": "float16", "double": "float64", "FloatTensor": "float32"}.get(name, name)
    return f"torch.{name}" if name in _DTYPES else ""


def done_by(steps: Sequence[Step]) -> Done:
    """Return what does steps of a row to a batch."""
    options: dict[str, str] = {}
    methods: list[str] = []
    dtype, planes = "", False
    for step in (one for one in steps if one.kind not in ("tensor", "number")):
        converted = any(one.startswith("to(") for one in methods)
        of_channels = step.kind in _ORDER and step.code.startswith(("(", "["))
        if step.kind == "dtype" and not converted:
            dtype = step.code
        elif step.kind == "NCHW":
            planes = planes or not methods
            methods += ["permute(0, 3, 1, 2)"] * bool(methods)
        elif step.kind == "batch":
            methods.append(step.code)
        elif (
            step.kind in _ORDER
            and not converted
            and all(_ORDER[one] < _ORDER[step.kind] for one in options)
            and not (of_channels and (planes or methods))  # the channels are no longer the last axis
        ):
            options[step.kind] = step.code
        else:
            return Done(whole=False)
    if not (dtype or options):
        return Done(methods=(*["permute(0, 3, 1, 2)"] * planes, *methods))
    listed = "".join(f", {kind}={code}" for kind, code in options.items())
    channels = ", channels=-1" * (planes or any(code.startswith(("(", "[")) for code in options.values()))
    order = ', layout="NCHW"' * planes
    cast = f"memload.Cast({dtype or 'torch.float32'}{listed}{channels}{order})"
    return Done(cast, tuple(methods), notes=() if dtype else _of_unknown_dtype(steps))


def _of_unknown_dtype(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return what is said of arithmetic of numpy whose dtype the script does not say; nothing of that of torch."""
    first = next(place for place, step in enumerate(steps) if step.kind in _ORDER)
    if any(step.kind == "tensor" for step in steps[:first]):
        return ()
    return (
        "numpy makes float64 of whole numbers where it computes without a dtype; the cast makes float32, which models "
        "take: torch.float64 in the cast keeps the old dtype",
    )
