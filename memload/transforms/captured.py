"""What a function refers to beside its arguments, read in its code."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions that are defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def names_in(code: CodeType, *operations: str) -> tuple[str, ...]:
    """Return the names that some operations of a function's code go by, each once, in order."""
    steps = (step for one in codes_of(code) for step in dis.get_instructions(one))
    return tuple(dict.fromkeys(step.argval for step in steps if step.opname in operations))


def captured_values(fn: FunctionType) -> dict[str, Any]:
    """Return what a function brings along: captured variables and defaults, by what to call them.

    A variable that has no value yet is left out.
    """
    found: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[f"captured {name!r}"] = cell.cell_contents
        except ValueError:
            continue
    found.update({f"default {number}": value for number, value in enumerate(fn.__defaults__ or ())})
    found.update({f"default of {name!r}": value for name, value in (fn.__kwdefaults__ or {}).items()})
    return found


def global_values(fn: FunctionType) -> dict[str, Any]:
    """Return the global variables that a function reads, by name; what is built in, or not there, is left out."""
    names = names_in(fn.__code__, *_GLOBAL)
    return {f"global {name!r}": fn.__globals__[name] for name in names if name in fn.__globals__}


def imported_modules(fn: FunctionType) -> dict[str, ModuleType | None]:
    """Return the modules that a function imports when it runs, by name; None for those that are not there."""
    package = fn.__globals__.get("__package__") or ""
    names = names_in(fn.__code__, "IMPORT_NAME")
    return {f"module {name!r}": _imported(name, package) for name in names}


def _imported(name: str, package: str) -> ModuleType | None:
    for place in [name, f"{package}.{name}" if name and package else package]:  # absolute, or beside the function
        if place:
            with contextlib.suppress(ImportError):
                return importlib.import_module(place)
    return None


def attributes_used(fn: FunctionType) -> tuple[str, ...]:
    """Return the names of the attributes that a function reads, of whatever object."""
    return names_in(fn.__code__, *_ATTRIBUTE)


def modules_used(fn: Any) -> list[torch.nn.Module]:
    """Return the modules that a function computes with, as far as its code tells: itself, captured, or global.

    Containers are looked into, methods and ``functools.partial`` too, and functions that are captured or global.
    """
    found: dict[int, torch.nn.Module] = {}
    seen: dict[int, Any] = {}
    waiting = [fn]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            found[id(value)] = value
        elif isinstance(value, FunctionType):
            waiting += [*captured_values(value).values(), *global_values(value).values()]
        elif isinstance(value, MethodType):
            waiting += [value.__self__, value.__func__]
        elif isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
    return list(found.values())
