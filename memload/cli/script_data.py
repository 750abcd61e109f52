"""What a script's datasets say: which are read natively, and the code that replaces the others."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from memload.cli.script import IN_FAST_LOADER, Advice, Loader, Script, Verdict, name_of
from memload.cli.script_changed import not_followed
from memload.cli.script_classes import of_class
from memload.cli.script_names import is_none, lines_of_set, name_of_set, place_of
from memload.cli.script_options import notes_of_options
from memload.cli.script_transforms import sizes_of, transforms_of
from memload.cli.script_values import folders_of, given_to, turns_around

_IN_MEMORY = ("MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST", "CIFAR10", "CIFAR100", "USPS")
_PLANES = {"CIFAR10": ".transpose(0, 3, 1, 2)", "CIFAR100": ".transpose(0, 3, 1, 2)"}
"""What makes (N, C, H, W) of a set's data: CIFAR's are stored so and shown as (N, H, W, C), others are (N, H, W)."""
_FOLDERS = ("ImageFolder", "DatasetFolder", "ImageNet")
_PLACES = {
    **dict.fromkeys(_IN_MEMORY, ("root", "train", "transform", "target_transform")),
    **dict.fromkeys(("EMNIST", "QMNIST"), ("root", "split")),
    "ImageFolder": ("root", "transform", "target_transform", "loader", "is_valid_file", "allow_empty"),
    "DatasetFolder": ("root", "loader", "extensions", "transform", "target_transform", "is_valid_file", "allow_empty"),
    "ImageNet": ("root", "split"),
}
"""What calls give by position, to sets whose labels are followed."""

_OF_FILES = "the command takes all JPEG and PNG files below the folder, each as Pillow decodes it"
_UNKNOWN = Verdict(None, "what this dataset is, only running the script tells; docs/native-datasets.md has the kinds")


def verdict_of(script: Script, node: ast.expr | None, before: int, depth: int = 0) -> Verdict:
    """Return the verdict on the dataset that an expression stands for, where it is used on a line."""
    value = None if node is None else script.value_of(_container(node), before)
    if value is None and depth <= 8 and (parts := verdicts_of_given(script, node, depth)):
        return _worst(parts)
    if isinstance(value, ast.DictComp):
        value = value.value
    elif depth <= 8 and (parts := verdicts_of_elements(script, node, before, depth)):
        return _of_parts("a dict", parts)
    if value is None or depth > 8:
        return _UNKNOWN
    if isinstance(value, (ast.List, ast.ListComp, ast.Tuple)):
        notes = ("x, y: arrays or tensors of all samples, one row for each",)
        advice = Advice(("dataset = memload.from_arrays(x=x, y=y)",), notes=notes)
        return Verdict(False, "a list of samples is indexed by torch's own code", advice, value.lineno)
    if not isinstance(value, ast.Call):
        return _UNKNOWN
    return _of_call(script, value, depth)


def verdicts_of_given(script: Script, node: ast.expr | None, depth: int = 0) -> list[Verdict]:
    """Return the verdicts on the datasets that calls give to a parameter of a function; [] of other expressions."""
    values = [] if node is None else given_to(script, node)
    found = [(one.lineno, verdict_of(script, one, one.lineno, depth + 1)) for one in values]
    return [replace(one, why=f"{name_of(node)}, as line {line} gives it: {one.why}") for line, one in found]


def verdicts_of_elements(script: Script, node: ast.expr | None, before: int, depth: int = 0) -> list[Verdict]:
    """Return the verdicts on the datasets that an element of a dict may be; [] of other expressions."""
    values = [] if node is None else [value for _, value in script.elements(node, before)]
    return [verdict_of(script, one, one.lineno, depth + 1) for one in values]


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
        if call not in script.verdicts:
            script.verdicts[call] = _unless_changed(script, call, of_class(script, name, call))
        return script.verdicts[call]
    if short == "TensorDataset":
        return _of_tensors(script, call)
    if short in ("random_split", "Subset"):
        below = verdict_of(script, inner, call.lineno, depth + 1)
        why = f"{short} of: {below.why}"
        return Verdict(below.native, why, below.advice, below.line or call.lineno, below.fields, below.kind)
    if short in ("ConcatDataset", "StackDataset"):
        listed = inner if inner is None else script.value_of(inner, call.lineno) or inner
        parts = listed.elts if isinstance(listed, (ast.List, ast.Tuple)) else [one for one in [listed] if one]
        parts = [one.elt if isinstance(one, (ast.ListComp, ast.GeneratorExp)) else one for one in parts]
        return _of_parts(short, [verdict_of(script, part, call.lineno, depth + 1) for part in parts])
    if name.startswith("torchvision.datasets."):
        return _unless_changed(script, call, _of_torchvision(script, short, call))
    if name == "datasets.load_dataset" or name.endswith(".load_from_disk"):
        notes = ("docs/sources.md; images: memload write --images",)
        advice = Advice(('dataset = dataset.with_format("torch")',), notes=notes)
        why = "a Hugging Face dataset is native in the torch format, of columns of numbers"
        return Verdict(None, why, advice, call.lineno)
    return _UNKNOWN


def _unless_changed(script: Script, call: ast.Call, verdict: Verdict) -> Verdict:
    """Return a verdict whose advice names the lines, if there are any, that change the dataset after it is made."""
    told = "" if verdict.native else not_followed(script, call)
    return replace(verdict, advice=Advice(notes=(told,))) if told else verdict


def _of_tensors(script: Script, call: ast.Call) -> Verdict:
    for argument in call.args:
        value = script.value_of(argument, call.lineno)
        moved = [node for part in (argument, value) if part for node in ast.walk(part) if is_move(node)]
        if moved:
            notes = ("keep the tensors on the CPU here; or have all of them on the device: memload.to_device(ds)",)
            advice = Advice(("device=device  # in FastLoader",), notes=notes)
            return Verdict(False, "a TensorDataset of tensors on a GPU is indexed by torch", advice, call.lineno)
    fields = tuple(range(len(call.args)))
    return Verdict(True, "a TensorDataset of tensors on the CPU", fields=fields, kind="tuple")


def composes_of_rows(script: Script, loader: Loader) -> Iterator[int]:
    """Yield the lines of the transforms of datasets that no cast replaces: their class stays, or is not followed."""
    for call in script.reached(loader.given["dataset"], loader.call.lineno) if "dataset" in loader.given else ():
        made = script.class_named(script.called(call))
        if made is None and not script.called(call).startswith("torchvision.datasets."):
            continue
        verdict = _of_call(script, call, 0)
        advice = verdict.advice
        if not (verdict.native or advice.commands or not advice or (made is None and advice.code)):
            yield from (one.lineno for one in transforms_of(script, call))


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
    if not parts:
        return Verdict(None, f"{kind} of parts that the script does not show")
    worst = _worst(parts)
    return Verdict(True, f"{kind} of parts that are native") if worst.native else worst


def _worst(parts: Sequence[Verdict]) -> Verdict:
    return min(parts, key=lambda one: (False, None, True).index(one.native))


def _of_torchvision(script: Script, kind: str, call: ast.Call) -> Verdict:
    if kind == "FakeData":
        return Verdict(False, "FakeData makes images as they are asked for", line=call.lineno)
    if kind in _IN_MEMORY:
        why = f"{kind} has its images in memory, and makes a PIL image of each and transforms it in Python"
        return Verdict(False, why, _from_memory(script, kind, call), call.lineno, ("image", "label"))
    why = f"{kind} decodes each image in each epoch, in Python"
    return Verdict(False, why, _from_folders(script, kind, call), call.lineno, ("image", "label"))


def _from_memory(script: Script, kind: str, call: ast.Call) -> Advice:
    name, last = name_of_set(script, call), script.lines_around(call)[1]
    elsewhere = indexed_elsewhere(script, name)
    rows = f"{name}_rows" if elsewhere else name
    labels = _of_labels(script, kind, call)
    column = "[:, 0]" * (kind == "QMNIST")
    notes = [f"{name} stays: line {', '.join(map(str, elsewhere))} indexes it"] * bool(elsewhere)
    made = [] if script.name_for(call) else [f"{name} = {ast.unparse(call)}"]
    code = (
        f"{rows} = memload.from_arrays(image={name}.data{_PLANES.get(kind, '[:, None]')}, "
        f"label=torch.as_tensor({name}.targets{column})).as_tuple('image', 'label')"
    )
    where = place_of(script, call) if made else f"below line {last}"
    if elsewhere:
        where += f", with `{rows}` in the place of {name} in the loader"
    return Advice((*made, code, *labels.code), notes=(*notes, *labels.notes), where=where)


def _given(kind: str, call: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments of a set of torchvision by their names; those of `**options` as "**"."""
    given = dict(zip(_PLACES[kind], call.args, strict=False))
    given |= {one.arg or "**": one.value for one in call.keywords}
    return {name: one for name, one in given.items() if not is_none(one)}


def _of_labels(script: Script, kind: str, call: ast.Call) -> Advice:
    """Return what makes of stored labels what a set of torchvision makes of them, or says that it is not followed."""
    given = _given(kind, call)
    hidden = [ast.unparse(one) for name, one in given.items() if name == "**"]
    notes = [f"not followed: **{one} may have a target_transform" for one in hidden]
    if "target_transform" not in given:
        return Advice(notes=tuple(notes))
    function = given["target_transform"]
    told = f"target_transform={ast.unparse(function)}"
    if any(script.called(node).endswith("ConcatDataset") for node in script.nodes):
        return Advice(notes=(f"not followed: {told}: labels are those of the files, without it", *notes))
    each = ast.unparse(ast.Call(function, [ast.Name("value")], []))
    labels = f"torch.utils.data.default_collate([{each} for value in batch[1].tolist()])"
    code = f"batch_transform=lambda batch: [batch[0], {labels}]  {IN_FAST_LOADER}"
    return Advice((code,), notes=(f"{told}: batch_transform calls it of each label", *notes))


def indexed_elsewhere(script: Script, name: str) -> list[int]:
    """Return the lines that take a sample of a dataset by its number, such as `test_data[0]`."""
    nodes = (node for node in script.nodes if isinstance(node, ast.Subscript))
    return sorted({node.lineno for node in nodes if name_of(node.value) == name})


def _from_folders(script: Script, kind: str, call: ast.Call) -> Advice:
    opens = _given(kind, call).get("loader") if kind in _FOLDERS else None
    if kind not in _FOLDERS or (kind == "DatasetFolder" and not script.meaning(opens).endswith("default_loader")):
        return _of_its_own(kind, call)
    folders = _folders(script, call) or ["DIR"]
    targets = targets_of(script, call)
    by_turn = sizes_of(script, call, folders)
    commands = [
        f"memload write --images {folder} --labels folders{size.partition('  #')[0]} {target}"
        for folder, size, target in zip(folders, by_turn, targets, strict=True)
    ]
    notes = [size.partition("  # ")[2] for size in by_turn if "  # " in size]
    if folders == ["DIR"]:
        notes.append("DIR is one folder of the loader: a set of its own for each")
    notes += notes_of_options(script, call)
    given, labels = _given(kind, call), _of_labels(script, kind, call)
    others = {name: ast.unparse(given[name]) for name in ("loader", "is_valid_file") if name in given}
    told = [f"not followed: {name}={one}: {_OF_FILES}" for name, one in others.items()]
    if "is_valid_file" in others:
        return Advice(notes=(*told, "links to the files of each dataset in a folder of its own keep them apart"))
    notes += told
    same = "" if labels else "labels are as before; "
    notes.append(f"{same}what memload.open returns has no .classes")
    code, where = _assigned(script, call, targets)
    return Advice((code, *labels.code), tuple(commands), tuple(dict.fromkeys([*notes, *labels.notes])), where)


def _of_its_own(kind: str, call: ast.Call) -> Advice:
    """Return what is said of a set of torchvision that is no folder of classes."""
    what = "masks" if "Seg" in kind or "segmentation" in ast.unparse(call) else "labels"
    return Advice(
        notes=(
            f"not followed: which files {kind} reads, and the {what} that it makes of each",
            "memload write --images DIR stores the images of a folder, --labels TABLE.csv what a table says of each, "
            "--masks DIR their masks: docs/images.md; a crop or a flip has to be drawn once for an image and its mask",
        )
    )


def targets_of(script: Script, call: ast.Call) -> list[str]:
    """Return the sets of shards that the folders of a dataset become: one, or one for each folder of the script."""
    folders = _folders(script, call)
    several = len(folders) > 1 or len(_calls_of_folders(script)) > 1
    return [f"shards/{one.rstrip('/').rpartition('/')[2]}/" for one in folders] if several and folders else ["shards/"]


def _folders(script: Script, call: ast.Call) -> list[str]:
    root = next((one for one in call.args[:1]), None) or next((k.value for k in call.keywords if k.arg == "root"), None)
    if script.called(call).endswith(".ImageNet") and root is not None:
        split = _given("ImageNet", call).get("split", ast.Constant("train"))
        root = ast.copy_location(ast.BinOp(root, ast.Div(), split), root)
    return folders_of(script, root, call)


def _calls_of_folders(script: Script) -> list[ast.Call]:
    calls = [node for node in script.nodes if isinstance(node, ast.Call)]
    return [one for one in calls if script.called(one).startswith("torchvision.datasets.") and _folders(script, one)]


def _assigned(script: Script, call: ast.Call, targets: list[str]) -> tuple[str, str]:
    """Return the line that opens what the commands made, for one dataset or for those of a loop, and its place."""
    form = '.as_tuple("image", "label")'
    turns = turns_around(script, call)
    names = [name for name in turns[0] if [f"shards/{turn[name]}/" for turn in turns] == targets]
    opened = f'memload.open(f"shards/{{{names[0]}}}/"){form}' if names else ""
    for statement in script.nodes:
        made = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and names and (made is call or getattr(made, "value", None) is call):
            name, where = ast.unparse(statement.targets[0]), lines_of_set(script, call)
            if made is call:
                return f"{name} = {opened}", where
            if isinstance(made, ast.DictComp) and ast.unparse(made.key) == names[0]:
                turn = made.generators[0]
                return f"{name} = {{{names[0]}: {opened} for {names[0]} in {ast.unparse(turn.iter)}}}", where
    path = json.dumps(targets[0]) if len(targets) == 1 else "TARGET"
    return f"{name_of_set(script, call)} = memload.open({path}){form}", place_of(script, call)


def without_classes(script: Script) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the lines that take `.classes` of an `ImageFolder`: what is said of each, and the code in its place."""
    made: dict[str, list[str]] = {}
    for statement in script.nodes:
        if isinstance(statement, ast.Assign):
            calls = [one for one in ast.walk(statement.value) if isinstance(one, ast.Call)]
            of_folders = [one for one in calls if script.called(one).rpartition(".")[2] in _FOLDERS]
            for call in of_folders[:1]:
                made.update({name_of(one): targets_of(script, call) for one in statement.targets})
    for node in script.nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("classes", "class_to_idx"):
            base = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if targets := made.get(name_of(base)):
                names = f'sorted(set(memload.open({json.dumps(targets[0])}).only("label_name")))'
                code = names if node.attr == "classes" else f"{{name: k for k, name in enumerate({names})}}"
                why = f"memload's dataset has no .{node.attr}: a field, label_name, has the names"
                yield node.lineno, why, (f"{code}  # in the place of {ast.unparse(node)}",)
