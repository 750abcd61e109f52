"""Functions that cannot draw a random number of torch's, as far as their code can be read.

To look at each torch function that a transform calls costs it a microsecond, which on small samples is as much as the
call. So simple functions are read first. What is known not to draw is a function that calls nothing but plain Python,
torch, numpy and functions of its own kind, none of them by a name that draws, seeds, imports or looks names up.
Whatever else there is in it, it may draw.
"""

from __future__ import annotations

import builtins
import dis
import math
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from memload.engine.transforms.captured import codes_of
from memload.engine.transforms.seeding import RANDOM_NAMES

_MODULES: tuple[ModuleType, ...] = (torch, np, math)
_VALUES: tuple[type, ...] = (
    *(int, float, complex, bool, str, bytes, type(None), slice, range, type(...)),
    *(torch.Tensor, torch.dtype, torch.device, np.ndarray, np.dtype),
)
_BUILTINS = {
    *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "int"),
    *("isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed", "round", "set", "slice", "sorted"),
    *("str", "sum", "tuple", "zip", "True", "False", "None", "ValueError", "TypeError", "AssertionError"),
}
# Of whatever object: what a sample holds are tensors, arrays and numbers, and so is all that these make of them.
_OBJECTS = (torch.Tensor, np, np.ndarray, np.random.Generator, math, dict, list, tuple, str, set, int, float)
_ATTRIBUTES = {
    *(name for one in _OBJECTS for name in dir(one)),
    *(name for name, value in vars(torch).items() if isinstance(value, BuiltinFunctionType | torch.dtype)),
} - {*RANDOM_NAMES, "load", "loads", "register_hook", "rnn_relu", "rnn_tanh", "lstm", "gru", "miopen_rnn"}
_MOST = 64  # functions that are read, before it is given up


def cannot_draw(fn: Any) -> bool:
    """Whether a function is known to draw none of torch's random numbers, and to seed nothing."""
    seen: set[int] = set()
    waiting = [fn]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or type(value) in _VALUES or any(value is module for module in _MODULES):
            continue
        seen.add(id(value))
        if type(value) in (tuple, list) and len(value) < _MOST:
            waiting += value
            continue
        if type(value) is not FunctionType or len(seen) > _MOST:
            return False
        uses = _used(value)
        if uses is None:
            return False
        waiting += uses
    return True


def _used(fn: FunctionType) -> list[Any] | None:
    """What a function refers to beside its arguments; None if it does something that is not known to be harmless."""
    try:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # not yet filled
        return None
    found = [*cells, *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    for code in codes_of(fn.__code__):
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL":
                if step.argval in fn.__globals__:
                    found.append(fn.__globals__[step.argval])
                elif step.argval not in _BUILTINS or not hasattr(builtins, step.argval):
                    return None
            elif "ATTR" in step.opname or "METHOD" in step.opname:
                if step.argval not in _ATTRIBUTES or step.argval.startswith("_"):
                    return None
            elif step.opname != "KW_NAMES" and any(
                part in step.opname for part in ("GLOBAL", "IMPORT", "NAME", "CLASS")
            ):
                return None
    return found
