"""Hash a function or value to a short text, which is equal in other processes for the same code and contents.

The hash of a function covers its bytecode, constants, captured values, defaults and attributes, and the global values
and functions that it names. The hash of tensors and arrays covers their bytes. The hash of another object covers its
class and what pickle would store. Code of Python and of installed packages counts by its name and version. A module of
the user that a function names or imports is refused, because the function may use any part of it.

The hash does not cover files that a function opens, names that it looks up at run time, and code in other languages.
"""

from __future__ import annotations

import copyreg
import functools
import importlib.util
import itertools
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash

from memload.caching.content import content_of
from memload.dataset.dataset import Dataset
from memload.engine.transforms.captured import captured_values, global_values, imports_in
from memload.errors import first_line

_METHODS = (FunctionType, staticmethod, classmethod, property, functools.partialmethod)


class UnhashableError(Exception):
    """A value cannot be hashed; the message says where it was found and what it is."""


def fingerprint(value: Any) -> str:
    """Return 32 hexadecimal digits that stand for a function or value.

    Raises:
        UnhashableError: the value contains something that cannot be hashed, such as an open file.

    Example:
        >>> def scaled_by(factor):
        ...     return lambda x: x * factor
        >>> [fingerprint(scaled_by(2)) == fingerprint(scaled_by(factor)) for factor in (2, 3)]
        [True, False]
    """
    return _Walk().of(value).hex()


class _Walk:
    """Hashes a value and everything that it contains, each object once."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, bytes]] = {}  # keeps each object alive, so that its id stays its own
        self._open: dict[int, int] = {}
        self._path: list[str] = []

    def of(self, value: Any, where: str = "") -> bytes:
        """Return the digest of a value; `where` says how it is reached."""
        if type(value) in _PLAIN:
            return _hashed(type(value).__name__, repr(value).encode())
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open:  # the value contains itself
            return _hashed("above", str(len(self._open) - self._open[id(value)]).encode())
        self._open[id(value)] = len(self._open)
        with self._at(where):
            digest = self._of_object(value)
        del self._open[id(value)]
        self._done[id(value)] = value, digest
        return digest

    @contextmanager
    def _at(self, where: str) -> Iterator[None]:
        self._path.append(where)
        try:
            yield
        except UnhashableError:
            raise
        except Exception as error:
            path = ", in it ".join(filter(None, self._path)) or "it"
            raise UnhashableError(f"{path}: {first_line(error)}") from error
        self._path.pop()

    def _of_object(self, value: Any) -> bytes:
        if type(value) in _CONTAINERS:
            return _CONTAINERS[type(value)](self, value)
        for kinds, digest in _KINDS:
            if isinstance(value, kinds):
                return digest(self, value)
        return self._reduced(value)

    def parts(self, kind: str, values: Iterable[Any]) -> bytes:
        """Return the digest of values in their order."""
        return _hashed(kind, *[self.of(value) for value in values])

    def named(self, kind: str, values: dict[str, Any]) -> bytes:
        """Return the digest of values by name."""
        pairs = ((name.encode(), self.of(value, name)) for name, value in values.items())
        return _hashed(kind, *itertools.chain.from_iterable(pairs))

    def mapping(self, value: dict[Any, Any]) -> bytes:
        """Return the digest of a dict, in its order."""
        pairs = ((self.of(key), self.of(entry, repr(key))) for key, entry in value.items())
        return _hashed("dict", *itertools.chain.from_iterable(pairs))

    def unordered(self, value: Iterable[Any]) -> bytes:
        """Return the digest of a set."""
        return _hashed("set", *sorted(self.of(entry) for entry in value))

    def function(self, fn: FunctionType) -> bytes:
        """Return the digest of a Python function."""
        attributes = {f"attribute {name!r}": value for name, value in vars(fn).items() if name != "__wrapped__"}
        held = self.named("captured", {**captured_values(fn), **attributes})
        home = fn.__globals__.get("__name__", "")
        version = _version_of(home)
        if version is not None:
            place = f"{home} {fn.__qualname__} {fn.__code__.co_firstlineno} {version}"
            return _hashed("function", place.encode(), held)
        for name, level in imports_in(fn.__code__):
            _check_import(fn, name, level)
        return _hashed("function", self._code(fn.__code__), held, self.named("globals", global_values(fn)))

    def _code(self, code: CodeType) -> bytes:
        constants = [self._code(value) if isinstance(value, CodeType) else self.of(value) for value in code.co_consts]
        names = "\0".join([*code.co_names, "", *code.co_varnames, "", *code.co_freevars, "", *code.co_cellvars])
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        jumps = getattr(code, "co_exceptiontable", b"")  # Python 3.11 and later have it
        return _hashed("code", code.co_code, jumps, names.encode(), repr(counts).encode(), *constants)

    def type(self, cls: type) -> bytes:
        """Return the digest of a class."""
        version = _version_of(cls.__module__)
        if version is not None:
            return _hashed("class", f"{cls.__module__} {cls.__qualname__} {version}".encode())
        if issubclass(cls, Enum):
            members = {name: member.value for name, member in cls.__members__.items()}
            methods = {name: value for name, value in vars(cls).items() if isinstance(value, _METHODS)}
            return self.named(f"enum {cls.__qualname__}", {**members, **methods})
        held = {name: value for name, value in vars(cls).items() if _is_of_class(name, value)}
        return _hashed("class", cls.__qualname__.encode(), self.parts("bases", cls.__bases__), self.named("", held))

    def _reduced(self, value: Any) -> bytes:
        """Return the digest of an object by the parts that pickle would store."""
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return _hashed("global", f"{type(value).__module__} {reduced}".encode())
        make, arguments, *others = reduced
        state, items, pairs = [*others, None, None, None][:3]
        held = [make, arguments, state, None if items is None else list(items), None if pairs is None else dict(pairs)]
        return self.parts(f"object {type(value).__qualname__}", held)


def _hashed(kind: str, *parts: bytes) -> bytes:
    hasher = xxhash.xxh3_128(kind.encode())
    for part in parts:
        hasher.update(struct.pack("<Q", len(part)))
        hasher.update(part)
    return hasher.digest()


def _tensor(walk: _Walk, value: torch.Tensor) -> bytes:
    if value.layout == torch.jagged:
        return walk.parts("jagged", [value.values(), value.offsets(), value.lengths()])  # type: ignore[attr-defined]
    if value.layout != torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
        raise TypeError(f"a tensor of {value.layout} on {value.device} cannot be hashed")
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return _hashed("tensor", f"{value.dtype} {tuple(value.shape)}".encode(), flat.numpy().data)  # type: ignore[arg-type]


def _array(walk: _Walk, value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype.hasobject:
        return _hashed("array", repr(value.shape).encode(), walk.of(value.tolist()))
    if isinstance(value, np.ma.MaskedArray):
        return walk.parts("masked array", [np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value])
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    dtype = value.dtype.str if value.dtype.names is None else repr(value.dtype.descr)
    return _hashed("array", f"{dtype} {value.shape}".encode(), flat.data)  # type: ignore[arg-type]


def _module(_: _Walk, value: ModuleType) -> bytes:
    version = _version_of(value.__name__)
    if version is None:
        raise TypeError(_OWN_MODULE.format(value.__name__))
    return _hashed("module", f"{value.__name__} {version}".encode())


def _check_import(fn: FunctionType, name: str, level: int) -> None:
    """Raise TypeError if a function imports a module when it runs that may be the user's."""
    top, package = name.partition(".")[0], fn.__globals__.get("__package__")
    beside = bool(package) and importlib.util.find_spec(f"{package}.{top}") is not None
    if level or not top or beside or _version_of(name) is None:
        raise TypeError(_OWN_MODULE.format(name or "beside it"))


def _builtin(walk: _Walk, value: BuiltinFunctionType) -> bytes:
    """Return the digest of a function in C: its name and the object to which it is bound."""
    owner: Any = value.__self__
    if owner is None or type(owner).__name__ == "PyCapsule":  # of pybind11
        owner = sys.modules.get(value.__module__ or "")
    return _hashed("builtin", value.__name__.encode(), walk.of(owner))


def _wrapper(walk: _Walk, value: Any) -> bytes:
    """Return the digest of an object that wraps the user's functions in attributes with these names."""
    return walk.parts(type(value).__name__, [getattr(value, name, None) for name in _WRAPPED])


def _is_of_class(name: str, value: Any) -> bool:
    """Return whether an entry of a class determines its behaviour: dunder methods do, other dunder names do not."""
    named = name != "_abc_impl" and not (name.startswith("__") and name.endswith("__"))
    return named or isinstance(value, _METHODS) or callable(value)


@functools.cache
def _version_of(module: str) -> str | None:
    """Return the version of Python or of the package that has this module; None if the module is the user's."""
    top = module.partition(".")[0]
    if top == "__main__":
        return None  # the user's script
    if top in sys.stdlib_module_names:
        return sys.version.partition(" ")[0]
    places = _paths_of(module, top)
    installed = bool(places) and all(_INSTALLED & {*Path(place).parts} for place in places)
    return str(getattr(sys.modules.get(top), "__version__", "")) if installed or top == "memload" else None


def _paths_of(module: str, top: str) -> list[str]:
    """Return the paths of a module, as far as known. A package without an __init__.py may have parts in many places."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (module, top))
    file = next(filter(None, files), None)
    return [*getattr(sys.modules.get(top), "__path__", ())] if file is None else [file]


_INSTALLED = {"site-packages", "dist-packages"}
_OWN_MODULE = (
    "the module {} belongs to no installed package and is not hashed; import the functions that are used by name, "
    "outside of the function: from module import function"
)
_PLAIN = {
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device),
}
_LRU = type(functools.lru_cache(len))
_WRAPPERS = (MethodType, staticmethod, classmethod, property, functools.cached_property, _LRU)
_WRAPPED = ("__func__", "__self__", "fget", "fset", "fdel", "func", "__wrapped__")
_KINDS: tuple[tuple[Any, Callable[[_Walk, Any], bytes]], ...] = (
    (FunctionType, _Walk.function),
    (type, _Walk.type),
    (ModuleType, _module),
    (BuiltinFunctionType, _builtin),
    (_WRAPPERS, _wrapper),
    (torch.Tensor, _tensor),
    (np.ndarray, _array),
    (Dataset, lambda _, value: _hashed("dataset", content_of(value, None).encode())),
)
_CONTAINERS: dict[type, Callable[[_Walk, Any], bytes]] = {
    list: lambda walk, value: walk.parts("list", value),
    tuple: lambda walk, value: walk.parts("tuple", value),
    dict: _Walk.mapping,
    set: _Walk.unordered,
    frozenset: _Walk.unordered,
}
