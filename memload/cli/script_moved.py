"""Code of a Dataset class outside of it: files opened once, and what it computes of a row as a function of a sample.

torch.sqrt(self.h5["x"][i]) / self.mean  ->  torch.sqrt(sample["x"].numpy()) / mean, with `mean` above the function
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memload.cli.script import Script, name_of
from memload.cli.script_names import assigned_in, is_none, is_text, local_of
from memload.cli.script_reads import FILES, ClassOf, Read

_COPIES = frozenset(["numpy.array", "numpy.asarray", "numpy.copy", "numpy.ascontiguousarray"])
_OF_ARRAYS = frozenset(["torch.from_numpy", "torch.as_tensor", "torch.tensor"])


@dataclass
class Above:
    """Statements that stand above others, so that these need not compute or open anything twice.

    Attributes:
        one: the class whose code this is.
        values: the code of values, by the names that they get.
        files: the names of HDF5 files, by the code that opens them.
        arrays: the names of arrays, by the code that opens their files.
    """

    one: ClassOf
    values: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)

    @property
    def script(self) -> Script:
        """The script."""
        return self.one.script

    def name(self, value: ast.expr, wanted: str) -> ast.expr:
        """Return the name of a value, which is computed above."""
        code = ast.unparse(self._opened_once(value))
        known = next((name for name, other in self.values.items() if other == code), None)
        if known is None:
            known = self._free(f"{self.one.stem}_{wanted}".lstrip("_"))
            self.values[known] = code
        return ast.Name(known, ast.Load())

    def without_files(self, node: ast.expr, index: str, wanted: str) -> ast.expr:
        """Return an expression whose largest parts that open files, but need no `index`, have names."""
        above = self

        class Named(ast.NodeTransformer):
            def visit(self, part: ast.AST) -> ast.AST:
                names = {one.id for one in ast.walk(part) if isinstance(one, ast.Name)}
                if isinstance(part, ast.expr) and index not in names and opens_files(above.script, part):
                    return above.name(part, wanted)
                return self.generic_visit(part)

        made = Named().visit(copy.deepcopy(node))
        assert isinstance(made, ast.expr)
        return made

    def lines(self) -> Iterator[str]:
        """Yield the statements."""
        yield from (f"{name} = {code}" for code, name in self.arrays.items())
        needed = ", ".join(f"{code} as {name}" for code, name in self.files.items())
        of_files = {name for name, code in self.values.items() if self._needs(code)}
        yield from (f"{name} = {code}" for name, code in self.values.items() if name not in of_files)
        if needed:
            yield f"with {needed}:"
            yield from (f"    {name} = {self.values[name]}" for name in self.values if name in of_files)

    def _needs(self, code: str) -> bool:
        names = {one.id for one in ast.walk(ast.parse(code)) if isinstance(one, ast.Name)}
        return bool(names & set(self.files.values()))

    def _free(self, wanted: str) -> str:
        taken = {one.id for one in self.script.nodes if isinstance(one, ast.Name)}
        taken |= {*self.values, *self.files.values(), *self.arrays.values()}
        numbered = (f"{wanted}_{number}" for number in range(2, 1000))
        return wanted if wanted not in taken else next(name for name in numbered if name not in taken)

    def _opened_once(self, value: ast.expr) -> ast.expr:
        """Return a value whose files have names: HDF5 files all, others where the value opens them twice."""
        calls = [ast.unparse(one) for one in ast.walk(value) if self.script.called(one) in FILES]
        above = self

        class Opened(ast.NodeTransformer):
            def visit_Call(self, part: ast.Call) -> ast.AST:
                code, kind = ast.unparse(part), above.script.called(part)
                if kind not in FILES or (kind != "h5py.File" and calls.count(code) == 1):
                    return self.generic_visit(part)
                names = above.files if kind == "h5py.File" else above.arrays
                if code not in names:
                    names[code] = above._free("file" if kind == "h5py.File" else "array")
                return ast.Name(names[code], ast.Load())

        made = Opened().visit(copy.deepcopy(value))
        if isinstance(made, ast.Subscript) and is_text(made.slice) and opens_files(self.script, value):
            made = ast.Subscript(made, ast.Slice(), ast.Load())  # the array, which outlives its file
        assert isinstance(made, ast.expr)
        return made


def opens_files(script: Script, node: ast.AST) -> bool:
    """Return whether an expression opens a file of arrays."""
    return any(script.called(one) in FILES for one in ast.walk(node))


def moved(one: ClassOf, node: ast.expr, before: int, above: Above, of_row: Callable[[Read], ast.expr | None]) -> str:
    """Return the code of an expression of `__getitem__` outside of the class; "" if it needs what is inside.

    Args:
        one: the class.
        node: the expression.
        before: the line on which it stands.
        above: takes what need not be computed for each row.
        of_row: gives the code of a row that is read, or None if no field has it.
    """
    mover = _Mover(one, before, above, of_row)
    made = mover.visit(copy.deepcopy(node))
    return "" if mover.failed else ast.unparse(made)


class _Mover(ast.NodeTransformer):
    def __init__(
        self, one: ClassOf, before: int, above: Above, of_row: Callable[[Read], ast.expr | None], depth: int = 0
    ) -> None:
        self.one, self.before, self.above, self.of_row, self.depth = one, before, above, of_row, depth
        self.inside = {name for name, _, _ in assigned_in(one.getter)} | {arg.arg for arg in one.getter.args.args}
        self.failed = depth > 20

    def visit(self, node: ast.AST) -> ast.AST:
        if self.failed or not isinstance(node, ast.expr):
            return node if self.failed else super().generic_visit(node)
        read = self.one.read(node, self.one.getter, self.before)
        if read is not None and read.index is not None and not read.steps:
            return self._or_fail(self.of_row(read))
        if isinstance(node, ast.Call) and name_of(node.func).startswith("self.") and len(node.args) == 1:
            return self._called(node)
        if name_of(node).startswith("self."):
            return self._attribute(node, name_of(node).removeprefix("self."))
        if isinstance(node, ast.Name):
            return self._name(node)
        return self._shorter(self.generic_visit(node))

    def _or_fail(self, made: ast.expr | None) -> ast.AST:
        self.failed = self.failed or made is None
        return made or ast.Constant(None)

    def _attribute(self, node: ast.expr, wanted: str) -> ast.AST:
        given = self.one.outside(node, self.one.getter, self.before)
        if given is None or isinstance(given, (ast.Constant, ast.Name)):
            return self._or_fail(given)
        return self.above.name(given, wanted)

    def _called(self, node: ast.Call) -> ast.AST:
        """Return a call of the class's own transform; what it is given, where there is none."""
        given = self.one.outside(node.func, self.one.getter, self.before)
        if given is not None and is_none(given):
            return self.visit(node.args[0])
        function = self._attribute(node.func, name_of(node.func).removeprefix("self."))
        arguments = [self.visit(one) for one in node.args]
        return ast.Call(function, arguments, node.keywords)  # type: ignore[arg-type]

    def _name(self, node: ast.Name) -> ast.AST:
        local = local_of(self.one.getter, node.id, self.before)
        if local is None:
            self.failed = self.failed or node.id in self.inside
            return node
        inner = _Mover(self.one, local[0], self.above, self.of_row, self.depth + 1)
        made = inner.visit(copy.deepcopy(local[1]))
        self.failed = self.failed or inner.failed
        return made

    def _shorter(self, node: ast.AST) -> ast.AST:
        """Return a call without conversions to and fro: the rows that samples have are tensors, and copies."""
        if not (isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords):
            return node
        given = node.args[0]
        of_tensor = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "numpy"
        if self.one.script.called(node) in _OF_ARRAYS and of_tensor:
            assert isinstance(given, ast.Call)
            assert isinstance(given.func, ast.Attribute)
            return given.func.value
        return given if self.one.script.called(node) in _COPIES and of_tensor else node
