"""A Python script as `memload init` reads it: what its names stand for, and which loaders it makes and loops over.

The script is parsed, never imported. What only running it would tell is left open, and said to be so.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import platform
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from memload.formats.paths import nothing_at

LOADERS = frozenset(
    [
        "torch.utils.data.DataLoader",
        "torch.utils.data.dataloader.DataLoader",
        "torchdata.stateful_dataloader.StatefulDataLoader",
        "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader",
    ]
)
"""Classes in whose place FastLoader does the same."""

FAST_LOADER = "memload.FastLoader"
IN_FAST_LOADER = "# in FastLoader"
"""The comment behind an argument of a loader."""

_LOADER_ARGUMENTS = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory"),
    *("drop_last", "timeout", "worker_init_fn"),
)
_OF_ALL = {
    "torch.utils.data": (
        *("DataLoader", "Dataset", "IterableDataset", "TensorDataset", "Subset", "ConcatDataset", "StackDataset"),
        *("BatchSampler", "RandomSampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler"),
        *("Sampler", "DistributedSampler", "default_collate", "random_split", "get_worker_info"),
    )
}
"""What `from MODULE import *` brings that is looked for here."""


@dataclass(frozen=True)
class Loader:
    """A call that makes a loader.

    Attributes:
        call: the call.
        name: what it is assigned to, such as "train_loader" or "self.loader"; "" if to nothing.
        kind: the qualified name of its class.
        given: its arguments by name.
        opaque: whether `*args` or `**kwargs` hide some.
    """

    call: ast.Call
    name: str
    kind: str
    given: dict[str, ast.expr]
    opaque: bool


@dataclass
class Script:
    """What a script says, by its text.

    Attributes:
        path: where it lies.
        text: its source.
        tree: its syntax.
        imported: what imported names stand for, such as {"DataLoader": "torch.utils.data.DataLoader"}.
        encoding: of its bytes, as it declares it; without a declaration UTF-8.
        loaders: the loaders that it makes, in the order of lines.
        verdicts: what is known of the datasets that calls make, once it was asked.
    """

    path: Path
    text: str
    tree: ast.Module
    imported: dict[str, str]
    encoding: str = "utf-8"
    loaders: list[Loader] = field(default_factory=list)
    verdicts: dict[ast.Call, Verdict] = field(default_factory=dict)

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of the syntax, those of statements before what is inside of them."""
        return list(ast.walk(self.tree))

    @classmethod
    def read(cls, path: Path) -> Script:
        """Parse a file.

        Raises:
            FileNotFoundError, IsADirectoryError: there is nothing at the path, or a folder.
            ValueError: it is empty, or no Python script of this Python's syntax; the message has the line.
        """
        _check_is_script(path)
        try:
            text, encoding = _decoded(path)
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise ValueError(_cannot_parse(path, error)) from None
        except RecursionError:
            raise ValueError(f"{path}: its expressions are nested too deeply to be read") from None
        script = cls(path, text, tree, dict(_imports(tree)), encoding)
        script.loaders = sorted(_loaders(script), key=lambda one: one.call.lineno)
        return script

    def file_at(self, path: str) -> Path | None:
        """Return what lies at a path that the script names, here or beside the script; None without anything there."""
        return next((one for one in (Path(path), self.path.parent / path) if path and one.exists()), None)

    def line(self, node: ast.stmt | ast.expr) -> str:
        """Return the source line on which a node begins, without indentation."""
        return self.code_at(node.lineno)

    def code_at(self, line: int) -> str:
        """Return a source line by its number from 1, without indentation."""
        return lines_of(self.text)[line - 1].strip()

    def meaning(self, node: ast.AST | None) -> str:
        """Return the qualified name that an expression such as `data.DataLoader` stands for; "" if it is no name."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.meaning(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def called(self, node: ast.AST | None) -> str:
        """Return the qualified name of what a call calls; "" for what is no call of a name."""
        return self.meaning(node.func) if isinstance(node, ast.Call) else ""

    def name_for(self, value: ast.expr) -> str:
        """Return the name that an expression of the script is assigned to; "" if it is to none, or to several."""
        for statement in self.nodes:
            if isinstance(statement, ast.Assign) and statement.value is value and len(statement.targets) == 1:
                return name_of(statement.targets[0])
        return ""

    def value_of(self, node: ast.expr, before: int) -> ast.expr | None:
        """Return the expression that was last assigned to a name before a line, or the expression itself if it is none.

        A name that is one of several targets has the value of all of them, such as the call of `random_split`. What is
        assigned to a name is not its value where it is part of that very expression, as in `ds = Subset(ds, rows)`.
        """
        name = name_of(node)
        if not name:
            return node
        found: ast.expr | None = None
        for statement in self.nodes:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value and statement.lineno <= before:
                of_itself = any(part is node for part in ast.walk(statement.value))
                for target, value in [] if of_itself else assigned(statement):
                    if name in names_in(target):
                        found = value if found is None or value.lineno >= found.lineno else found
        return found

    def elements(self, node: ast.expr, before: int) -> list[tuple[ast.expr, ast.expr]]:
        """Return the keys and values of a dict on a line, or those that its element `sets["train"]` may be.

        A dict is one that the script writes down, or an empty one whose elements it assigns. Returns [] of others.
        """
        key = node.slice if isinstance(node, ast.Subscript) and name_of(node.value) else None
        base = node.value if isinstance(node, ast.Subscript) and key is not None else node
        made = self.value_of(base, before)
        if isinstance(made, ast.Dict) and made.keys:
            found = [(one, value) for one, value in zip(made.keys, made.values, strict=True) if one is not None]
        elif isinstance(made, ast.Dict) or self.called(made) == "dict":
            statements = (one for one in self.nodes if isinstance(one, ast.Assign))
            pairs = ((target, value) for one in statements for target, value in assigned(one))
            stored = [(one, value) for one, value in pairs if isinstance(one, ast.Subscript)]
            found = [(one.slice, value) for one, value in stored if name_of(one.value) == name_of(base)]
        else:
            return []
        if not isinstance(key, ast.Constant):
            return found
        return [one for one in found if not isinstance(one[0], ast.Constant) or one[0].value == key.value]

    def with_constants(self, call: ast.Call) -> ast.Call:
        """Return a call whose arguments are the constants that names among them were last assigned before it."""

        def known(node: ast.expr) -> ast.expr:
            value = self.value_of(node, call.lineno)
            return value if isinstance(value, (ast.Constant, ast.Tuple, ast.List)) else node

        def inner(node: ast.expr) -> ast.expr:
            node = known(node)
            if isinstance(node, (ast.Tuple, ast.List)):
                return type(node)([known(one) for one in node.elts], node.ctx)
            return node

        keywords = [ast.keyword(one.arg, inner(one.value)) for one in call.keywords]
        return ast.copy_location(ast.Call(call.func, [inner(one) for one in call.args], keywords), call)

    def line_after(self, name: str, line: int) -> int:
        """Return the first line after a given one that assigns to a name; 0 if there is none, or one before it."""
        names = (node for node in self.nodes if isinstance(node, ast.Name) and node.id == name)
        lines = sorted(node.lineno for node in names if isinstance(node.ctx, ast.Store))
        return lines[0] if lines and lines[0] > line else 0

    def defines(self, name: str) -> bool:
        """Return whether the script has a class or a function of this name."""
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        return any(isinstance(node, kinds) and node.name == name for node in self.nodes)

    def class_named(self, name: str) -> ast.ClassDef | None:
        """Return a class of this script."""
        classes = (node for node in self.nodes if isinstance(node, ast.ClassDef))
        return next((node for node in classes if node.name == name), None)

    def reached(self, node: ast.expr, before: int) -> Iterator[ast.Call]:
        """Yield the calls in an expression on a line, and in what the names in it were last assigned."""
        seen: set[ast.AST] = set()
        left = [(node, before)]
        while left:
            node, before = left.pop()
            for part in (one for one in ast.walk(node) if one not in seen):
                seen.add(part)
                if isinstance(part, ast.Call):
                    yield part
                elif isinstance(part, (ast.Name, ast.Subscript)) and (inner := self.elements(part, before)):
                    seen |= {part.value} if isinstance(part, ast.Subscript) else set()  # its other elements
                    left += [(value, value.lineno) for _, value in inner]
                elif (
                    isinstance(part, ast.expr) and name_of(part) and (value := self.value_of(part, before)) is not None
                ):
                    left.append((value, value.lineno))

    def loaders_of(self, node: ast.expr) -> tuple[int, ...]:
        """Return the lines of the loaders whose dataset a call makes, or has a part in."""
        sets = ((one.call.lineno, one.given.get("dataset")) for one in self.loaders)
        return tuple(line for line, made in sets if made and any(one is node for one in self.reached(made, line)))

    def lines_around(self, node: ast.expr) -> tuple[int, int]:
        """Return the first and the last line of the statement that an expression is in."""
        around = (one for one in self.nodes if isinstance(one, ast.stmt) and not hasattr(one, "body"))
        found = next((one for one in around if any(part is node for part in ast.walk(one))), node)
        return found.lineno, found.end_lineno or found.lineno

    def uses(self, name: str) -> int:
        """Return how often a name is read."""
        names = (node for node in self.nodes if isinstance(node, ast.Name))
        return sum(node.id == name and isinstance(node.ctx, ast.Load) for node in names)


@dataclass(frozen=True)
class Advice:
    """What to do. Everything in `code` is Python to paste.

    Attributes:
        code: lines of Python: statements, and arguments of FastLoader as assignments, such as `device="cuda"`.
        commands: lines for the shell, which run once.
        notes: sentences that explain these, or say what cannot be followed.
        where: the place of the code, such as "in the place of line 12".
    """

    code: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    where: str = ""

    def __bool__(self) -> bool:
        """Whether there is anything to do or to say."""
        return bool(self.code or self.commands or self.notes)


@dataclass(frozen=True)
class Verdict:
    """Whether a dataset is read natively.

    Attributes:
        native: None if only running the script tells.
        why: the reason, in a few words.
        advice: what makes it native; empty if there is nothing to change.
        line: the line of the script that decides it; 0 if it is the loader's own.
        fields: the names of the fields of a sample as `change` makes it, in the order of a tuple; 0, 1, ... of a
            TensorDataset; empty if unknown.
        kind: what a sample is: "tuple", "dict" or "one" value; "" if unknown.
    """

    native: bool | None
    why: str
    advice: Advice = Advice()
    line: int = 0
    fields: tuple[str | int, ...] = ()
    kind: str = ""


def _check_is_script(path: Path) -> None:
    """Raise an error that names the next step, where a path is that of no script."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder; {_scripts_in(path)}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: {nothing_at(path)}; give the path of the script that makes the DataLoader")
    if path.suffix == ".ipynb":
        raise ValueError(f"{path}: this is a notebook; `jupyter nbconvert --to script {path}` makes a script of it")
    if path.is_file() and not path.read_bytes().strip():
        raise ValueError(f"{path}: the file is empty; give the path of the script that makes the DataLoader")


def _scripts_in(folder: Path) -> str:
    """Return which script of a folder to give, by what they say; the first of many."""
    with_loader = (one for one in sorted(folder.glob("*.py")) if one.is_file() and b"DataLoader" in one.read_bytes())
    found = list(itertools.islice(with_loader, 3))
    if not found:
        return "give the path of the script that makes the DataLoader: no .py file directly in this folder names one"
    return f"give one script: {' or '.join(f'`memload init {one}`' for one in found)}"


def _cannot_parse(path: Path, error: SyntaxError | ValueError) -> str:
    if str(error).startswith(f"{path}: "):  # of its bytes
        return str(error)
    line = error.lineno if isinstance(error, SyntaxError) else None
    code = f", in `{error.text.strip()[:80]}`" if isinstance(error, SyntaxError) and error.text else ""
    return (
        f"{path}{f':{line}' if line else ''}: this Python cannot parse it: {error.args[0]}{code}; correct the line, or "
        f"run memload with the Python that runs the script (this is {platform.python_version()})"
    )


def lines_of(text: str) -> list[str]:
    """Return the lines of a source with their ends, as Python counts them: a form feed, say, ends no line."""
    return list(io.StringIO(text, newline=""))


def _decoded(path: Path) -> tuple[str, str]:
    """Return the text of a script and its encoding: the one that it declares, or UTF-8.

    Raises:
        ValueError: its bytes have another encoding than this; the message has the position.
        SyntaxError: Python does not know the encoding that it declares.
    """
    content = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        if "unknown encoding" in str(error):
            raise
        encoding = "utf-8"
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        stated = "the file declares no other encoding" if encoding.startswith("utf-8") else "which the file declares"
        raise ValueError(
            f"{path}: not a Python script: byte {error.start} (0x{content[error.start]:02x}, line {line}) is not "
            f"{encoding}, {stated}: save it as UTF-8, or begin it with a line such as `# -*- coding: latin-1 -*-`"
        ) from None


def name_of(node: ast.AST | None) -> str:
    """Return a name, or an attribute such as "self.loader"; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def root_of(node: ast.AST) -> str:
    """Return the name at the beginning of an expression such as `batch["x"].float()`."""
    while not name_of(node) and isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        of_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        node = node.func if isinstance(node, ast.Call) else node.value
        node = node.value if of_method and isinstance(node, ast.Attribute) else node
    return name_of(node)


def names_in(target: ast.AST) -> Iterator[str]:
    """Yield the names that an assignment to a target binds."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for inner in target.elts:
            yield from names_in(inner)
    elif isinstance(target, ast.Starred):
        yield from names_in(target.value)
    elif name_of(target):
        yield name_of(target)


def assigned(statement: ast.Assign | ast.AnnAssign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what an assignment assigns to, and the value of each: of `a, b = x, y` those of both names."""
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        if statement.value is not None:
            yield from _pairs(target, statement.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    sides = (target, value)
    parts = [one.elts for one in sides if isinstance(one, (ast.Tuple, ast.List))]
    starred = any(isinstance(one, ast.Starred) for side in parts for one in side)
    if len(parts) < 2 or len(parts[0]) != len(parts[1]) or starred:
        yield sides
        return
    for inner, part in zip(*parts, strict=True):
        yield from _pairs(inner, part)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == "*":
                    yield from ((name, f"{node.module}.{name}") for name in _OF_ALL.get(node.module, ()))
                else:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _loaders(script: Script) -> Iterator[Loader]:
    names = {
        id(inner): next(iter(names_in(target)), "")
        for node in script.nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target, value in assigned(node)
        for inner in ast.walk(value)
    }
    for node in script.nodes:
        kind = script.called(node)
        if isinstance(node, ast.Call) and (kind in LOADERS or kind == FAST_LOADER or kind in OTHERS):
            given = dict(zip(_LOADER_ARGUMENTS, node.args, strict=False))
            given |= {one.arg: one.value for one in node.keywords if one.arg is not None}
            opaque = any(isinstance(one, ast.Starred) for one in node.args) or any(not one.arg for one in node.keywords)
            yield Loader(node, names.get(id(node), ""), kind, given, opaque)


OTHERS = {
    "torch_geometric.loader.DataLoader": "PyTorch Geometric",
    "ffcv.loader.Loader": "FFCV",
    "grain.DataLoader": "Grain",
    "grain.python.DataLoader": "Grain",
    "webdataset.WebLoader": "WebDataset",
    "streaming.StreamingDataLoader": "MosaicML Streaming",
    "litdata.StreamingDataLoader": "LitData",
    "spdl.dataloader.DataLoader": "SPDL",
    "spdl.dataloader.PyTorchDataLoader": "SPDL",
}
"""Loaders that have a page of their own, by what that page calls them."""
