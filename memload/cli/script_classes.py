"""What replaces a Dataset class of a script: a file that is opened, one method, or rows that are stored once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memload.cli.script import Script, Verdict, name_of
from memload.cli.script_images import decoded_once
from memload.cli.script_reads import ClassOf, Read, Sample, quoted
from memload.cli.script_steps import cast_of
from memload.cli.script_transforms import split_at_random

_READERS = {
    "h5py.File": "HDF5 rows are read in place, or their chunks decoded by threads",
    "numpy.load": "rows of .npy and .npz are read in place",
}
_OTHERS = {
    "numpy.memmap": ("memload.open({0}, dtype=..., shape=...)", "raw rows are read in place"),
    "torch.load": ("memload.open({0})", "rows of tensors in torch.save files are read in place"),
    "zarr.open": ("memload.open({0})", "chunks of Zarr are decoded by threads"),
    "zarr.open_array": ("memload.open({0})", "chunks of Zarr are decoded by threads"),
    "safetensors.safe_open": ("memload.open({0})", "rows of safetensors are read in place"),
    "safetensors.torch.load_file": ("memload.open({0})", "rows of safetensors are read in place"),
    "pyarrow.parquet.read_table": ("memload.write once", "Parquet is no format of rows"),
}


def of_class(script: Script, name: str, call: ast.Call) -> Verdict:
    """Return the verdict on a Dataset class of the script, as one call makes it."""
    made = script.class_named(name)
    assert made is not None
    methods = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef)}
    if "__memload__" in methods:
        return Verdict(True, f"{name} says by __memload__ what it holds", (), made.lineno)
    one = ClassOf(script, made, call)
    if "IterableDataset" in [script.meaning(base).rpartition(".")[2] for base in made.bases] or (
        "__iter__" in methods and "__getitem__" not in methods
    ):
        return Verdict(False, f"{name} is iterable: torch's own code runs it", _stored_once(one, None), made.lineno)
    getter = methods.get("__getitem__")
    if getter is None:
        return Verdict(None, f"{name} inherits __getitem__: print(loader.engine, loader.why)", (), made.lineno)
    sample = one.sample() if len(getter.args.args) == 2 else Sample("one")
    fields = tuple(part.name for part in sample.parts)
    change = _opened(one, sample)
    if not change and (method := _says_itself(made, getter)) is not None:
        why = f"{name} is Python code; it only indexes arrays, which one method tells (add it to the class)"
        return Verdict(False, why, method, made.lineno, fields)
    if not change:
        change, decoded = decoded_once(one, sample)
        fields = decoded or fields
    change = change or _read_otherwise(one) or _stored_once(one, sample)
    return Verdict(False, f"{name}.__getitem__ is Python code (line {getter.lineno})", change, getter.lineno, fields)


# Files whose rows are read in place


def _opened(one: ClassOf, sample: Sample) -> tuple[str, ...]:
    """Return the code that opens the files that a class reads rows from; () if it reads none."""
    parts = [part for part in sample.parts if part.read is not None]
    reads = [part.read for part in parts if part.read is not None]
    if not reads:
        return _with_keys(one)
    if any(read.own_key or (read.path == "PATH" and len(reads) < len(sample.parts)) for read in reads):
        return _samples_of_their_own(one, sample, reads)
    if len(reads) < len(sample.parts) or len(_chosen(one, reads)) > 1:
        return ("# a sample is more than rows of these files: store it once", *_stored_once(one, sample))
    code = _source_of(sample, reads)
    notes = dict.fromkeys(_READERS[read.kind] for read in reads)
    lines = [f"{_name(one)} = {code}  # {'; '.join(notes)}"]
    casts = {part.name: cast_of(part.read.steps) for part in parts if part.read is not None}
    listed = ", ".join(f'"{name}": {cast}' for name, (cast, _) in casts.items() if cast)
    if listed:
        lines.append(f"cast={{{listed}}}  # in FastLoader")
    return (*lines, *_rows(one, sample), *_computed(one, sample, {name: rest for name, (_, rest) in casts.items()}))


def _source_of(sample: Sample, reads: Sequence[Read]) -> str:
    """Return the code of the dataset that has the arrays as fields, in the form of the sample."""
    parts = [part for part in sample.parts if part.read is not None]
    form = ""
    if sample.kind == "tuple" and len(parts) == len(sample.parts):
        form = f".as_tuple({', '.join(quoted(part.name) for part in parts)})"
    elif sample.kind == "one":
        form = f".only({quoted(parts[0].name)})"
    if len({(read.kind, read.path) for read in reads}) == 1 and all(read.key for read in reads):
        pairs = list(zip(parts, reads, strict=True))
        if all(part.name == read.key and not read.is_code for part, read in pairs):
            keys = quoted(reads[0].key) if len(reads) == 1 else f"[{', '.join(quoted(read.key) for read in reads)}]"
        else:
            keys = f"{{{', '.join(f'{quoted(part.name)}: {_key(read)}' for part, read in pairs)}}}"
        return f"memload.open({reads[0].path}, key={keys}){form}"
    if len(reads) == 1:
        return f"memload.open({reads[0].path}, field={quoted(parts[0].name)}){form}"
    members = [
        f"{part.name}=memload.open({read.path}{f', key={_key(read)}' if read.key else ''})"
        for part, read in zip(parts, reads, strict=True)
    ]
    return f"memload.zip({', '.join(members)}){form}"


def _key(read: Read) -> str:
    return read.key if read.is_code else quoted(read.key)


def _chosen(one: ClassOf, reads: Sequence[Read]) -> list[str]:
    """Return by what the class chooses rows, but for windows and where sample `index` has the row `index`."""
    plain = (one.index, f"int({one.index})", f"{one.index}.tolist()", f"{one.index}.item()")
    codes = dict.fromkeys(
        ast.unparse(read.index) for read in reads if read.index is not None and not isinstance(read.index, ast.Slice)
    )
    return [code for code in codes if code not in plain]


def _rows(one: ClassOf, sample: Sample) -> Iterator[str]:
    """Yield what chooses the rows, where the class does not read row `index` for sample `index`."""
    index, reads = one.index, [part.read for part in sample.parts if part.read is not None]
    found = {part.name: part.read.index for part in sample.parts if part.read is not None}
    windows = {name: where for name, where in found.items() if isinstance(where, ast.Slice)}
    lags = {name: _lags(where, index) for name, where in windows.items()}
    if lags and all(lags.values()):
        listed = ", ".join(f"{name}={code}" for name, code in lags.items())
        yield f"{_name(one)} = {_name(one)}.with_lags({listed})  # windows; other fields: the row of the last frame"
        return
    for name, where in windows.items():
        yield f"# {name}: the rows {ast.unparse(where)} of sample {index}: with_lags or windows, docs/windows.md"
    for code in _chosen(one, reads):
        if code.endswith(f"[{index}]"):
            rows = code.removesuffix(f"[{index}]")
            yield f"{_name(one)} = {_name(one)}.select({rows})  # the rows that the class reads"
        else:
            yield f"{_name(one)} = {_name(one)}.select([...])  # sample {index} is row {code}"


def _lags(where: ast.Slice, index: str) -> str:
    """Return the lags of the rows `index` to `index + n`, the earliest first; "" for other rows."""
    above = where.upper
    if (
        where.step is not None
        or where.lower is None
        or name_of(where.lower) != index
        or not isinstance(above, ast.BinOp)
    ):
        return ""
    if not isinstance(above.op, ast.Add) or name_of(above.left) != index:
        return ""
    count = above.right
    if isinstance(count, ast.Constant) and isinstance(count.value, int):
        return f"range({count.value - 1}, -1, -1)"
    return f"range({ast.unparse(count)} - 1, -1, -1)"


def _computed(one: ClassOf, sample: Sample, rest: dict[str, list[str]]) -> Iterator[str]:
    """Yield what is left to a function: what no cast does, and fields that are no rows of files."""
    left = [f"{code}" for codes in rest.values() for code in codes]
    left += [f"{part.name}: {ast.unparse(part.code)}" for part in sample.parts if part.read is None]
    left += [sample.transform] if sample.transform else []
    if left:
        yield f"{_name(one)} = {_name(one)}.map(fn)  # fn(sample) does the rest, in threads: {'; '.join(left)}"


def _samples_of_their_own(one: ClassOf, sample: Sample, reads: Sequence[Read]) -> tuple[str, ...]:
    of = "arrays" if any(read.own_key for read in reads) else "files"
    return (f"# each sample has {of} of its own: store them once, as rows", *_stored_once(one, sample))


def _with_keys(one: ClassOf) -> tuple[str, ...]:
    """Return what opens the HDF5 file of a class whose sample does not show what it reads: its path and keys."""
    found: dict[str, set[str]] = {}
    for method in (node for node in one.made.body if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(method):
            read = one.read(node, method, node.lineno + 1) if isinstance(node, ast.expr) else None
            if read is not None and read.kind == "h5py.File":
                if read.own_key:
                    return _samples_of_their_own(one, one.sample(), [read])
                found.setdefault(read.path, set()).update([_key(read)] if read.key else [])
    lines = []
    for path, keys in found.items():
        longest = [key for key in sorted(keys) if not any(other.startswith(f"{key[:-1]}/") for other in keys)]
        lines.append(
            f"{_name(one)} = memload.open({path}, key=[{', '.join(longest) or '...'}])  # {_READERS['h5py.File']}"
        )
    if lines:
        lines.append(
            f"{_name(one)} = {_name(one)}.map(fn)  # fn(sample): what __getitem__ computes of a row, in threads"
        )
    return tuple(lines)


def _read_otherwise(one: ClassOf) -> tuple[str, ...]:
    calls = [node for node in ast.walk(one.made) if isinstance(node, ast.Call)]
    read = next((call for call in calls if one.script.called(call) in {**_OTHERS, **_READERS}), None)
    if read is None:
        return ()
    code, why = _OTHERS.get(one.script.called(read)) or ("memload.open({0})", _READERS[one.script.called(read)])
    given = read.args[0] if read.args else None
    method = next(node for node in one.made.body if any(inner is read for inner in ast.walk(node)))
    argument = "PATH"
    if given is not None and isinstance(method, ast.FunctionDef):
        if one.depends_on_row(given, method, read.lineno):
            return _samples_of_their_own(one, one.sample(), [])
        argument = one.path_of(given, method, read.lineno)
    random = "; it draws random numbers: by torch.rand" if _draws(one) else ""
    return (
        f"{_name(one)} = {code.format(argument)}  # {why}",
        f"{_name(one)} = {_name(one)}.map(fn)  # what __getitem__ computes of a row, in threads{random}",
    )


# Rows that are stored once


def _stored_once(one: ClassOf, sample: Sample | None) -> tuple[str, ...]:
    """Return the code that stores what a class returns, with its random transforms left to `map`."""
    made, random, noise = split_at_random(one.script, one.call)
    fields = [part.name for part in sample.parts] if sample is not None else []
    if sample is not None and sample.kind == "dict" and all(fields):
        extend = f"writer.extend(**batch)  # {', '.join(fields)}: each row of one shape, so resize images here"
        form = ""
    elif len(fields) > 1:
        extend = f"writer.extend({', '.join(f'{name}=batch[{k}]' for k, name in enumerate(fields))})"
        form = f".as_tuple({', '.join(map(quoted, fields))})"
    elif fields:
        extend, form = f"writer.extend({fields[0]}=batch)", f".only({quoted(fields[0])})"
    else:
        extend, form = "writer.extend(**batch)  # a dict of fields; tuples: writer.extend(x=batch[0], y=batch[1])", ""
    lines = [
        'with memload.ShardWriter("shards/") as writer:  # once; without random transforms',
        f"    for batch in memload.FastLoader({made}, batch_size=64):",
        f"        {extend}",
    ]
    if _draws(one):
        lines.insert(
            0, "# __getitem__ draws random numbers: leave that out here, and do it in .map(fn), with torch.rand"
        )
    opened = f'memload.open("shards/"){form}'
    if not random:
        return (*lines, f"{_name(one)} = {opened}  # .map(fn) for random transforms of a row")
    mapped = (
        "random({name: value.numpy() for name, value in sample.items()})" if sample and sample.kind == "dict" else "..."
    )
    return (
        *lines,
        f"random = {random}",
        f"{_name(one)} = {opened}.map(lambda sample: {mapped})  # samples have tensors",
        *(
            f"# {name} draws from a generator that threads share: torch.randint in its place is drawn by row"
            for name in noise
        ),
    )


def _draws(one: ClassOf) -> bool:
    """Return whether `__getitem__` draws random numbers itself."""
    getter = one.method("__getitem__")
    called = [one.script.called(node) for node in ast.walk(getter) if isinstance(node, ast.Call)] if getter else []
    return any(name.startswith(("numpy.random.", "random.", "torch.rand")) for name in called)


def _name(one: ClassOf) -> str:
    return one.script.name_for(one.call) or "dataset"


# Arrays in memory


def _says_itself(made: ast.ClassDef, getter: ast.FunctionDef) -> tuple[str, ...] | None:
    """Return `__memload__` for a class whose `__getitem__` only indexes attributes; None if it does more."""
    body = [one for one in getter.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or len(getter.args.args) != 2 or len(made.bases) > 1:
        return None
    value, index = body[0].value, getter.args.args[1].arg
    if isinstance(value, ast.Tuple) and len(value.elts) > 1:
        attributes = [_indexed(one, index) for one in value.elts]
        names = [one or "" for one in attributes]
        if not all(names) or len(set(names)) < len(names):
            return None
        arrays = ", ".join(f"{name}=self.{name}" for name in names)
        return (
            "def __memload__(self):",
            f"    return memload.from_arrays({arrays}).as_tuple({', '.join(map(repr, names))})",
        )
    if isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) and _is_name(key.value) for key in value.keys):
        attributes = [_indexed(one, index) for one in value.values]
        if value.keys and all(attributes):
            pairs = zip(value.keys, attributes, strict=True)
            arrays = ", ".join(f"{ast.literal_eval(key)}=self.{name}" for key, name in pairs if key is not None)
            return ("def __memload__(self):", f"    return memload.from_arrays({arrays})")
    return None


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _indexed(node: ast.expr, index: str) -> str | None:
    """Return "x" for `self.x[index]`."""
    if isinstance(node, ast.Subscript) and name_of(node.slice) == index and name_of(node.value).startswith("self."):
        return name_of(node.value).removeprefix("self.")
    return None
