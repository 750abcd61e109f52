"""What replaces a Dataset class of a script: a file that is opened, one method, or rows that are stored once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from memload.cli.script import Advice, Script, Verdict, name_of
from memload.cli.script_collate import Place, collate_of, of_padded
from memload.cli.script_images import decoded_once
from memload.cli.script_masks import stored_pairs
from memload.cli.script_moved import Above
from memload.cli.script_names import place_of, quoted
from memload.cli.script_reads import FILES, ClassOf, Part, Read, Sample
from memload.cli.script_stored import draws, stored_once
from memload.cli.script_work import own_function, work_on_rows

_READERS = {
    "h5py.File": "HDF5 rows are read in place, or their chunks decoded by threads",
    "numpy.load": "rows of .npy and .npz are read in place",
    "numpy.memmap": "bare rows are read in place",
}
_OF_ONE_ROW = (
    "not followed: which rows a sample has; where it is more than one row, store samples once: docs/migration.md"
)
_OTHERS = {
    "torch.load": "rows of tensors in torch.save files are read in place",
    "zarr.open": "chunks of Zarr are decoded by threads",
    "zarr.open_array": "chunks of Zarr are decoded by threads",
    "safetensors.safe_open": "rows of safetensors are read in place",
    "safetensors.torch.load_file": "rows of safetensors are read in place",
}
_ROWLESS = {"pyarrow.parquet.read_table": "Parquet is no format of rows, so they are stored once"}


def of_class(script: Script, name: str, call: ast.Call) -> Verdict:
    """Return the verdict on a Dataset class of the script, as one call makes it."""
    made = script.class_named(name)
    assert made is not None
    methods = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef)}
    if "__memload__" in methods:
        return Verdict(True, f"{name} says by __memload__ what it holds", line=made.lineno)
    one = ClassOf(script, made, call)
    if "IterableDataset" in [script.meaning(base).rpartition(".")[2] for base in made.bases] or (
        "__iter__" in methods and "__getitem__" not in methods
    ):
        why = f"{name} is iterable: torch's own code runs it"
        return Verdict(False, why, _in_its_place(one, stored_once(one, None)), call.lineno)
    getter = methods.get("__getitem__")
    if getter is None:
        return Verdict(None, f"{name} inherits __getitem__: print(loader.engine, loader.why)", line=made.lineno)
    sample = one.sample() if len(getter.args.args) == 2 else Sample("one")
    fields = tuple(part.name for part in sample.parts)
    advice = _opened(one, sample)
    if not advice and (method := _says_itself(one)) is not None:
        why = f"{name} is Python code; it only indexes arrays, which one method tells (add it to the class)"
        return Verdict(False, why, Advice(method, where="in the class"), made.lineno, fields, sample.kind)
    if not advice:
        advice, decoded = stored_pairs(one, sample)
        advice, decoded = (advice, decoded) if advice else decoded_once(one, sample)
        fields = decoded or fields
    advice = advice or _read_otherwise(one) or stored_once(one, sample)
    why = f"{name}.__getitem__ is Python code (line {getter.lineno})"
    return Verdict(False, why, _in_its_place(one, advice), call.lineno, fields, sample.kind if fields else "")


def _in_its_place(one: ClassOf, advice: Advice) -> Advice:
    """Return advice with where its code stands."""
    unknown = ("PATH: the script does not say the path where it could be followed",)
    notes = [*advice.notes, *unknown * any("(PATH" in line for line in advice.code)]
    used = _attributes_used(one) if advice.code else ()
    return Advice(advice.code, advice.commands, (*notes, *used), place_of(one.script, one.call))


def _attributes_used(one: ClassOf) -> Iterator[str]:
    """Yield what the script takes of the dataset that the class has, and what replaces the class has not."""
    name = one.script.name_for(one.call)
    used: dict[str, set[int]] = {}
    attributes = [node for node in one.script.nodes if isinstance(node, ast.Attribute)]
    for node in attributes if name else ():
        own = one.method(node.attr) or any(True for _ in one.assigned(node.attr))
        if own and name_of(node.value) == name:
            used.setdefault(node.attr, set()).add(node.lineno)
    for attribute, lines in used.items():
        where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, sorted(lines)))}"
        yield f"memload's dataset has no .{attribute}, for {where}: take it from {ast.unparse(one.call)}.{attribute}"


# Files whose rows are read in place


def _opened(one: ClassOf, sample: Sample) -> Advice:
    """Return the code that opens the files that a class reads rows from; nothing if it reads none."""
    reads = [part.read for part in sample.parts if part.read is not None]
    if not reads:
        return _with_keys(one)
    if any(read.own_key or (read.path == "PATH" and len(reads) < len(sample.parts)) for read in reads):
        return _samples_of_their_own(one, sample, reads)
    if whole := [part.name for part in sample.parts if part.read is not None and part.read.index is None]:
        why = f"{', '.join(whole)}: not a row of an array, but all of it in each sample, so it is stored once"
        return stored_once(one, sample, why)
    if len(reads) < len(sample.parts) or len(_chosen(one, reads)) > 1 or not all(one.name for one in sample.parts):
        return stored_once(one, sample, "a sample is more than rows of these files, so it is stored once")
    if _ahead_of(one, reads) is None:
        why = "windows are joined with rows that are not their last or the next, so they are stored once"
        return stored_once(one, sample, why)
    if any(isinstance(read.index, ast.Slice) and not _lags(read.index, one.index) for read in reads):
        why = "windows that do not start at the sample's number are stored once; docs/windows.md has them in place"
        return stored_once(one, sample, why)
    above = Above(one)
    rows = _rows(one, sample, above)
    work = work_on_rows(one, sample, above)
    source = f"{one.name} = {_source_of(sample, reads)}"
    notes = [_READERS[read.kind] for read in reads]
    notes += [f"{read.path} gives as many rows as it has; the script maps {read.rows}" for read in reads if read.rows]
    if not rows.code and (length := _other_length(one, reads)):
        notes.append(f"the class has {length} samples: compare len({one.name}), and choose by .select(range(n))")
    code = (*above.lines(), source, *rows.code, *work.code)
    return Advice(code, notes=tuple(dict.fromkeys([*notes, *rows.notes, *work.notes])))


def _source_of(sample: Sample, reads: Sequence[Read]) -> str:
    """Return the code of the dataset that has the arrays as fields, in the form of the sample."""
    parts = sample.parts
    form = ""
    if sample.kind == "tuple":
        form = f".as_tuple({', '.join(quoted(part.name) for part in parts)})"
    elif sample.kind == "one":
        form = f".only({quoted(parts[0].name)})"
    files: dict[tuple[str, ...], list[tuple[Part, Read]]] = {}
    for part, read in zip(parts, reads, strict=True):
        files.setdefault((read.kind, read.path) if read.key else (read.kind, *read.row), []).append((part, read))
    if len(files) == 1 and (reads[0].key or len(reads) == 1):
        return f"{_one_file(next(iter(files.values())))}{form}"
    members = [
        f"{pairs[0][0].name}={_one_file(pairs, named=len(pairs) > 1)}"
        for same in files.values()
        for pairs in ([same] if same[0][1].key else [[pair] for pair in same])
    ]
    return f"memload.zip({', '.join(members)}){form}"


def _one_file(pairs: Sequence[tuple[Part, Read]], named: bool = True) -> str:
    """Return the code that opens a file; with names of fields, unless what it is put into names its one field."""
    part, read = pairs[0]
    if read.array:
        return f"memload.from_arrays({part.name}={read.array})"
    options = f", {read.options}" if read.options else ""
    if not read.key:
        field = f", field={quoted(part.name)}" if named else ""
        return f"memload.open({read.path}{field}{options})"
    if len(pairs) == 1 and not named:
        return f"memload.open({read.path}, key={_key(read)})"
    if all(part.name == read.key and not read.is_code for part, read in pairs):
        keys = quoted(read.key) if len(pairs) == 1 else f"[{', '.join(quoted(read.key) for _, read in pairs)}]"
    else:
        keys = f"{{{', '.join(f'{quoted(part.name)}: {_key(read)}' for part, read in pairs)}}}"
    return f"memload.open({read.path}, key={keys})"


def _key(read: Read) -> str:
    return read.key if read.is_code else quoted(read.key)


def _chosen(one: ClassOf, reads: Sequence[Read]) -> list[str]:
    """Return by what the class chooses rows, but for windows and where sample `index` has the row `index`."""
    plain = (one.index, f"int({one.index})", f"{one.index}.tolist()", f"{one.index}.item()")
    codes = dict.fromkeys(
        ast.unparse(read.index) for read in reads if read.index is not None and not isinstance(read.index, ast.Slice)
    )
    return [code for code in codes if code not in plain]


def _rows(one: ClassOf, sample: Sample, above: Above) -> Advice:
    """Return what chooses the rows, where the class does not read row `index` for sample `index`."""
    index, reads = one.index, [part.read for part in sample.parts if part.read is not None]
    found = {part.name: part.read.index for part in sample.parts if part.read is not None}
    windows = {name: where for name, where in found.items() if isinstance(where, ast.Slice)}
    ahead = _ahead_of(one, reads) or 0
    lags = {name: _lags(where, index, ahead) for name, where in windows.items()}
    if lags and all(lags.values()):
        listed = ", ".join(f"{name}={code}" for name, code in lags.items())
        row = "the row behind a window" if ahead else "the last row of a window"
        note = f"windows are rows with lags; other fields are those of {row}"
        return Advice((f"{one.name} = {one.name}.with_lags({listed})",), notes=(note,))
    notes = []
    code = []
    for chosen in _chosen(one, reads):
        rows = _rows_of(one, ast.parse(chosen, mode="eval").body, above)
        if rows:
            code.append(f"{one.name} = {one.name}.select({rows})  # the rows that the class reads")
        else:
            notes.append(f"not followed: sample {index} is row {chosen}: choose these rows, {one.name}.select(rows)")
    return Advice(tuple(code), notes=tuple(notes))


def _ahead_of(one: ClassOf, reads: Sequence[Read]) -> int | None:
    """Return how many rows other fields are behind the one row at which all windows end: 0, 1, or None for others."""
    windows = [read.index for read in reads if isinstance(read.index, ast.Slice)]
    counts = {ast.unparse(where.upper.right) for where in windows if isinstance(where.upper, ast.BinOp)}
    if not windows or not all(_lags(where, one.index) for where in windows):
        return 0
    if len(counts) > 1:
        return None
    (count,) = counts
    last = {f"{one.index} + {count} - 1", f"{one.index} + ({count} - 1)"}
    last |= {f"{one.index} + {int(count) - 1}"} if count.isdigit() else set()
    others = [read.index for read in reads if read.index is not None and not isinstance(read.index, ast.Slice)]
    codes = {ast.unparse(where) for where in others}
    return 0 if codes <= last else 1 if codes == {f"{one.index} + {count}"} else None


def _other_length(one: ClassOf, reads: Sequence[Read]) -> str:
    """Return the code of the number of samples where it is not simply the length of an array, or of a row's array."""
    length = one.method("__len__")
    code = [
        ast.unparse(node.value) for node in ast.walk(length or one.made) if isinstance(node, ast.Return) and node.value
    ]
    simple = len(code) == 1 and re.fullmatch(r"len\(self\.\w+\)|self\.\w+\.shape\[0\]|\w+", code[0])
    for method, line, value in one.assigned(code[0].removeprefix("self.")) if len(code) == 1 else ():
        counted = value.args[0] if one.script.called(value) == "len" and isinstance(value, ast.Call) else None
        read = None if counted is None else one.read(counted, method, line + 1)
        if read is not None and read.key in [other.key for other in reads]:
            return ""
    return "" if length is None or simple else " or ".join(code)


def _rows_of(one: ClassOf, where: ast.expr, above: Above) -> str:
    """Return the code of all rows that an index chooses; "" if the number of samples is not seen."""
    while isinstance(where, ast.Call) and name_of(where.func) == "int" and len(where.args) == 1:
        where = where.args[0]
    if isinstance(where, ast.Subscript) and name_of(where.slice) == one.index:
        return ast.unparse(above.without_files(where.value, one.index, "rows"))
    length = one.method("__len__")
    returned = [node.value for node in ast.walk(length) if isinstance(node, ast.Return)] if length else []
    count = one.outside(returned[0], length, 10**9) if length and len(returned) == 1 and returned[0] else None
    if count is None:
        return ""
    row, turns = (ast.unparse(above.without_files(part, one.index, "rows")) for part in (where, count))
    return f"[{row} for {one.index} in range({turns})]"


def _lags(where: ast.Slice, index: str, ahead: int = 0) -> str:
    """Return the lags of the rows `index` to `index + n`, the earliest first; "" for other rows.

    Args:
        where: the rows.
        index: the name of the number of the sample.
        ahead: how many rows the other fields are behind the last of these.
    """
    above = where.upper
    if where.step is not None or name_of(where.lower) != index or not isinstance(above, ast.BinOp):
        return ""
    if not isinstance(above.op, ast.Add) or name_of(above.left) != index:
        return ""
    count = above.right
    if isinstance(count, ast.Constant) and isinstance(count.value, int):
        return f"range({count.value - 1 + ahead}, {ahead - 1}, -1)"
    return f"range({ast.unparse(count)}{' - 1' * (not ahead)}, {ahead - 1}, -1)"


def _samples_of_their_own(one: ClassOf, sample: Sample, reads: Sequence[Read]) -> Advice:
    of = "arrays" if any(read.own_key for read in reads) else "files"
    return stored_once(one, sample, f"each sample has {of} of its own, so they are stored once, as rows")


def _with_keys(one: ClassOf) -> Advice:
    """Return what opens the HDF5 file of a class whose sample does not show what it reads: its path and keys."""
    found: dict[str, set[str]] = {}
    for method in (node for node in one.made.body if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(method):
            read = one.read(node, method, node.lineno + 1) if isinstance(node, ast.expr) else None
            if read is not None and read.kind == "h5py.File":
                if read.own_key:
                    return _samples_of_their_own(one, one.sample(), [read])
                found.setdefault(read.path, set()).update([_key(read)] if read.key else [])
    code = []
    for path, keys in found.items():
        longest = [key for key in sorted(keys) if not any(other.startswith(f"{key[:-1]}/") for other in keys)]
        listed = f", key=[{', '.join(longest)}]" if longest else ""
        code.append(f"{one.name} = memload.open({path}{listed})")
    if not code:
        return Advice()
    return Advice((*code, *own_function(one)), notes=(_READERS["h5py.File"], _OF_ONE_ROW))


def _read_otherwise(one: ClassOf) -> Advice:
    """Return what opens the file of a class that reads one in a way that is not followed."""
    calls = [node for node in ast.walk(one.made) if isinstance(node, ast.Call)]
    call = next((call for call in calls if one.script.called(call) in {*_OTHERS, *_ROWLESS, *FILES}), None)
    if call is None:
        return Advice()
    kind = one.script.called(call)
    method = next(node for node in one.made.body if any(inner is call for inner in ast.walk(node)))
    if kind in _ROWLESS:
        return stored_once(one, one.sample(), _ROWLESS[kind])
    opened = f"{one.name} = memload.open(PATH)"
    if call.args and isinstance(method, ast.FunctionDef):
        if one.depends_on_row(call.args[0], method, call.lineno):
            return _samples_of_their_own(one, one.sample(), [])
        opened = f"{one.name} = memload.open({one.path_of(call.args[0], method, call.lineno)})"
        read = one.read(call, method, call.lineno)
        if read is not None and (read.options or read.array):
            opened = f"{one.name} = {_one_file([(Part('data', call, read), read)])}"
    random = ("__getitem__ draws random numbers: by torch.rand, they follow from the row",) * draws(one)
    return Advice((opened, *own_function(one)), notes=({**_OTHERS, **_READERS}[kind], _OF_ONE_ROW, *random))


# Arrays in memory


def _says_itself(one: ClassOf) -> tuple[str, ...] | None:
    """Return `__memload__` for a class whose `__getitem__` only indexes attributes; None if it does more."""
    made, getter, collate = one.made, one.getter, collate_of(one.script, one.call)
    padded = () if collate is None else collate.padded
    body = [node for node in getter.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or len(getter.args.args) != 2 or len(made.bases) > 1:
        return None
    value, index = body[0].value, getter.args.args[1].arg
    if isinstance(value, ast.Tuple) and len(value.elts) > 1:
        attributes = [_indexed(part, index) for part in value.elts]
        names = [name or "" for name in attributes]
        if not all(names) or len(set(names)) < len(names):
            return None
        arrays = ", ".join(f"{name}={_array(name, place, padded)}" for place, name in enumerate(names))
        form = f".as_tuple({', '.join(map(repr, names))}){of_padded(collate, names)}"
        return ("def __memload__(self):", f"    return memload.from_arrays({arrays}){form}")
    if isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) and _is_name(key.value) for key in value.keys):
        attributes = [_indexed(part, index) for part in value.values]
        if value.keys and all(attributes):
            pairs = zip(value.keys, attributes, strict=True)
            named = {ast.literal_eval(key): name for key, name in pairs if key is not None}
            arrays = ", ".join(f"{key}={_array(name or '', key, padded)}" for key, name in named.items())
            return ("def __memload__(self):", f"    return memload.from_arrays({arrays}){of_padded(collate, [*named])}")
    return None


def _array(name: str, place: Place, padded: Sequence[Place]) -> str:
    """Return the code of the array that an attribute is; with rows that are padded, it may be a list."""
    if not padded:
        return f"self.{name}"
    return f"memload.ragged(self.{name})" if place in padded else f"torch.as_tensor(self.{name})"


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _indexed(node: ast.expr, index: str) -> str | None:
    """Return "x" for `self.x[index]`."""
    if isinstance(node, ast.Subscript) and name_of(node.slice) == index and name_of(node.value).startswith("self."):
        return name_of(node.value).removeprefix("self.")
    return None
