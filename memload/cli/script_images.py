"""What replaces a Dataset class of a script that decodes images: `memload write --images`, with folder and table."""

from __future__ import annotations

import ast
import contextlib
import csv
import shlex
from collections.abc import Iterator, Mapping, Sequence

from memload.cli.script import IN_FAST_LOADER, Advice, name_of
from memload.cli.script_names import is_none, local_of, quoted
from memload.cli.script_options import notes_of_options
from memload.cli.script_reads import ClassOf, Sample
from memload.cli.script_transforms import is_composed, is_to_tensor, sizes_of
from memload.cli.script_values import text_of
from memload.images.tables import KEYS

IMAGES = frozenset(
    [
        *("PIL.Image.open", "cv2.imread", "torchvision.io.read_image", "torchvision.io.decode_image"),
        *("imageio.imread", "imageio.v3.imread", "skimage.io.imread", "matplotlib.pyplot.imread"),
        *("torchvision.datasets.folder.default_loader", "matplotlib.image.imread"),
    ]
)
_TABLES = frozenset(["pandas.read_csv", "pandas.read_json", "pandas.read_parquet", "csv.DictReader", "csv.reader"])


def decoded_once(one: ClassOf, sample: Sample) -> tuple[Advice, tuple[str, ...]]:
    """Return the command that decodes the images of a class once, and the fields of a sample then.

    Both are empty if the class opens no images, or if a sample has more than an image and cells of a table.
    """
    calls = [node for node in ast.walk(one.made) if isinstance(node, ast.Call)]
    opened = next((call for call in calls if one.script.called(call) in IMAGES and call.args), None)
    if opened is None:
        return Advice(), ()
    columns = [_column(one, part.code) for part in sample.parts]
    computed = [part.name for part, column in zip(sample.parts, columns, strict=True) if column is None and part.name]
    table = _table(one)
    if sample.transform or (table and len(computed) > 1):
        return Advice(), ()
    folder = folder_of(opened.args[0], one)
    named = _column_of_names(one, opened.args[0])
    name = named if isinstance(named, str) and named else "NAME"
    option = f" --image-column {shlex.quote(name)}" if table and name not in KEYS else ""
    others = [ClassOf(one.script, one.made, node) for node in one.script.nodes if isinstance(node, ast.Call)]
    sets = [other for other in others if one.script.called(other.call) == one.made.name]
    sharing = [other for other in sets if folder_of(opened.args[0], other) == folder]
    part = " --skip-unmatched" * (len(sharing) > 1)  # the images of other tables are in the folder, too
    labels = f" --table {table}{option}{part}" if table else ""
    numbers = {column: "COLUMN" for column in columns if isinstance(column, int)}
    if len(numbers) > 1:
        numbers = {column: f"COLUMN_{column}" for column in numbers}
    fields = ["image", *(_heading(column, numbers) for column in columns if column is not None)]
    in_order = ["image" if column is None else _heading(column, numbers) for column in columns]
    if not table:
        in_order = ["image", "label"] if len(in_order) == 2 else []
    names = [part.name for part in sample.parts]
    renamed = {old: new for old, new in zip(in_order, names, strict=False) if old != new and sample.kind == "dict"}
    form = f".as_tuple({', '.join(map(quoted, in_order))})" if sample.kind == "tuple" and len(fields) > 1 else ""
    size, _, note = sizes_of(one.script, one.call, [folder])[0].partition("  # ")
    notes = ["images are decoded once, in C", *[note] * bool(note)]
    notes += _placeholders(table, {"NAME": named} if "NAME" in option else {}, numbers)
    if not table:
        notes.append("--labels TABLE.csv adds the columns of a table to the images, and --masks DIR their masks")
    if renamed and table:
        form = f".rename({{{', '.join(f'{quoted(old)}: {quoted(new)}' for old, new in renamed.items())}}})"
        notes += [f"images are then {quoted(renamed['image'])}, in cast=, too"] * ("image" in renamed)
    if not form and sample.kind != "dict":
        notes.append('.as_tuple("image", "label") makes batches that are tuples')
    command = f"memload write --images {folder or 'DIR'}{labels}{size} {shlex.quote(one.shards + one.turn)}"
    told = f"each dataset that this line makes has its own {one.turn[:-1]}: the command once for each"
    notes += [*[told] * bool(one.turn), *notes_of_options(one.script, one.call, one.made)]
    work = _transforms(one, sample, in_order if form and sample.kind == "tuple" else [])
    casts = [
        f"cast={{{quoted(renamed.get(heading, heading))}: {dtype}}}  {IN_FAST_LOADER}"
        for heading, part, column in zip(in_order, sample.parts, columns, strict=False)
        if column is not None and (dtype := _short_float(one, part.code))
    ]
    code = (f"{one.name} = memload.open({one.code_of(one.shards)}){form}", *work.code, *casts)
    advice = Advice(code, (command,), (*notes, *work.notes))
    return advice, tuple(in_order) if sample.kind == "tuple" else ()


def _transforms(one: ClassOf, sample: Sample, fields: Sequence[str]) -> Advice:
    """Return what does to stored images and labels what the transforms do that the class is given.

    Args:
        one: the class.
        sample: what it returns.
        fields: the fields of a tuple that the stored set has, in the order of the sample; empty of another form.
    """
    code, notes, changed = [], [], [f"batch[{place}]" for place in range(len(fields))]
    columns = [_column(one, part.code) for part in sample.parts]
    image = columns.index(None) if None in columns else -1
    for place, part in enumerate(sample.parts):
        for given in _given(one, part.code):
            text = ast.unparse(given)
            if place == image and is_to_tensor(one.script, given):
                code.append(f'cast={{"image": memload.Cast(torch.float32, std=255, channels=-3)}}  {IN_FAST_LOADER}')
            elif place == image and not is_composed(one.script, given, one.call):
                notes.append(f"not followed: {text}, of images: .map(fn) of samples, whose images are uint8 (C, H, W)")
            elif place != image and fields:
                each = ast.unparse(ast.Call(given, [ast.Name("value")], []))
                listed = f"[{each} for value in {changed[place]}.tolist()]"
                changed[place] = f"torch.utils.data.default_collate({listed})"
                notes.append(f"batch_transform calls {text} of each label; where labels are texts, leave .tolist() out")
            elif place != image:
                notes.append(f"not followed: {text}, of {part.name}: .map(fn) of samples")
    if any("default_collate" in field for field in changed):
        code.append(f"batch_transform=lambda batch: [{', '.join(changed)}]  {IN_FAST_LOADER}")
    return Advice(tuple(code), notes=tuple(notes))


def _given(one: ClassOf, code: ast.expr) -> list[ast.expr]:
    """Return the transforms that a class is given and calls for a part of a sample, the first one first."""
    found: list[ast.expr] = []
    code, before = _expanded(one, code)
    while isinstance(code, ast.Call) and len(code.args) == 1:
        given = one.outside(code.func, one.getter, 10**9) if name_of(code.func).startswith("self.") else None
        if given is not None and not is_none(given):
            found.insert(0, given)
        code, before = _expanded(one, code.args[0], before)
    return found


def _expanded(one: ClassOf, node: ast.expr, before: int = 10**9) -> tuple[ast.expr, int]:
    """Return what a name in `__getitem__` was assigned above a line, and that line; other expressions as they are."""
    while isinstance(node, ast.Name) and (local := local_of(one.getter, node.id, before)) is not None:
        before, node = local
    return node, before


def folder_of(path: ast.expr, one: ClassOf) -> str:
    """Return the folder below which a class opens images: the beginning of their paths that does not vary."""
    path, _ = _expanded(one, path)
    parts: list[ast.expr] = []
    between = "/"
    if isinstance(path, ast.Call) and one.script.called(path) in ("os.path.join", "pathlib.Path"):
        parts = path.args
    elif isinstance(path, ast.BinOp) and isinstance(path.op, (ast.Add, ast.Div)):
        parts, between = [path.left], "/"
    elif isinstance(path, ast.JoinedStr):
        parts, between = path.values, ""
    texts = []
    for part in parts:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        known = one.outside(inner, one.getter, 10**9)
        text = None if known is None else text_of(one.script, known)
        if text is None:
            break
        texts.append(text)
    joined = between.join(texts)
    return joined if joined == "/" else joined.rstrip("/")


def tables_of(one: ClassOf) -> Iterator[ast.Call]:
    """Yield the calls by which a class reads tables."""
    for node in ast.walk(one.made):
        if isinstance(node, ast.Call) and one.script.called(node) in _TABLES and node.args:
            yield node


def _table(one: ClassOf) -> str:
    """Return the path of the table that a class reads, or TABLE where the script does not say it; "" for none."""
    for call in tables_of(one):
        method = next(node for node in one.made.body if any(inner is call for inner in ast.walk(node)))
        if not isinstance(method, ast.FunctionDef):
            continue
        given = call.args[0]
        if isinstance(given, ast.Name) and (local := local_of(method, given.id, call.lineno + 1)) is not None:
            given = local[1]  # a file: with open(path) as file
        if isinstance(given, ast.Call) and one.script.called(given) == "open" and given.args:
            given = given.args[0]
        path = one.outside(given, method, call.lineno + 1)
        text = None if path is None else text_of(one.script, path)
        return text or "TABLE"
    return ""


def _column(one: ClassOf, code: ast.expr) -> str | int | None:
    """Return the column of the table that a part of a sample is, by heading or number; None for what is no cell."""
    code, before = _expanded(one, code)
    while isinstance(code, ast.Call) and len(code.args) == 1:  # int(row["label"]), torch.tensor(...)
        code, before = _expanded(one, code.args[0], before)
    if not isinstance(code, ast.Subscript) or not list(tables_of(one)):
        return None
    axes = code.slice.elts if isinstance(code.slice, ast.Tuple) else [code.slice]
    last = axes[-1]
    if isinstance(last, ast.Constant) and isinstance(last.value, str):
        return last.value
    place = last.value if isinstance(last, ast.Constant) and isinstance(last.value, int) else None
    return None if place is None else dict(enumerate(_headings(one))).get(place, place)


def _short_float(one: ClassOf, code: ast.expr) -> str:
    """Return the dtype of torch that a cell of a table is given, where it is shorter than the float64 it has; or ""."""
    code, before = _expanded(one, code)
    while isinstance(code, ast.Call) and len(code.args) == 1:
        stated = [ast.unparse(word.value) for word in code.keywords if word.arg == "dtype"]
        for name in (one.script.called(code), *stated):
            if (short := name.rpartition(".")[2]) in ("float32", "float16", "bfloat16"):
                return f"torch.{short}"
        code, before = _expanded(one, code.args[0], before)
    return ""


def _headings(one: ClassOf) -> Sequence[str]:
    """Return the headings of the CSV table that a class reads as it is; [] if it is not there, or read otherwise."""
    call, path = next(tables_of(one)), one.script.file_at(_table(one))
    if path is None or path.suffix != ".csv" or call.keywords or len(call.args) > 1:
        return []
    with contextlib.suppress(OSError, ValueError, csv.Error), path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file), [])
    return []


def _column_of_names(one: ClassOf, path: ast.expr) -> str | int | None:
    """Return the column of the table that names the images, by heading or number; None if it is not said."""
    found = [_column(one, node) for node in ast.walk(_expanded(one, path)[0]) if isinstance(node, ast.expr)]
    headings = [column for column in found if isinstance(column, str)]
    numbers = {column for column in found if isinstance(column, int)}
    return headings[0] if headings else numbers.pop() if len(numbers) == 1 else None


def _heading(column: str | int, numbers: Mapping[int, str]) -> str:
    return numbers[column] if isinstance(column, int) else column


def _placeholders(table: str, names: Mapping[str, str | int | None], numbers: Mapping[int, str]) -> Iterator[str]:
    """Yield what words in the command and in the code stand for, which are those of headings of a table."""
    of = "the table" if table in ("", "TABLE") else table
    known = {word: column for word, column in names.items() if isinstance(column, int)}
    known |= {word: column for column, word in numbers.items()}
    places = " and ".join(str(column) for column in dict.fromkeys(known.values()))
    several = "s" * (len(set(known.values())) > 1)
    if known:
        yield f"{', '.join(known)}: the heading{several} of column{several} {places} of {of}"
    yield from (f"{word}: the heading of the column of {of} that names images" for word in names if word not in known)
