"""What a script's transforms of torchvision do, as a cast of memload, and as options of `memload write --images`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memload.cli.script import Script
from memload.cli.script_data import COLOURS


def casts_of_transforms(script: Script) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line of each `Compose` or lone `ToTensor`, and the cast that does the same as what it has."""
    calls = [one for one in ast.walk(script.tree) if isinstance(one, ast.Call)]
    names = [script.called(one) for one in calls if script.called(one).startswith("torchvision.datasets.")]
    kinds = {name.rpartition(".")[2] for name in names}
    # As `memload write --images` stores them, and the grey ones in memory with an axis more; those in colour differ.
    channels = ["channels=-1", 'layout="NCHW"'] if kinds & set(COLOURS) else ["channels=-3"]
    for call in calls:
        steps = call.args[0] if call.args else None
        if script.called(call).endswith(("transforms.Compose", "v2.Compose")) and isinstance(steps, ast.List):
            code = _cast(script, [script.value_of(one, call.lineno) or one for one in steps.elts], channels)
            if code:
                yield call.lineno, code
        if script.called(call).startswith("torchvision.datasets."):
            given = next((one.value for one in call.keywords if one.arg == "transform"), None)
            step = None if given is None else script.value_of(given, call.lineno)
            if given is not None and step is not None and script.called(step).rpartition(".")[2] == "ToTensor":
                yield given.lineno, _cast(script, [step], channels)


def _cast(script: Script, steps: Sequence[ast.expr], channels: Sequence[str]) -> tuple[str, ...]:
    made = _Steps()
    for step in steps:
        own = isinstance(step, ast.Call) and script.defines(script.called(step))
        if isinstance(step, ast.Call) and not own:
            made.add(script.called(step).rpartition(".")[2], script.with_constants(step))
        else:
            made.others.append(script.called(step) if own else ast.unparse(step))
    options = [*made.options, *(channels if made.options or made.augment else [])]
    if made.augment:
        options.append(f"augment=memload.Augment({', '.join(made.augment)})")
    code = [f'cast={{"image": memload.Cast(torch.float32, {", ".join(options)})}}'] if options else []
    if made.sizes:
        code.append(f"{made.what_sizes}: once, by memload write --images DIR{made.size_options}")
    if made.others:
        code.append(f"{', '.join(made.others)}: dataset.map(fn), or batch_transform=fn for whole batches")
    return tuple(code)


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
