"""What a script's transforms of torchvision do, as a cast of memload, and as options of `memload write --images`."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memload.cli.script import Script, name_of
from memload.cli.script_names import draws_random, locals_of
from memload.cli.script_values import text_of, turns_around
from memload.formats.paths import IMAGES
from memload.images.files import read_headers

_MOST_LOOKED_AT = 10_000  # files of a folder
_COMPOSE = ("transforms.Compose", "v2.Compose")
_UNSEEDED = ("numpy.random.", "random.")
"""What draws from generators of the whole process, which threads share."""
_DRAWING = ("Rand", "ColorJitter", "AutoAugment", "TrivialAugment", "AugMix", "GaussianBlur", "ElasticTransform")
_TO_TENSORS = frozenset(
    [
        *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "to_tensor", "pil_to_tensor"),
        *("to_image", "from_numpy", "as_tensor", "tensor", "read_image", "decode_image"),
    ]
)


def casts_of_transforms(script: Script) -> Iterator[tuple[ast.Call, int, str, tuple[str, ...]]]:
    """Yield each `Compose` or lone `ToTensor`, its line, the cast that does the same as what it has, and notes.

    Casts are of images (C, H, W): as `memload write --images` stores them, and as sets in memory are opened.
    """
    calls = [one for one in script.nodes if isinstance(one, ast.Call)]
    for call in calls:
        steps = call.args[0] if call.args else None
        if script.called(call).endswith(_COMPOSE) and isinstance(steps, ast.List):
            own = [script.defines(script.called(step)) for step in _steps_of(script, call)]
            cast, notes = _cast(script, _steps_of(script, call), _line_of_sizes(script, call))
            if (cast or notes) and not all(own):  # those of samples of the script's own are not of images
                yield call, call.lineno, cast, notes
        if script.called(call).startswith("torchvision.datasets."):
            given = next((one.value for one in call.keywords if one.arg == "transform"), None)
            step = None if given is None else script.value_of(given, call.lineno)
            if given is not None and step is not None and script.called(step).rpartition(".")[2] == "ToTensor":
                assert isinstance(step, ast.Call)
                yield step, given.lineno, *_cast(script, [step], 0)


@dataclass(frozen=True)
class OfDict:
    """Where a `Compose` is an element of a dict: the dict's name, the code of the key, and the last line."""

    name: str
    key: str
    last: int


def dict_of(script: Script, compose: ast.Call) -> OfDict | None:
    """Return the dict that a `Compose`, or the only dataset that has it, is an element of; None of others."""
    for node in script.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if value is compose and key is not None and name_of(node.targets[0]):
                    return OfDict(name_of(node.targets[0]), ast.unparse(key), node.end_lineno or node.lineno)
    return next(_dicts_of_datasets(script, compose), None)


def _dicts_of_datasets(script: Script, compose: ast.Call) -> Iterator[OfDict]:
    """Yield the dicts of datasets with transforms of which one has a `Compose`, and which loaders take by a name."""
    for loader in script.loaders:
        given = loader.given.get("dataset")
        if not isinstance(given, ast.Subscript) or isinstance(given.slice, ast.Constant):
            continue
        sets = script.elements(given, loader.call.lineno)
        made = [[*script.reached(one, one.lineno)] for _, one in sets]
        having = [key for (key, _), calls in zip(sets, made, strict=True) if any(one is compose for one in calls)]
        composed = [any(script.called(one).endswith(_COMPOSE) for one in calls) for calls in made]
        if len(having) == 1 and len(sets) > 1 and all(composed) and isinstance(having[0], ast.Constant):
            last = max(script.lines_around(one)[1] for _, one in sets)
            yield OfDict(name_of(given.value), ast.unparse(having[0]), last)


def arguments(call: ast.Call) -> list[ast.expr]:
    """Return what a call is given."""
    return [*call.args, *(one.value for one in call.keywords)]


def transforms_of(script: Script, call: ast.Call, given: bool = True) -> Iterator[ast.Call]:
    """Yield the calls in a dataset's class, in what it is given, and in the functions and values that these name.

    Args:
        script: the script.
        call: the call that makes the dataset.
        given: whether what it is given counts.
    """
    made = script.class_named(script.called(call))
    methods = [] if made is None else [one for one in made.body if isinstance(one, ast.FunctionDef)]
    own = {id(name) for method in methods for name in locals_of(method)}
    left: list[ast.AST] = [*arguments(call)] if given else []
    left += [] if made is None else [made]
    seen: set[ast.AST] = set()
    while left:
        for part in (one for one in ast.walk(left.pop()) if one not in seen):
            seen.add(part)
            if isinstance(part, ast.Call):
                yield part
            if isinstance(part, ast.Name) and id(part) not in own:
                value = script.value_of(part, call.lineno)
                left += [] if value is None else [value]
                left += [one for one in script.tree.body if isinstance(one, ast.FunctionDef) and one.name == part.id]


def _steps_of(script: Script, call: ast.Call) -> list[ast.expr]:
    """Return the steps of a `Compose`."""
    steps = call.args[0] if call.args else None
    elements = steps.elts if isinstance(steps, ast.List) else []
    return [script.value_of(one, call.lineno) or one for one in elements]


def _composed(script: Script, call: ast.Call, known: Mapping[str, str]) -> tuple[ast.expr | None, ast.Call | None]:
    """Return the argument and the `Compose` that it is, of a dataset, where its names are these; None without one."""
    for given in [*call.args, *(one.value for one in call.keywords if one.arg != "target_transform")]:
        made = _compose_of(script, given, call, known)
        if made is not None:
            return given, made
    return None, None


def _compose_of(script: Script, given: ast.expr, call: ast.Call, known: Mapping[str, str]) -> ast.Call | None:
    if isinstance(given, ast.Subscript) and isinstance(value := script.value_of(given.value, call.lineno), ast.Dict):
        key = text_of(script, given.slice, known, call.lineno)
        pairs = zip(value.keys, value.values, strict=True)
        given = next((one for name, one in pairs if name is not None and text_of(script, name) == key), given)
    made = script.value_of(given, call.lineno)
    return made if isinstance(made, ast.Call) and script.called(made).endswith(_COMPOSE) else None


def is_composed(script: Script, given: ast.expr, call: ast.Call) -> bool:
    """Return whether what a dataset is given is a `Compose`, or one of a dict of these."""
    return _compose_of(script, given, call, {}) is not None


def is_to_tensor(script: Script, given: ast.expr) -> bool:
    """Return whether a transform is a lone `ToTensor`."""
    return script.called(script.value_of(given, 10**9)).rpartition(".")[2] == "ToTensor"


def sizes_of(script: Script, call: ast.Call, folders: Sequence[str]) -> list[str]:
    """Return the options of `memload write --images` for the sizes that a dataset's transforms give its images.

    Returns:
        one text for each folder, such as " --size 256 --fit crop --crop 224"; behind "  # " follows what its N is
    """
    turns, found = turns_around(script, call), []
    for known, folder in zip(turns if len(turns) == len(folders) else turns[:1] * len(folders), folders, strict=True):
        _, composed = _composed(script, call, known)
        made = _taken(script, [] if composed is None else _steps_of(script, composed))
        option = " --size N  # N: how large images are kept; without --size, as they are, if all have one size"
        if made.augment:
            kept = "how large images are kept, from which a cast takes its crops, such as 256 for 224"
            option = f" --size N --fit crop  # N: {kept}"
        found.append(made.size_options if made.sizes else "" if _is_of_one_size(script, folder) else option)
    return found


def _is_of_one_size(script: Script, folder: str) -> bool:
    """Return whether there is such a folder, with not too many files to look at, and its images have one size."""
    place = script.file_at(folder)
    files = [] if place is None else [*itertools.islice(place.rglob("*"), _MOST_LOOKED_AT + 1)]
    images = {str(one): one for one in files if one.name.lower().endswith(IMAGES)}
    if place is None or len(files) > _MOST_LOOKED_AT:
        return False
    with contextlib.suppress(ImportError):
        headers, _ = read_headers(place, images, threads=2, progress=False)
        return len({one.size for one in headers.values()}) == 1
    return False


def _line_of_sizes(script: Script, compose: ast.Call) -> int:
    """Return the line of the dataset whose command has the sizes of a `Compose`; 0 if there is none."""
    for call in (one for one in script.nodes if isinstance(one, ast.Call)):
        made = script.class_named(script.called(call)) or script.called(call).startswith("torchvision.datasets.")
        if made and any(_composed(script, call, known)[1] is compose for known in turns_around(script, call)):
            return call.lineno
    return 0


def split_at_random(script: Script, call: ast.Call) -> tuple[str, str, list[str], bool, list[str]]:
    """Return a call of a dataset without its random transforms, these, and what there is to know of them.

    Returns:
        the code of the call with the steps of its `Compose` before the first that draws random numbers, the code of a
        `Compose` of the others ("" without any), the names of classes that draw from generators of the
        process, with the line, whether the random transforms are given tensors, and the steps that are stored and have
        one number for a size, such as `Resize(256)`, which may keep the proportions of images
    """
    given, composed = _composed(script, call, {})
    steps = [] if composed is None else _steps_of(script, composed)
    drawing = [draws_by_step(script, step) for step in steps]
    if composed is None or True not in drawing:
        return ast.unparse(call), "", [], True, _of_one_size(script, steps)
    first = drawing.index(True)
    compose = ast.unparse(composed.func)
    before, after = (", ".join(map(ast.unparse, part)) for part in (steps[:first], steps[first:]))
    kept = ast.parse(f"{compose}([{before}])" if before else "None", mode="eval").body
    made = ast.Call(call.func, [kept if one is given else one for one in call.args], [
        ast.keyword(one.arg, kept if one.value is given else one.value) for one in call.keywords
    ])  # fmt: skip
    noise = [f"{script.called(step)} (line {lines[0]})" for step in steps if (lines := _racing(script, step))]
    stored, later = (any(_makes_tensors(script, step) for step in part) for part in (steps[:first], steps[first:]))
    tensors = stored or (not later and _makes_tensors(script, call))
    return ast.unparse(made), f"{compose}([{after}])", noise, tensors, _of_one_size(script, steps[:first])


def _of_one_size(script: Script, steps: Sequence[ast.expr]) -> list[str]:
    calls = [step for step in steps if isinstance(step, ast.Call)]
    sized = [one for one in calls if script.defines(script.called(one)) or script.called(one).endswith(".Resize")]
    values = [(one, script.with_constants(one)) for one in sized]
    return [
        ast.unparse(one)
        for one, known in values
        if [type(getattr(given, "value", None)) for given in (*known.args, *(k.value for k in known.keywords))] == [int]
    ]


def _makes_tensors(script: Script, step: ast.expr) -> bool:
    """Return whether a step, or what a class of the script does, makes tensors of something else."""
    made = script.class_named(script.called(step))
    calls = [step] if made is None else ast.walk(made)
    return any(script.called(node).rpartition(".")[2] in _TO_TENSORS for node in calls)


def _racing(script: Script, step: ast.expr) -> list[int]:
    """Return the lines on which a step of the script's own draws from generators of the process."""
    made = script.class_named(script.called(step))
    nodes = [] if made is None else ast.walk(made)
    return sorted(
        node.lineno for node in nodes if isinstance(node, ast.Call) and script.called(node).startswith(_UNSEEDED)
    )


def draws_by_step(script: Script, step: ast.expr) -> bool:
    """Return whether a step of the script's own draws random numbers, or is a random one of torchvision's."""
    name = script.called(step)
    made = script.class_named(name)
    if made is not None:
        return any(draws_random(script, node) for node in ast.walk(made))
    return name.rpartition(".")[2].startswith(_DRAWING)


def _taken(script: Script, steps: Sequence[ast.expr]) -> _Steps:
    made = _Steps()
    for step in steps:
        own = isinstance(step, ast.Call) and script.defines(script.called(step))
        if isinstance(step, ast.Call) and not own:
            made.add(script.called(step).rpartition(".")[2], script.with_constants(step))
        else:
            made.others.append(script.called(step) if own else ast.unparse(step))
    return made


def _cast(script: Script, steps: Sequence[ast.expr], line: int) -> tuple[str, tuple[str, ...]]:
    made = _taken(script, steps)
    plain = ["std=255"] if made.options == ["scale=1 / 255"] else made.options  # as ToTensor, to the last bit
    options = [*plain, *(["channels=-3"] if made.options or made.augment else [])]
    if made.augment:
        options.append(f"augment=memload.Augment({', '.join(made.augment)})")
    code = f"memload.Cast(torch.float32, {', '.join(options)})" if options else ""
    notes = []
    if "scale=1 / 255" in plain:
        notes.append(
            "pixels differ by some 1e-7 from those of ToTensor, which divides by 255; for the same bits: std=255 in "
            "the place of scale, mean and std, and Normalize in batch_transform"
        )
    if made.sizes:
        command = f"the command of line {line}" if line else f"memload write --images DIR{made.size_options}"
        notes.append(f"{made.what_sizes} {'are' if len(made.sizes) > 1 else 'is'} done once, by {command}")
    if made.others:
        places = "; tuples of fn have no names, so the cast is then cast={0: ...}" * bool(code)
        others = ", ".join(made.others)
        notes.append(f"not followed: {others}: dataset.map(fn), or batch_transform=fn for whole batches{places}")
    return code, tuple(notes)


@dataclass
class _Steps:
    """The steps of a `Compose`, as options of a Cast and of its Augment; `others` are done by neither."""

    options: list[str] = field(default_factory=list)
    augment: list[str] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def add(self, kind: str, step: ast.Call) -> None:
        """Take the next step."""
        given = [ast.unparse(one) for one in step.args]
        named = {one.arg: ast.unparse(one.value) for one in step.keywords if one.arg}
        if kind in ("ToTensor", "ConvertImageDtype") or (kind == "ToDtype" and named.get("scale") == "True"):
            self.options.append("scale=1 / 255")
        elif kind == "Normalize":
            mean, std = [*given, *(named[name] for name in ("mean", "std") if name in named), "", ""][:2]
            self.options += [f"mean={_constant(mean)}", f"std={_constant(std)}"]
        elif kind == "RandomHorizontalFlip":
            self.augment.append(f"flip={[*given, named.get('p', '0.5')][0]}")
        elif kind == "RandomCrop" and len(given) == 1 and not named:
            self.augment.append(f"crop={_both(given[0])}")
        elif kind == "RandomResizedCrop" and (options := _options_of(_RESIZED_CROP, given, named)) is not None:
            ratio = f", ratio={_constant(options['ratio'])}" if "ratio" in options else ""
            self.augment.append(
                f"resize={_both(options['size'])}, scale={_constant(options.get('scale', '(0.08, 1)'))}{ratio}"
            )
        elif kind in ("Resize", "CenterCrop"):
            self.sizes[kind] = [*given, named.get("size", "N")][0]
        elif kind != "ToImage":
            self.others.append(kind or ast.unparse(step))

    @property
    def what_sizes(self) -> str:
        """The steps that change sizes, in words."""
        return " and ".join(self.sizes)

    @property
    def size_options(self) -> str:
        """The options of `memload write --images` that do the same as `Resize` and `CenterCrop`."""
        size, crop = (self.sizes.get(kind, "") for kind in ("Resize", "CenterCrop"))
        fit = "" if len(_sides(size)) == 2 else " --fit crop"  # of one number, torchvision takes the shorter side
        made = (f" --size {_size(size)}{fit}" if size else "") + (f" --crop {_size(crop)}" if crop else "")
        unknown = [one for text in (size, crop) for one in _sides(text) if not one.isdigit()]
        return made + (f"  # N: the number {' or '.join(dict.fromkeys(unknown))}" if unknown else "")


_RESIZED_CROP = ("size", "scale", "ratio")


def _options_of(names: Sequence[str], given: Sequence[str], named: Mapping[str, str]) -> dict[str, str] | None:
    """Return the arguments of a step by their names; None if the first is missing, or there are others."""
    options = {**dict(zip(names, given, strict=False)), **named}
    options.pop("antialias", None)
    return options if len(given) <= len(names) and names[0] in options and options.keys() <= set(names) else None


def _sides(text: str) -> list[str]:
    """Return the numbers of a size: one of 256 and [256], two of (480, 640)."""
    node = ast.parse(text, mode="eval").body if text else None
    sides = list(map(ast.unparse, node.elts)) if isinstance(node, (ast.Tuple, ast.List)) else [text]
    return [one for one in sides if one]


def _size(text: str) -> str:
    """Return a size as the command line takes it: "256" of 256, "480x640" of (480, 640), N for what is no number."""
    return "x".join(one if one.isdigit() else "N" for one in _sides(text))


def _constant(text: str) -> str:
    """Return constants of a Normalize for a Cast: one number stays one, several become a tuple."""
    node = ast.parse(text, mode="eval").body if text else None
    if isinstance(node, (ast.Tuple, ast.List)):
        parts = [ast.unparse(one) for one in node.elts]
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    return text or "..."


def _both(text: str) -> str:
    return text if text.startswith(("(", "[")) else f"({text}, {text})"
