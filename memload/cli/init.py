"""`memload init`: reads a script that has a DataLoader, and says line by line what to change for FastLoader.

script -> loaders, their datasets and arguments, loops -> findings -> a report, a patch, or a changed copy
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from memload.cli.output import answer, check_folder_of, is_json, keep
from memload.cli.script import (
    FAST_LOADER,
    IN_FAST_LOADER,
    LOADERS,
    OTHERS,
    Loader,
    Script,
    Verdict,
    assigned,
    lines_of,
    name_of,
)
from memload.cli.script_collate import collate_in, of_collate
from memload.cli.script_data import (
    composes_of_rows,
    verdict_of,
    verdicts_of_elements,
    verdicts_of_given,
    without_classes,
)
from memload.cli.script_loops import work_of_loops
from memload.cli.script_masks import casts_with_masks
from memload.cli.script_names import free_name, quoted
from memload.cli.script_transforms import arguments, casts_of_transforms, dict_of
from memload.cli.script_values import turns_around

_ARGUMENTS = {
    "num_workers": "leave it out: memload reads by threads, and chooses how many by the CPUs there are",
    "prefetch_factor": "batches ahead in all, not for each worker: leave it out, and memload chooses",
    "persistent_workers": "leave it out: memory and threads stay between epochs by default; with it, a seeded script "
    "keeps its order of later epochs, since the base seed is then drawn once",
    "worker_init_fn": "there are no workers; random numbers in ds.map and batch_transform= are seeded by row",
    "multiprocessing_context": "there are no worker processes: leave it out",
    "pin_memory": 'with a GPU, device="cuda" instead: batches are copied, and cast there, ahead of the loop',
}
_NONE = ast.Constant(None)
_ONCE_NATIVE = "as before while torch's own code loads; once the loader is native, "
_NO_LOADER = """{path}: no loader is made here, so there is nothing to change.
Looked for, under any name that the script imports them by: torch.utils.data.DataLoader, torchdata's StatefulDataLoader,
memload.FastLoader, and the loaders of {others}.
Modules that it imports are not read: give the file that makes the loader. A script without one begins with
  loader = memload.FastLoader(memload.open("..."), batch_size=32, shuffle=True)"""
_WORDS = {True: "native", False: "torch's own code", None: "known when it runs"}


@dataclass(frozen=True)
class Finding:
    """What is said of one line.

    Attributes:
        line: its number, from 1.
        code: the line.
        about: "loader", "other" for a loader of another library, "dataset", "argument", "loop", "transform", "class" or
            "use".
        native: of a loader, whether memload's engine reads it as the script stands; None if only running it tells.
        why: the reason.
        change: the code to write, which is Python.
        commands: what to run once, on the command line.
        notes: sentences that explain these, or say what is not followed.
        safe: whether the script does the same afterwards, so that `--write` makes the change.
        of: the lines of the loaders that this is for; empty if that is not known.
        where: of a dataset, the place of `change`.
    """

    line: int
    code: str
    about: str
    why: str
    change: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    native: bool | None = None
    safe: bool = False
    of: tuple[int, ...] = field(default=(), compare=False)
    where: str = ""


def run(options: argparse.Namespace) -> int:
    """Print the report or the patch, and write the copy.

    Raises:
        FileNotFoundError, IsADirectoryError: there is no such file.
        ValueError: the file is no script that can be parsed, or has the name `memload` for something else.
        FileExistsError: the copy is there already.
    """
    script = Script.read(options.script)
    found = findings(script)
    changed = converted(script)
    patch = patch_of(script, changed)
    document = {"script": options.script, "findings": found, "patch": patch, "written": options.write}
    if options.write is not None:
        _write(options.write, changed.encode(script.encoding))
    if options.diff:
        if not is_json(options):
            sys.stdout.flush()
            sys.stdout.buffer.write(patch.encode(script.encoding.removesuffix("-sig")))
            sys.stdout.flush()
        keep(options, document)
    else:
        written = f"\nWritten: {options.write}" if options.write is not None else ""
        answer(options, f"{report(script, found)}{written}", document)
    return 0


def _write(path: Path, content: bytes) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already, and stays: give another name to --write")
    check_folder_of(path, "--write")
    path.write_bytes(content)


def findings(script: Script) -> list[Finding]:
    """Return what there is to say, in the order of lines."""
    found = [
        *_loaders(script),
        *_arguments(script),
        *_others(script),
        *_loops(script),
        *_transforms(script),
        *_uses(script),
    ]
    of = {one: tuple(sorted({line for other in found if other == one for line in other.of})) for one in found}
    return [_with_loaders(script, replace(one, of=of[one])) for one in sorted(of, key=lambda one: one.line)]


def _with_loaders(script: Script, one: Finding) -> Finding:
    """Return a finding whose arguments of FastLoader say which loaders they are for, where a script has several."""
    if len(script.loaders) < 2 or not one.of:
        return one
    named = f"{IN_FAST_LOADER} of line{'s' * (len(one.of) > 1)} {', '.join(map(str, one.of))}"
    return replace(one, change=tuple(code.replace(IN_FAST_LOADER, named) for code in one.change))


def _loaders(script: Script) -> Iterator[Finding]:
    for loader in script.loaders:
        line, code = loader.call.lineno, script.line(loader.call)
        if loader.kind in OTHERS:
            yield _of_other(script, loader)
            continue
        verdict = loader_verdict(script, loader)
        change = (f"{FAST_LOADER}(...)  # with the same arguments",) if loader.kind in LOADERS else ()
        yield Finding(line, code, "loader", verdict.why, change, native=verdict.native, safe=bool(change))
        given = loader.given.get("dataset")
        below = verdicts_of_given(script, given) or verdicts_of_elements(script, given, line)
        below = below or [verdict_of(script, given, line)]
        for one in [*[verdict] * (collate_in(script, loader) is not None), *below]:
            if one.advice:
                at, why, told = one.line or line, one.why.rpartition(" of: ")[2], one.advice
                said = told.code, told.commands, told.notes
                yield Finding(at, script.code_at(at), "dataset", why, *said, of=(line,), where=told.where)


def _arguments(script: Script) -> Iterator[Finding]:
    """Yield what is said of arguments that mean something else, of each once, at the first loader that has it."""
    loaders = [one for one in script.loaders if one.kind not in OTHERS]
    for name, why in _ARGUMENTS.items():
        having = [one for one in loaders if ast.unparse(one.given.get(name, _NONE)) not in ("0", "False", "None")]
        lines = [str(one.given[name].lineno) for one in having[1:]]
        also = f", likewise in line{'s' * (len(lines) > 1)} {', '.join(lines)}" if lines else ""
        by_torch = name != "pin_memory" and any(loader_verdict(script, one).native is False for one in having)
        for given in (one.given[name] for one in having[:1]):
            told = f"{name}={ast.unparse(given)}{also}: {_ONCE_NATIVE * by_torch}{why}"
            yield Finding(given.lineno, script.line(given), "argument", told)


def loader_verdict(script: Script, loader: Loader) -> Verdict:
    """Return whether a loader is native: by its arguments, and else by its dataset."""
    collate = collate_in(script, loader)
    if collate is not None:
        return of_collate(loader, collate, verdict_of(script, loader.given.get("dataset"), loader.call.lineno))
    size = loader.given.get("batch_size")
    if isinstance(size, ast.Constant) and size.value is None:
        return Verdict(None, "batch_size=None: native for BatchSamplers as sampler=, else torch's own code")
    verdict = verdict_of(script, loader.given.get("dataset"), loader.call.lineno)
    if loader.opaque:
        why = f"{verdict.why}; **arguments were not read, and may hold a collate_fn"
        return replace(verdict, native=None if verdict.native else verdict.native, why=why)
    return verdict


def _of_other(script: Script, loader: Loader) -> Finding:
    """Return what is said of a loader of another library."""
    line, code, kind = loader.call.lineno, script.line(loader.call), OTHERS[loader.kind]
    if kind != "PyTorch Geometric":
        return Finding(line, code, "other", f"{kind}: docs/migration.md has such a program before and after")
    data = ast.unparse(loader.given.get("dataset") or ast.Name("GRAPHS"))
    named = {one.arg: ast.unparse(one.value) for one in loader.call.keywords if one.arg != "dataset"}
    options = [f"{name}={named.pop(name)}" for name in ("follow_batch", "exclude_keys") if name in named]
    collate = "memload.graph_collate"
    if options:
        collate = f"functools.partial({collate}, {', '.join(options)})"
    rest = [f"{name}={one}" if name else f"**{one}" for name, one in named.items()]
    given = ", ".join(
        [f"memload.from_graphs({data})", *map(ast.unparse, loader.call.args[1:]), *rest, f"collate_fn={collate}"]
    )
    made = f"{loader.name} = " if loader.name else ""
    why = "graphs are joined by PyTorch Geometric, in Python; natively with what follows, and of files: docs/graphs.md"
    return Finding(line, code, "other", why, (f"{made}{FAST_LOADER}({given})",))


def _others(script: Script) -> Iterator[Finding]:
    """Yield what uses a loader's class otherwise: a base class, or a value that is called elsewhere."""
    called = {id(loader.call.func) for loader in script.loaders}
    for node in script.nodes:
        if isinstance(node, ast.ClassDef) and any(script.meaning(base) in LOADERS for base in node.bases):
            why, change = "FastLoader may be subclassed in the same way", f"class {node.name}({FAST_LOADER}): ..."
            yield Finding(node.lineno, script.line(node), "class", why, (f"{change}  # with its body",))
        values = [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
        for value in values:
            is_test = isinstance(node, ast.Call) and script.meaning(node.func) in ("isinstance", "issubclass")
            if script.meaning(value) in LOADERS and id(value) not in called and not is_test:
                why = "the class is handed on, and called elsewhere"
                yield Finding(value.lineno, script.line(value), "class", why, (f"{FAST_LOADER}  # in its place",))


def _loops(script: Script) -> Iterator[Finding]:
    """Yield what a loop does with each batch that a loader could do ahead of it."""
    told = set()
    for one in work_of_loops(script, lambda loader: loader_verdict(script, loader)):
        of = tuple(loader.call.lineno for loader in one.loaders)
        work = of, one.why, one.change
        why, change = ("likewise", ()) if work in told else (one.why, one.change)
        told.add(work)
        yield Finding(one.line, script.code_at(one.line), "loop", why, change, of=of)


def _uses(script: Script) -> Iterator[Finding]:
    for line, why, change in without_classes(script):
        yield Finding(line, script.code_at(line), "use", why, change)


def _transforms(script: Script) -> Iterator[Finding]:
    of_rows = [(loader.call.lineno, {*composes_of_rows(script, loader)}) for loader in script.loaders]
    keyed: set[str] = set()
    for made, line, cast, notes in casts_of_transforms(script) if script.loaders else ():
        without = [loader for loader, lines in of_rows if line in lines]
        of = tuple(one for one in script.loaders_of(made) if one not in without)
        if without and not of:
            continue
        casts, notes = casts_with_masks(script, made, cast, notes)
        cast = next(iter(casts.values()), "")
        done = "A cast does this to rows that memload reads, while its threads gather them"
        why = done if cast else "Rows that memload reads have no transform, but what follows"
        if "Augment(" in cast:
            why += "; random numbers are drawn by row, and labels in pixels (boxes, landmarks) do not follow"
        listed = ", ".join(f"{quoted(name)}: {one}" for name, one in casts.items())
        code, where = (f"cast={{{listed}}}  {IN_FAST_LOADER}",) * bool(cast), ""
        one = dict_of(script, made) if cast else None
        if one is not None and (given := [*_of_keys(script, one.name)]):
            by_key = _casts_of(script, one.name)
            code = (f"{by_key}[{one.key}] = {cast}" if one.name in keyed else f"{by_key} = {{{one.key}: {cast}}}",)
            where = f"below line {one.last}"
            yield from given if one.name not in keyed else ()
            keyed.add(one.name)
        yield Finding(line, script.code_at(line), "transform", why, code, notes=notes, of=of, where=where)


def _casts_of(script: Script, name: str) -> str:
    return free_name(script, f"{name}_casts")


def _of_keys(script: Script, name: str) -> Iterator[Finding]:
    """Yield the argument of each loader whose transforms are an element of a dict."""
    for loader in script.loaders:
        line, given = loader.call.lineno, loader.given.get("dataset")
        calls = [] if given is None else script.reached(given, line)
        parts = [*[given] * (given is not None), *(one for call in calls for one in arguments(call))]
        keys = [part.slice for part in parts if isinstance(part, ast.Subscript) and name_of(part.value) == name]
        if keys:
            key = given.slice if isinstance(given, ast.Subscript) else keys[0]
            code = f'cast={{"image": {_casts_of(script, name)}[{ast.unparse(key)}]}}  {IN_FAST_LOADER}'
            yield Finding(
                line,
                script.line(loader.call),
                "transform",
                "The loader has the cast of its transform",
                (code,),
                of=(line,),
            )


# The text


def report(script: Script, found: Sequence[Finding]) -> str:
    """Return the findings as text, line by line of the script."""
    loaders = [one for one in found if one.about in ("loader", "other")]
    if not loaders:
        return _NO_LOADER.format(path=script.path, others=", ".join(dict.fromkeys(OTHERS.values())))
    states = [_WORDS[one.native] if one.about == "loader" else "of another library" for one in loaders]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    lines = [f"{script.path}: {len(loaders)} loader{'s' * (len(loaders) > 1)}: {', '.join(counts)}"]
    shown = 0
    for one in found:
        if one.line != shown:
            lines += ["", f"{one.line:>5}  {one.code}"]
            shown = one.line
        lines += _told(one)
    lines += ["", *_next(script, found)]
    return "\n".join(lines)


def _told(one: Finding) -> Iterator[str]:
    """Yield what is said of a line: sentences, then commands and code, each further to the right and by itself."""
    if one.about == "loader":
        yield f"       {_WORDS[one.native]}: {one.why}"
    elif one.about != "dataset":
        yield f"       {one.why}"
    yield from (f"       {note}" for note in one.notes)
    if one.commands:
        yield "       once, on the command line:"
        yield from (f"         {command}" for command in one.commands)
    if one.change and (one.where or one.about == "dataset"):
        native = "then native with, " if one.commands else "native with, " if one.about == "dataset" else ""
        yield f"       {native}{one.where or 'instead'}:"
    for code in one.change:
        yield f"         {code}{'  (safe)' if one.safe else ''}"


def _next(script: Script, found: Sequence[Finding]) -> Iterator[str]:
    path = script.path
    names = [script.name_for(one.call) or _element_of(script, one.call) for one in script.loaders]
    name = next(filter(None, names), "loader")
    if any(one.safe for one in found):
        yield f"Safe changes, with `import memload`:  memload init {path} --diff | patch {path}      or  --write COPY"
    yield f"Then:  print({name}.engine, {name}.why)      and after an epoch  print({name}.stats())"
    yield "Pages:  docs/converting-scripts.md, docs/migration.md, docs/native-datasets.md, docs/dataloader-arguments.md"
    yield f"        docs is {_pages()}"


def _element_of(script: Script, call: ast.Call) -> str:
    """Return the code of a loader that is one of several assigned, or in a dict, such as `loaders['train']`."""
    statements = (one for one in script.nodes if isinstance(one, ast.Assign))
    for target, made in (pair for one in statements for pair in assigned(one)):
        key = None
        if made is call and isinstance(target, ast.Subscript) and name_of(target.value):
            turn = next(iter(turns_around(script, call)), {})
            key = ast.Constant(turn[name_of(target.slice)]) if name_of(target.slice) in turn else target.slice
            target = target.value
        elif made is call:
            return name_of(target)
        elif isinstance(made, ast.DictComp) and made.value is call and isinstance(made.generators[0].iter, ast.List):
            key = next(iter(made.generators[0].iter.elts), None)
        elif isinstance(made, ast.Dict):
            key = next((key for key, value in zip(made.keys, made.values, strict=True) if value is call), None)
        if isinstance(key, ast.Constant):
            return f"{name_of(target)}[{ast.unparse(key)}]"
    return ""


def _pages() -> str:
    """Return where the pages lie: the address that the installed package states, or the sources."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for stated in importlib.metadata.metadata("memload").get_all("Project-URL") or []:
            label, _, address = stated.partition(", ")
            if label == "Documentation":
                return str(address).removesuffix("/README.md")
    return "a folder of memload's sources"


# The changes


def converted(script: Script) -> str:
    """Return the script with FastLoader in the place of DataLoader, and the import that this needs.

    Raises:
        ValueError: the script has the name `memload` for something of its own.
    """
    made = [loader for loader in script.loaders if loader.kind in LOADERS]
    if not made:
        return script.text
    if script.imported.get("memload", "memload") != "memload" or script.value_of(ast.Name("memload"), 10**9):
        raise ValueError(f"{script.path}: the name memload is that of something else here: rename it first")
    lines = lines_of(script.text)
    for loader in sorted(made, key=lambda one: (one.call.lineno, one.call.col_offset), reverse=True):
        _replace(lines, loader.call.func, FAST_LOADER)
    if "memload" not in script.imported:
        at, before = _place_of_import(script)
        lines[at:at] = [f"import memload{_end(lines)}"] if before else [f"{_end(lines)}import memload{_end(lines)}"]
    return "".join(lines)


def _end(lines: Sequence[str]) -> str:
    return "\r\n" if lines and lines[0].endswith("\r\n") else "\n"


def _replace(lines: list[str], node: ast.expr, text: str) -> None:
    """Replace an expression; its columns count bytes of UTF-8."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first].encode()[: node.col_offset]
    tail = lines[last].encode()[node.end_col_offset :]
    lines[first : last + 1] = [head.decode() + text + tail.decode()]


def _place_of_import(script: Script) -> tuple[int, bool]:
    """Return the line before which `import memload` goes, behind the imports at the top; False without any above."""
    top = [node for node in script.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    first_call = min(loader.call.lineno for loader in script.loaders)
    above = [node for node in top if node.lineno < first_call]
    if above:
        return above[-1].end_lineno or above[-1].lineno, True
    first = script.tree.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 1, False) if is_docstring else (first.lineno - 1, True)


def patch_of(script: Script, changed: str) -> str:
    """Return the difference as a patch for `patch` or `git apply`."""
    name = str(script.path)
    before, after = (lines_of(text) for text in (script.text, changed))
    lines = []
    for line in difflib.unified_diff(before, after, name, name):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)
