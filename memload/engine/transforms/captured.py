"""What a function refers to beside its arguments, read in its code."""

from __future__ import annotations

import dis
import functools
import warnings
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_SEEDING = ("manual_seed", "seed", "set_rng_state", "fork_rng")  # of torch.random; torch may wrap them in others


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


def imports_in(code: CodeType) -> Iterator[tuple[str, int]]:
    """Yield the modules that a function's code imports: the name, and the level of a relative import, 0 if absolute."""
    for one in codes_of(code):
        steps = list(dis.get_instructions(one))
        for at, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":  # the level and the names to take are put on the stack before
                yield step.argval, int(steps[at - 2].argval)


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


def warn_of_seeding(fn: Any, who: str) -> None:
    """Warn if a function seeds torch's generator of the process, which changes nothing of what a row draws.

    Args:
        fn: what is to run in threads; itself, and functions of the same package that it names, are read.
        who: what takes it, for the message.
    """
    try:
        name = seeding_call(fn)
    except Exception:  # the attributes of anybody's objects may raise; a function that cannot be read still runs
        return
    if name is not None:
        called = getattr(fn, "__qualname__", type(fn).__name__)
        warnings.warn(
            f"{who} {called} calls torch.{name}, which acts on the generator of the whole process: it changes nothing "
            "of what a row draws in memload's threads, so that code which seeds twice to cut an image and its mask "
            "alike cuts them differently. Draw once for both, or give the function a parameter named generator and "
            "seed that one; ds.map(fn, in_processes=True) has generators of its own",
            stacklevel=4,
        )


def seeding_call(fn: Any) -> str | None:
    """Return the name of a function that seeds torch's generator of the process, if one is found; None otherwise.

    It is looked for by its global name in the code of a function, in what that captures, and in functions of the same
    package that it names. Calls by other ways, such as methods of an object, are not found.
    """
    waiting, seen = [fn], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
            continue
        value = _function_of(value)
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if value.__module__ == "torch.random" and value.__name__ in _SEEDING:
            return str(value.__name__)
        if _package(value) == "torch":
            continue  # torch's own functions put back what they seed
        named = [one for one in _globals_named(value) if _package(one) in ("torch", _package(value))]
        waiting += [*named, *captured_values(value).values()]
    return None


def _function_of(value: Any) -> FunctionType | None:
    if isinstance(value, torch.nn.Module):
        value = getattr(type(value), "forward", None)
    elif not isinstance(value, FunctionType | MethodType | type):
        value = getattr(type(value), "__call__", None)  # noqa: B004 - the function behind it is read
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


def _globals_named(fn: FunctionType) -> Iterator[Any]:
    """Yield the values of global names in a function's code, and of attributes of modules, as in torch.random.seed."""
    for code in codes_of(fn.__code__):
        value: Any = None
        for step in dis.get_instructions(code):
            if step.opname in _GLOBAL:
                value = fn.__globals__.get(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, ModuleType):
                value = vars(value).get(step.argval)  # a module may import more when it is asked for an attribute
            else:
                value = None
            if value is not None:
                yield value


def _package(value: Any) -> str | None:
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else None
