"""What a script's datasets say: which are read natively, and the code that replaces the others."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memload.cli.script import Script, name_of

_IN_MEMORY = ("MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST", "CIFAR10", "CIFAR100", "USPS")
COLOURS = ("CIFAR10", "CIFAR100")
"""Sets of torchvision whose data is (N, H, W, 3); that of the others in memory is (N, H, W)."""
_GREY = "[:, None]"


@dataclass(frozen=True)
class Verdict:
    """Whether a dataset is read natively.

    Attributes:
        native: None if only running the script tells.
        why: the reason, in a few words.
        change: code or a command that makes it native; empty if there is nothing to change.
        line: the line of the script that decides it; 0 if it is the loader's own.
    """

    native: bool | None
    why: str
    change: tuple[str, ...] = ()
    line: int = 0


_UNKNOWN = Verdict(None, "what this dataset is, only running the script tells: print(loader.engine, loader.why)")


def verdict_of(script: Script, node: ast.expr | None, before: int, depth: int = 0) -> Verdict:
    """Return the verdict on the dataset that an expression stands for, where it is used on a line."""
    value = None if node is None else script.value_of(_container(node), before)
    if isinstance(value, ast.DictComp):
        value = value.value
    elif isinstance(value, ast.Dict) and value.values:
        return _of_parts("a dict", [verdict_of(script, one, before, depth + 1) for one in value.values])
    if value is None or depth > 8:
        return _UNKNOWN
    if isinstance(value, (ast.List, ast.ListComp, ast.Tuple)):
        return Verdict(
            False,
            "a list of samples is indexed by torch's own code",
            ("dataset = memload.from_arrays(x=x, y=y)  # arrays or tensors of all samples, one row for each",),
            value.lineno,
        )
    if not isinstance(value, ast.Call):
        return _UNKNOWN
    return _of_call(script, value, depth)


def _container(node: ast.expr) -> ast.expr:
    """Return the dict for an element of one, such as `datasets["train"]`."""
    return node.value if isinstance(node, ast.Subscript) and name_of(node.value) else node


def _of_call(script: Script, call: ast.Call, depth: int) -> Verdict:
    name = script.called(call)
    short = name.rpartition(".")[2]
    inner = (call.args[0] if call.args else None) or next((k.value for k in call.keywords if k.arg), None)
    if name.startswith("memload."):
        return Verdict(True, f"{name} is memload's own")
    if script.class_named(name):
        return _of_class(script, name, call)
    if short == "TensorDataset":
        return _of_tensors(script, call)
    if short in ("random_split", "Subset"):
        below = verdict_of(script, inner, call.lineno, depth + 1)
        return Verdict(below.native, f"{short} of: {below.why}", below.change, below.line or call.lineno)
    if short in ("ConcatDataset", "StackDataset"):
        parts = inner.elts if isinstance(inner, (ast.List, ast.Tuple)) else [one for one in [inner] if one]
        return _of_parts(short, [verdict_of(script, part, call.lineno, depth + 1) for part in parts])
    if name.startswith("torchvision.datasets."):
        return _of_torchvision(script, short, call)
    if name == "datasets.load_dataset" or name.endswith(".load_from_disk"):
        return Verdict(
            None,
            "a Hugging Face dataset is native in the torch format, of columns of numbers",
            ('dataset = dataset.with_format("torch")  # see docs/sources.md; images: memload write --images',),
            call.lineno,
        )
    return _UNKNOWN


def _of_tensors(script: Script, call: ast.Call) -> Verdict:
    for argument in call.args:
        value = script.value_of(argument, call.lineno)
        moved = [node for part in (argument, value) if part for node in ast.walk(part) if is_move(node)]
        if moved:
            return Verdict(
                False,
                "a TensorDataset of tensors on a GPU is indexed by torch",
                ("keep the tensors on the CPU here, and give FastLoader device=device; or: memload.to_device(ds)",),
                call.lineno,
            )
    return Verdict(True, "a TensorDataset of tensors on the CPU")


def is_move(node: ast.AST) -> bool:
    """Return whether a node is a call such as `x.cuda()` or `x.to(device)`; `x.to(torch.float32)` is none."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr == "cuda":
        return True
    given = [*node.args, *(one.value for one in node.keywords if one.arg == "device")]
    return node.func.attr == "to" and any(_is_device(one) for one in given)


def _is_device(node: ast.expr) -> bool:
    text = ast.unparse(node).lower()
    return "device" in text or "cuda" in text or "'mps" in text or "rank" in text


def _of_parts(kind: str, parts: Sequence[Verdict]) -> Verdict:
    worst = next((one for one in parts if one.native is False), None) or next(
        (one for one in parts if one.native is None), None
    )
    if worst is None and parts:
        return Verdict(True, f"{kind} of parts that are native")
    return Verdict(None, f"{kind} of parts that the script does not show") if worst is None else worst


def _of_torchvision(script: Script, kind: str, call: ast.Call) -> Verdict:
    if kind == "FakeData":
        return Verdict(False, "FakeData makes images as they are asked for", (), call.lineno)
    if kind in _IN_MEMORY:
        name = script.name_for(call) or "dataset"
        of_labels = next((ast.unparse(one.value) for one in call.keywords if one.arg == "target_transform"), "None")
        left_out = f"# target_transform={of_labels} is left out: give from_arrays what it makes of all labels"
        return Verdict(
            False,
            f"{kind} has its images in memory, and makes a PIL image of each and transforms it in Python",
            (
                f"{name} = memload.from_arrays(image={name}.data{_GREY if kind not in COLOURS else ''}, "
                f"label=torch.as_tensor({name}.targets)).as_tuple('image', 'label')",
                *([] if of_labels == "None" else [left_out]),
            ),
            call.lineno,
        )
    root = next((one for one in call.args[:1]), None) or next((k.value for k in call.keywords if k.arg == "root"), None)
    folders = folders_of(script, root, call) or ["DIR"]
    labels = " --labels folders" if kind in ("ImageFolder", "DatasetFolder", "ImageNet") else ""
    targets = ["shards/"] if len(folders) == 1 else [f"{folder.rstrip('/').rpartition('/')[2]}/" for folder in folders]
    return Verdict(
        False,
        f"{kind} decodes each image in each epoch, in Python",
        (
            *(
                f"memload write --images {folder}{labels} --size N {target}      (once, on the command line)"
                for folder, target in zip(folders, targets, strict=True)
            ),
            *(["(DIR is one folder of the loader: a set of its own for each)"] if folders == ["DIR"] else []),
            f'dataset = memload.open({json.dumps(targets[0]) if len(targets) == 1 else "TARGET"}).as_tuple("image", '
            '"label")  # its labels are as before; without .classes',
        ),
        call.lineno,
    )


def folders_of(script: Script, root: ast.expr | None, call: ast.Call) -> list[str]:
    """Return the folders that an expression names, one for each value of a comprehension around it; [] if unknown.

    Args:
        script: the script.
        root: the expression.
        call: the call that it is an argument of.
    """
    around = [
        part
        for node in ast.walk(script.tree)
        if isinstance(node, (ast.DictComp, ast.ListComp)) and any(inner is call for inner in ast.walk(node))
        for part in node.generators
    ]
    turns: list[dict[str, str]] = [{}]
    for part in around:
        values = part.iter.elts if isinstance(part.iter, (ast.List, ast.Tuple, ast.Set)) else []
        texts = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        turns = [{**turn, name_of(part.target): text} for turn in turns for text in texts]
    found = [None if root is None else _text(script, root, turn, call.lineno) for turn in turns]
    return [*dict.fromkeys(text for text in found if text)] if found and all(found) else []


def _text(script: Script, node: ast.expr, known: Mapping[str, str], before: int, depth: int = 0) -> str | None:
    """Return the text, or the path, that an expression is; None if only running the script tells."""
    if depth > 8:
        return None

    def of(part: ast.expr) -> str | None:
        return _text(script, part, known, before, depth + 1)

    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if name_of(node):
        value = script.value_of(node, before)
        return known.get(name_of(node)) or (None if value is None else of(value))
    if isinstance(node, ast.FormattedValue):
        return of(node.value) if node.conversion == -1 and node.format_spec is None else None
    parts: Sequence[ast.expr] = ()
    between = "/"
    if isinstance(node, ast.JoinedStr):
        parts, between = node.values, ""
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        parts, between = (node.left, node.right), "" if isinstance(node.op, ast.Add) else "/"
    elif script.called(node) in ("os.path.join", "pathlib.Path"):
        assert isinstance(node, ast.Call)
        parts = node.args
    texts = [of(part) for part in parts]
    return between.join(text for text in texts if text is not None) if texts and None not in texts else None


# Classes of the script


def _of_class(script: Script, name: str, call: ast.Call) -> Verdict:
    made = script.class_named(name)
    assert made is not None
    methods = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef)}
    if "__memload__" in methods:
        return Verdict(True, f"{name} says by __memload__ what it holds", (), made.lineno)
    if "IterableDataset" in [script.meaning(base).rpartition(".")[2] for base in made.bases] or (
        "__iter__" in methods and "__getitem__" not in methods
    ):
        return Verdict(
            False,
            f"{name} is iterable: torch's own code runs it",
            _stored_once(name, call),
            made.lineno,
        )
    getter = methods.get("__getitem__")
    if getter is None:
        return Verdict(None, f"{name} inherits __getitem__: print(loader.engine, loader.why)", (), made.lineno)
    if (method := _says_itself(made, getter)) is not None:
        return Verdict(
            False,
            f"{name} is Python code; it only indexes arrays, which one method tells (add it to the class)",
            method,
            made.lineno,
        )
    return Verdict(False, f"{name}.__getitem__ is Python code", _replaced(script, made, name, call), getter.lineno)


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


_READERS = {
    "h5py.File": ("memload.open({0}, key=...)", "HDF5 rows are read in place, or their chunks decoded by threads"),
    "numpy.load": ("memload.open({0})", "rows of .npy and .npz are read in place"),
    "numpy.memmap": ("memload.open({0}, dtype=..., shape=...)", "raw rows are read in place"),
    "torch.load": ("memload.open({0})", "rows of tensors in torch.save files are read in place"),
    "zarr.open": ("memload.open({0})", "chunks of Zarr are decoded by threads"),
    "zarr.open_array": ("memload.open({0})", "chunks of Zarr are decoded by threads"),
    "safetensors.safe_open": ("memload.open({0})", "rows of safetensors are read in place"),
    "safetensors.torch.load_file": ("memload.open({0})", "rows of safetensors are read in place"),
    "pyarrow.parquet.read_table": ("memload.write once", "Parquet is no format of rows"),
}
_IMAGES = frozenset(
    [
        *("PIL.Image.open", "cv2.imread", "torchvision.io.read_image", "torchvision.io.decode_image"),
        *("imageio.imread", "imageio.v3.imread", "skimage.io.imread", "matplotlib.pyplot.imread"),
    ]
)


def _replaced(script: Script, made: ast.ClassDef, name: str, call: ast.Call) -> tuple[str, ...]:
    """Return what replaces a class that reads files or computes."""
    calls = [node for node in ast.walk(made) if isinstance(node, ast.Call)]
    images = next((script.called(one) for one in calls if script.called(one) in _IMAGES), "")
    if images:
        return (
            "memload write --images DIR [--masks DIR] [--labels TABLE.csv] --size N shards/   (once; decodes in C)",
            'dataset = memload.open("shards/")  # .as_tuple("image", "label") for batches that are tuples',
        )
    read = next((one for one in calls if script.called(one) in _READERS), None)
    if read is not None:
        code, why = _READERS[script.called(read)]
        given = read.args[0].value if read.args and isinstance(read.args[0], ast.Constant) else None
        argument = json.dumps(given) if isinstance(given, str) else "PATH"
        return (
            f"dataset = {code.format(argument)}  # {why}",
            "dataset = dataset.map(fn)  # what __getitem__ computes of a row, run ahead of the loop in threads",
        )
    return _stored_once(name, call)


def _stored_once(name: str, call: ast.Call) -> tuple[str, ...]:
    made = ast.unparse(call)
    return (
        'with memload.ShardWriter("shards/") as writer:  # once; without random transforms',
        f"    for batch in DataLoader({made if len(made) < 50 else f'{name}(...)'}, batch_size=64):",
        "        writer.extend(**batch)  # a dict of fields; tuples: writer.extend(x=batch[0], y=batch[1])",
        'dataset = memload.open("shards/")  # .map(fn) for random transforms of a row',
    )
