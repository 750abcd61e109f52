"""What a function refers to beside its arguments, read in its code."""

from __future__ import annotations

import contextlib
import dis
import functools
import random
import warnings
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_SEEDING = ("manual_seed", "seed", "set_rng_state", "fork_rng")  # of torch.random; torch may wrap them in others
_SHARED = [  # functions of Python's and numpy's generators of the process, with what they are called
    *((getattr(random, name), f"random.{name}") for name in ("seed", "setstate", "getstate")),
    *((getattr(np.random, name), f"numpy.random.{name}") for name in ("seed", "set_state", "get_state")),
]


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
    """Warn if a function seeds a generator of the process, or puts its state back.

    Torch's changes nothing of what a row draws; on Python's and numpy's, threads and the loop draw in between.

    Args:
        fn: what is to run in threads; itself, and functions of the same package that it names, are read.
        who: what takes it, for the message.
    """
    calls = seeding_calls(fn)
    if not calls:
        return
    of_torch = [name for name in calls if name.startswith("torch.")]
    shared = [name for name in calls if name not in of_torch]
    found = []
    if of_torch:
        found.append(
            f"calls {', '.join(of_torch)}, which {_acts(of_torch)} on the generator of the whole process: that changes "
            "nothing of what a row draws in memload's threads, so that code which seeds twice to cut an image and its "
            "mask alike cuts them differently. Draw once for both, or give the function a parameter named generator "
            "and seed that one"
        )
    if shared:
        found.append(
            f"calls {', '.join(shared)}, which {_acts(shared)} on a generator of the whole process: memload calls the "
            "function in one thread, unless transform_threads= says otherwise, so that no other thread of the pass "
            "draws in between; but the loop and other loaders still may, and then code that seeds twice to cut an "
            "image and its mask alike cuts them differently. Draw from a generator of the row: give the function a "
            "parameter named rng, or make one in it for each cut, random.Random(seed) or numpy.random.default_rng(seed)"
        )
    called = getattr(fn, "__qualname__", type(fn).__name__)
    instead = "; ds.map(fn, in_processes=True) has generators of its own" if who == "map:" else ""
    warnings.warn(f"{who} {called} {f'; {called} '.join(found)}{instead}", stacklevel=4)


def _acts(calls: list[str]) -> str:
    return "acts" if len(calls) == 1 else "act"


def seeds_shared_numbers(fn: Any) -> bool:
    """Whether a function seeds Python's or numpy's generator of the process, on which threads race."""
    return any(not name.startswith("torch.") for name in seeding_calls(fn))


def seeding_calls(fn: Any) -> tuple[str, ...]:
    """Return the names of functions that seed a generator of the process, as far as they are found, in order.

    They are looked for by their global names in the code of a function, in what that captures, and in functions of the
    same package that it names. Calls by other ways, such as methods of an object, are not found.
    """
    with contextlib.suppress(Exception):  # what cannot be hashed, or looked at weakly, is read each time
        if fn in _FOUND:
            return _FOUND[fn]
    try:
        found = _seeding_calls(fn)
    except Exception:  # the attributes of anybody's objects may raise; a function that cannot be read still runs
        found = ()
    with contextlib.suppress(Exception):
        _FOUND[fn] = found
    return found


_FOUND: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""What was found in functions that were read: each pass asks for it."""


def _seeding_calls(fn: Any) -> tuple[str, ...]:
    waiting, seen, found = [fn], set[int](), dict[str, None]()
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
            continue
        if (name := _seeding_name(value)) is not None:
            found[name] = None
            continue
        read = _function_of(value)
        if read is None or id(read) in seen or _package(read) == "torch":  # torch puts back what it seeds
            continue
        seen.add(id(read))
        named = [one for one in _globals_named(read) if _seeding_name(one) or _package(one) == _package(read)]
        waiting += [*named, *captured_values(read).values()]
    return tuple(found)


def _seeding_name(value: Any) -> str | None:
    """Return what a function is called if it seeds a generator of the process."""
    for one, name in _SHARED:
        if value is one:
            return name
    found = _function_of(value)
    is_torch = found is not None and found.__module__ == "torch.random" and found.__name__ in _SEEDING
    return f"torch.{found.__name__}" if found is not None and is_torch else None


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
