"""What a sample of a script's Dataset class is made of: which rows of which files, and what is done to them.

return torch.from_numpy(self.file["stim"][index]).float() / 255   -> the field "stim" of the file, row `index`, steps
"""

from __future__ import annotations

import ast
import copy
import keyword
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from memload.cli.script import Script, name_of
from memload.cli.script_names import (
    assigned_in,
    free_name,
    is_none,
    is_text,
    local_of,
    name_of_set,
    quoted,
    stem_of,
)
from memload.cli.script_options import depends_on_callers, turn_by_run
from memload.cli.script_steps import Step, step_of
from memload.cli.script_values import text_of

FILES = frozenset(["h5py.File", "numpy.load", "numpy.memmap"])
"""What opens a file of arrays."""
_OF_MEMMAP = ("filename", "dtype", "mode", "offset", "shape", "order")
_DEPTH = 30
_NAMES = 200
_T = TypeVar("_T")


@dataclass(frozen=True)
class Read:
    """What an expression reads.

    Attributes:
        kind: what opens the file, one of `FILES`.
        path: the code of the path, outside of the class.
        key: the name of the array in the file, or its code where that is no text; "" before one is named.
        is_code: whether `key` is code.
        index: by what its rows are indexed, in terms of the row's number; None before they are.
        steps: what is done to each row.
        own_key: whether the key depends on the row's number, so that each sample has arrays of its own.
        options: of a file of bare rows the arguments of `memload.open`, such as 'dtype="uint8", shape=(8,)'.
        rows: of a file of bare rows the code of how many the script maps; "" if it does not say it.
        array: of an array that only its own code describes, that code; "" of others.
    """

    kind: str
    path: str
    key: str = ""
    is_code: bool = False
    index: ast.expr | None = None
    steps: tuple[Step, ...] = ()
    own_key: bool = False
    options: str = ""
    rows: str = ""
    array: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """What makes two reads the same row of the same array."""
        index = "" if self.index is None else ast.dump(self.index)
        return self.kind, self.path, self.key, self.array, index


@dataclass(frozen=True)
class Part:
    """One field of a sample: its name, its code, and what it reads; None if that is not seen."""

    name: str
    code: ast.expr
    read: Read | None


@dataclass
class Sample:
    """What `__getitem__` returns: "tuple", "dict", or "one" value, of some parts.

    Attributes:
        kind: the form.
        parts: its fields.
        transform: the code of a transform of the whole sample, outside of the class; "" without one.
        line: above which its parts are what they are.
    """

    kind: str
    parts: list[Part] = field(default_factory=list)
    transform: str = ""
    line: int = 0


@dataclass
class ClassOf:
    """A Dataset class of a script, as one call makes it.

    Attributes:
        script: the script.
        made: the class.
        call: the call.
        followed: the attributes that are being followed, so that none is followed into itself.
        names_left: how many more names of an expression are followed.
    """

    script: Script
    made: ast.ClassDef
    call: ast.Call
    followed: set[str] = field(default_factory=set)
    names_left: int = 0

    def method(self, name: str) -> ast.FunctionDef | None:
        """Return a method of the class."""
        return next((one for one in self.made.body if isinstance(one, ast.FunctionDef) and one.name == name), None)

    @property
    def name(self) -> str:
        """The name that the script gives to the dataset, or one that is free."""
        return name_of_set(self.script, self.call)

    @property
    def stem(self) -> str:
        """What tells this dataset from others of the script; "" of the only one."""
        return stem_of(self.script, self.call)

    def free(self, wanted: str) -> str:
        """Return a name for a part of this dataset's code, which no other dataset's has."""
        return free_name(self.script, f"{self.stem}_{wanted}".lstrip("_"))

    @property
    def shards(self) -> str:
        """The folder into which a command stores rows of this dataset once."""
        return f"{self.stem}_shards/" if self.stem else "shards/"

    @property
    def shards_of_script(self) -> str:
        """The code of the folder into which the script does so, or that it opens; no script beside it has it."""
        return self.code_of(f"{self.script.path.stem}_shards/{f'{self.stem}/' * bool(self.stem)}")

    @property
    def turn(self) -> str:
        """What a folder's name ends with, where the call makes several datasets, in one run or from run to run."""
        return turn_by_run(self.script, self.call, self.made)

    def code_of(self, folder: str) -> str:
        """Return the code of a folder, in which each dataset that the call makes has one of its own."""
        return f"{'f' * bool(self.turn)}{quoted(folder + self.turn)}"

    @property
    def getter(self) -> ast.FunctionDef:
        """`__getitem__`."""
        found = self.method("__getitem__")
        assert found is not None
        return found

    @property
    def index(self) -> str:
        """The name that `__getitem__` gives to the row's number."""
        return self.getter.args.args[1].arg if len(self.getter.args.args) > 1 else ""

    def argument(self, name: str) -> ast.expr | None:
        """Return what the call gives to a parameter of `__init__`, or its default."""
        init = self.method("__init__")
        if init is None:
            return None
        names = [one.arg for one in init.args.args][1:]
        if name in names:
            given = dict(zip(names, self.call.args, strict=False)) | {
                k.arg: k.value for k in self.call.keywords if k.arg
            }
            behind = names.index(name) - (len(names) - len(init.args.defaults))
            return given.get(name) or (init.args.defaults[behind] if behind >= 0 else None)
        return next((one.value for one in self.call.keywords if one.arg == name), None)

    def assigned(self, attribute: str) -> Iterator[tuple[ast.FunctionDef, int, ast.expr]]:
        """Yield what is assigned to `self.ATTRIBUTE`, with the method and the line, but for None."""
        for method in (one for one in self.made.body if isinstance(one, ast.FunctionDef)):
            for target, _, value in assigned_in(method):
                if target == f"self.{attribute}" and not is_none(value):
                    yield method, value.lineno, value

    def _first_of(self, name: str, take: Callable[[ast.expr, ast.FunctionDef, int], _T | None]) -> _T | None:
        """Return what is known of the value of `self.ATTRIBUTE`; None inside of its own, or where there are several."""
        values = [value for _, _, value in self.assigned(name.removeprefix("self."))]
        if name in self.followed or len({ast.unparse(value) for value in values}) > 1:
            return None
        self.followed.add(name)
        try:
            found = (take(value, method, line) for method, line, value in self.assigned(name.removeprefix("self.")))
            return next((one for one in found if one is not None), None)
        finally:
            self.followed.discard(name)

    def outside(
        self, node: ast.expr, method: ast.FunctionDef, before: int, keep: str = "", depth: int = 0
    ) -> ast.expr | None:
        """Return an expression of a method as code for outside of the class; None if it needs what is inside.

        Args:
            node: the expression.
            method: the method.
            before: the line on which it stands.
            keep: a name that stays, such as that of the row's number.
            depth: how many names were followed to this expression.
        """
        unknown: list[str] = []
        self.names_left = self.names_left if depth else _NAMES

        def meant(part: ast.expr) -> ast.expr:
            self.names_left -= 1
            ends = unknown or depth > 8 or self.names_left < 0
            found = None if ends else self._meant(part, method, before, keep, depth)
            if found is None:
                unknown.append(name_of(part))
            return part if found is None else found

        class Inside(ast.NodeTransformer):
            def visit_Attribute(self, part: ast.Attribute) -> ast.AST:
                return meant(part) if name_of(part).startswith("self.") else self.generic_visit(part)

            def visit_Name(self, part: ast.Name) -> ast.AST:
                kept = part.id == keep and local_of(method, keep, before) is None
                return meant(part) if part.id in names and not kept else part

        names = {one.arg for one in method.args.args} | {name for name, _, _ in assigned_in(method)}
        made = Inside().visit(copy.deepcopy(node))
        assert isinstance(made, ast.expr)
        return None if unknown else made

    def _meant(self, node: ast.expr, method: ast.FunctionDef, before: int, keep: str, depth: int) -> ast.expr | None:
        name = name_of(node)
        if name.startswith("self."):
            return self._first_of(name, lambda value, inner, line: self.outside(value, inner, line, depth=depth + 1))
        local = local_of(method, name, before)
        if local is not None:
            return self.outside(local[1], method, local[0], keep, depth + 1)
        return self.argument(name) if method.name == "__init__" else None

    # What is read

    def sample(self) -> Sample:
        """Return what `__getitem__` returns."""
        returned = [one for one in ast.walk(self.getter) if isinstance(one, ast.Return) and one.value is not None]
        if not returned:
            return Sample("one")
        if len(returned) > 1:
            return _of_several(returned)
        last = returned[0]
        assert last.value is not None
        value, before, transform = self._followed(last.value, last.lineno)
        if isinstance(value, ast.Call) and name_of(value.func) == "dict" and not value.args:
            pairs = [(one.arg or "", one.value) for one in value.keywords]
        elif isinstance(value, ast.Dict):
            pairs = [
                (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "", one)
                for key, one in zip(value.keys, value.values, strict=True)
            ]
        elif isinstance(value, (ast.Tuple, ast.List)):
            parts = [Part("", one, self.read(one, self.getter, before)) for one in value.elts]
            return Sample("tuple", _named(parts), transform, before)
        else:
            parts = _named([Part("", value, self.read(value, self.getter, before))])
            return Sample("one", parts, transform, before)
        parts = [Part(name, one, self.read(one, self.getter, before)) for name, one in pairs]
        return Sample("dict", parts, transform, before)

    def _followed(self, node: ast.expr, before: int) -> tuple[ast.expr, int, str]:
        """Return the tuple or dict that is returned, the line where it is made, and the code of its transform."""
        transform = ""
        for _ in range(_DEPTH):
            if isinstance(node, ast.Call) and name_of(node.func).startswith("self.") and len(node.args) == 1:
                given = self.outside(node.func, self.getter, before)
                if given is None:
                    break
                transform = "" if is_none(given) else ast.unparse(given)
                node = node.args[0]
                continue
            local = local_of(self.getter, name_of(node), before) if isinstance(node, ast.Name) else None
            if local is None:
                break
            before, node = local
        return node, before, transform

    def read(self, node: ast.expr, method: ast.FunctionDef, before: int, depth: int = 0) -> Read | None:
        """Return what an expression of a method reads, where it stands on a line; None if that is not seen."""
        if depth > _DEPTH:
            return None
        if isinstance(node, ast.Name):
            local = local_of(method, node.id, before)
            return None if local is None else self.read(local[1], method, local[0], depth + 1)
        if name_of(node).startswith("self."):
            return self._first_of(name_of(node), lambda value, inner, line: self.read(value, inner, line, depth + 1))
        if isinstance(node, ast.Call) and self.script.called(node) in FILES and node.args:
            return self._opened(node, method, before)
        if isinstance(node, ast.Subscript):
            base = self.read(node.value, method, before, depth + 1)
            return None if base is None else self._indexed(base, node, method, before)
        if isinstance(node, ast.Call) and name_of(node.func) in ("int", "float") and len(node.args) == 1:
            base = self.read(node.args[0], method, before, depth + 1)  # a row of one number
            step = Step("number") if name_of(node.func) == "int" else Step("dtype", "torch.float64")
            return None if base is None else replace(base, steps=(*base.steps, step))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            return self.read(ast.Subscript(node.func.value, node.args[0], ast.Load()), method, before, depth + 1)
        return self._changed(node, method, before, depth)

    def _opened(self, node: ast.Call, method: ast.FunctionDef, before: int) -> Read:
        opened = Read(
            self.script.called(node),
            self.path_of(node.args[0], method, before),
            own_key=self.depends_on_row(node.args[0], method, before),
        )
        if opened.kind != "numpy.memmap":
            return opened
        given = dict(zip(_OF_MEMMAP, node.args, strict=False)) | {
            one.arg: one.value for one in node.keywords if one.arg
        }
        known = {name: self.outside(one, method, before) for name, one in given.items()}
        return _of_memmap(self.script, opened, ast.unparse(node.func), known)

    def path_of(self, node: ast.expr, method: ast.FunctionDef, before: int) -> str:
        """Return the code of a path, outside of the class; "PATH" if it needs what is inside."""
        path = self.outside(node, method, before)
        text = None if path is None or depends_on_callers(self.script, path) else text_of(self.script, path)
        return "PATH" if path is None else ast.unparse(path) if text is None else quoted(text)

    def depends_on_row(self, node: ast.expr, method: ast.FunctionDef, before: int, depth: int = 0) -> bool:
        """Return whether an expression of a method needs the number of the row."""
        if method is not self.getter or depth > _DEPTH:
            return False
        names = _names_in(node)
        values = [(line, value) for target, line, value in assigned_in(method) if target in names and line < before]
        return self.index in names or any(self.depends_on_row(value, method, line, depth + 1) for line, value in values)

    def _changed(self, node: ast.expr, method: ast.FunctionDef, before: int, depth: int) -> Read | None:
        given = self._of_attribute(node)
        step = given or step_of(self.script, node, lambda part: self._constant(part, method, before))
        base = None if step is None else self.read(step[0], method, before, depth + 1)
        return None if base is None or step is None else replace(base, steps=(*base.steps, *step[1]))

    def _of_attribute(self, node: ast.expr) -> tuple[ast.expr, list[Step]] | None:
        """Return the operand of a call of the class's own transform, such as `self.transform(image)`."""
        if not (isinstance(node, ast.Call) and name_of(node.func).startswith("self.") and len(node.args) == 1):
            return None
        given = self.outside(node.func, self.getter, 10**9)
        return node.args[0], [] if given is not None and is_none(given) else [Step("other", ast.unparse(node))]

    def _constant(self, node: ast.expr, method: ast.FunctionDef, before: int) -> str:
        made = self.outside(node, method, before)
        value = None if made is None else self.script.value_of(made, 10**9)
        inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
        numbers = inner.elts if isinstance(inner, (ast.Tuple, ast.List)) else [inner]
        if isinstance(value, ast.Call) and not self.script.called(value).startswith(("torch.", "numpy.")):
            return ""
        return ast.unparse(inner) if inner is not None and all(map(_is_number, numbers)) else ""

    def _indexed(self, base: Read, node: ast.Subscript, method: ast.FunctionDef, before: int) -> Read:
        where = node.slice
        other = replace(base, steps=(*base.steps, Step("other", ast.unparse(node))))
        if base.index is not None:
            step = step_of(self.script, node, lambda _: "")  # a new axis
            return other if step is None else replace(base, steps=(*base.steps, *step[1]))
        keep = self.index if method is self.getter else ""
        made = self.outside(where, method, before, keep)
        own = made is not None and keep in _names_in(made)
        text = None if made is None else text_of(self.script, made)
        if text is not None:
            return replace(base, key=f"{base.key}/{text}".strip("/"))
        if not base.key and base.kind == "h5py.File":
            return replace(base, key=ast.unparse(where if made is None else made), is_code=True, own_key=own)
        axes = _axes(where if made is None else made)
        if not own:
            return base if made is not None and all(map(_is_whole, axes)) else other
        return replace(base if all(map(_is_whole, axes[1:])) else other, index=axes[0])


def _of_memmap(script: Script, opened: Read, function: str, given: dict[str, ast.expr | None]) -> Read:
    """Return the read of `numpy.memmap`, as the arguments of `memload.open`, or else as the array that it makes."""
    dtype, shape, offset = given.get("dtype"), given.get("shape"), given.get("offset")
    named = '"uint8"' if dtype is None else quoted(str(dtype.value)) if is_text(dtype) else ast.unparse(dtype)
    shape = None if shape is None else script.value_of(shape, 10**9)
    axes = shape.elts if isinstance(shape, ast.Tuple) else [shape] if isinstance(shape, ast.Constant) else []
    if None in given.values() or "order" in given or ("shape" in given and not axes):
        others = [
            f"{name}={ast.unparse(one)}" for name, one in given.items() if one and name not in ("filename", "dtype")
        ]
        return replace(opened, array=f"{function}({', '.join([opened.path, f'dtype={named}', *others])})")
    row = ast.unparse(ast.Tuple(list(axes[1:]), ast.Load()))
    behind = "" if offset is None else f", offset={ast.unparse(offset)}"
    rows = ast.unparse(axes[0]) if axes else ""
    return replace(opened, options=f"dtype={named}, shape={row}{behind}", rows=rows)


def _of_several(returned: Sequence[ast.Return]) -> Sample:
    """Return what is known of a sample that one of several statements returns: the names of its parts, at most."""
    values = [one.value for one in returned]
    if all(isinstance(one, ast.Tuple) for one in values):
        elements = [one.elts for one in values if isinstance(one, ast.Tuple)]
        if len({len(one) for one in elements}) == 1:
            return Sample("tuple", _named([Part("", one, None) for one in elements[-1]]))
    return Sample("one" if not any(isinstance(one, (ast.Tuple, ast.Dict)) for one in values) else "dict")


def _named(parts: Sequence[Part]) -> list[Part]:
    """Return parts of a tuple with names: of variables, or of what they read."""
    keys = ["" if one.read is None or one.read.is_code else one.read.key.rpartition("/")[2] for one in parts]
    names = [key or _name_in(one.code) for key, one in zip(keys, parts, strict=True)]
    fit = [name.isidentifier() and not keyword.iskeyword(name) and names.count(name) == 1 for name in names]
    free = [name if good else f"x{place}" for place, (name, good) in enumerate(zip(names, fit, strict=True))]
    return [replace(one, name=name) for one, name in zip(parts, free, strict=True)]


def _name_in(code: ast.expr) -> str:
    """Return what a part of a tuple is called: a variable, a column such as `row["label"]`, an attribute; else ""."""
    code = code.value if isinstance(code, ast.Subscript) and not is_text(code.slice) else code  # image[None]
    if isinstance(code, ast.Name):
        return code.id
    keys = [str(one.slice.value) for one in ast.walk(code) if isinstance(one, ast.Subscript) and is_text(one.slice)]
    attributes = [name_of(one).removeprefix("self.") for one in ast.walk(code) if name_of(one).startswith("self.")]
    return next(iter([*keys, *attributes]), "")


def _axes(where: ast.expr) -> Sequence[ast.expr]:
    return where.elts if isinstance(where, ast.Tuple) and where.elts else [where]


def _names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _is_whole(node: ast.expr) -> bool:
    """Return whether an index is `:`, `...` or `()`."""
    if isinstance(node, ast.Slice):
        return node.lower is node.upper is node.step is None
    return (isinstance(node, ast.Constant) and node.value is ...) or (isinstance(node, ast.Tuple) and not node.elts)


def _is_number(node: ast.expr | None) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
