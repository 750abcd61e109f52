"""What replaces a Dataset class of a script that opens an image and its mask, and the casts that change both alike.

{"image": img, "mask": mask}    -> memload write --images photos --masks masks shards/
v2.Compose([RandomHorizontalFlip(0.5), ...]) of both    -> a cast of each, with the same Augment
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from memload.cli.script import Advice, Script, name_of
from memload.cli.script_images import IMAGES, folder_of, tables_of
from memload.cli.script_names import assigned_in, is_none, quoted
from memload.cli.script_options import notes_of_options
from memload.cli.script_reads import ClassOf, Part, Sample
from memload.cli.script_stored import draws, stored_once
from memload.cli.script_transforms import dict_of, is_composed, sizes_of, split_at_random, transforms_of

_NAMES_OF_MASKS = re.compile(r"mask|seg|label|annot|ground|(^|_)gt(_|$)", re.IGNORECASE)
_MASKS = ("tv_tensors.Mask", "datapoints.Mask")
_V2 = "torchvision.transforms.v2."
_AUGMENT = ", augment="
_LISTING = frozenset(["listdir", "glob", "iglob", "rglob", "iterdir", "scandir"])
_ALIKE = 'in the casts of both, with interpolation="nearest" of masks, changes both alike'


@dataclass(frozen=True)
class _Opened:
    """A call that opens an image, the name or the key that it is given, and whether a class of masks has it."""

    call: ast.Call
    name: str
    wrapped: bool

    @property
    def is_mask(self) -> bool:
        """Whether it is a mask, by its class, its name, or its path where it has no name."""
        return self.wrapped or bool(_NAMES_OF_MASKS.search(self.name or ast.unparse(self.call)))


@dataclass(frozen=True)
class _Pair:
    """An image and its mask."""

    image: _Opened
    mask: _Opened


def stored_pairs(one: ClassOf, sample: Sample) -> tuple[Advice, tuple[str, ...]]:
    """Return what stores images and masks once, and the fields of a tuple then; both empty where there are no masks."""
    if not _has_several(one):
        return Advice(), ()
    pair = _pair_of(one)
    if pair is None or list(tables_of(one)):
        return _as_returned(one, sample), ()
    images, masks = (folder_of(part.call.args[0], one) for part in (pair.image, pair.mask))
    if images == masks and images:
        why = f"images and masks lie in one folder, {images}: --images and --masks take a folder of each"
        return Advice(notes=(f"not followed: {why}, of PNG files for masks: docs/images.md",)), ()
    size, _, note = sizes_of(one.script, one.call, [images])[0].partition("  # ")
    suffix, notes = _suffix_of(one, pair.mask)
    command = f"memload write --images {images or 'DIR'} --masks {masks or 'MASKS'}{suffix}{size}"
    order = [_is_mask(one, pair, part) for part in sample.parts]
    form, fields = _form(sample, order)
    line = one.getter.lineno
    notes = [
        "images and masks are decoded once, in C, as pairs of one path but for the suffix: docs/images.md",
        *[note] * bool(note),
        *notes,
        f"not followed: what __getitem__ (line {line}) does to masks but resizing and random steps: those of the set "
        "are (H, W), with the numbers of the PNG files: do it in batch_transform=, and compare some",
        *_unfollowed(one, sample, form),
        *notes_of_options(one.script, one.call, one.made),
    ]
    code = f"{one.name} = memload.open({one.code_of(one.shards)}){form}"
    return Advice((code,), (f"{command} {shlex.quote(one.shards + one.turn)}",), tuple(notes)), fields


def _unfollowed(one: ClassOf, sample: Sample, form: str) -> Iterator[str]:
    """Yield what else is not followed: the choice of files, the fields of a sample, transforms, random numbers."""
    called = {one.script.called(node) for node in ast.walk(one.made) if isinstance(node, ast.Call)}
    listed = any(name.rpartition(".")[2] in _LISTING for name in called)
    if not listed or called & {"open", "numpy.loadtxt", "numpy.genfromtxt"}:
        yield "not followed: which images the class takes: the command takes all of the folder, in the order of paths"
    names = [part.name for part in sample.parts]
    if not form and sorted(names) != ["image", "mask"]:
        yield f"not followed: the fields of a sample, {', '.join(names) or 'which are not seen'}; here: image, mask"
    for node in (node for node in ast.walk(one.getter) if isinstance(node, ast.Call)):
        known = one.outside(node.func, one.getter, 10**9) if name_of(node.func).startswith("self.") else None
        if known is not None and not is_none(known) and not is_composed(one.script, known, one.call):
            told = f"not followed: {ast.unparse(known)} (line {node.lineno}): .map(fn) of samples"
            yield f"{told}, whose images are uint8 (C, H, W), and masks (H, W)"
    if draws(one):
        alike = f"augment=memload.Augment(...) {_ALIKE}"
        yield f"not followed: the random numbers that __getitem__ (line {one.getter.lineno}) draws: {alike}"


def _as_returned(one: ClassOf, sample: Sample) -> Advice:
    """Return what stores samples as the class returns them; nothing but a reason where random steps would be stored."""
    why = "a sample has several images, or masks that it makes"
    _, random, *_ = split_at_random(one.script, one.call)
    if random or draws(one):
        told = "a random step has to change all of them alike, and is neither stored nor left out here"
        return Advice(notes=(f"not followed: {why}: {told}: docs/images.md, docs/transforms.md",))
    return stored_once(one, sample, f"{why}, so that samples are stored once, as the class returns them")


# What the class opens


def _opens(one: ClassOf, node: ast.AST) -> bool:
    """Return whether a node is a call that opens an image, by itself or by a method of the class."""
    if not (isinstance(node, ast.Call) and node.args):
        return False
    method = one.method(name_of(node.func).removeprefix("self.")) if name_of(node.func).startswith("self.") else None
    inner = [] if method is None or method is one.getter else ast.walk(method)
    return one.script.called(node) in IMAGES or any(one.script.called(part) in IMAGES for part in inner)


def _opened(one: ClassOf) -> list[_Opened]:
    """Return the images that `__getitem__` opens, each name once."""
    found: dict[str, _Opened] = {}
    calls = [node for node in ast.walk(one.getter) if isinstance(node, ast.Call) and _opens(one, node)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        around = [name for name, _, value in assigned_in(one.getter) if any(part is call for part in ast.walk(value))]
        dicts = [node for node in ast.walk(one.getter) if isinstance(node, ast.Dict)]
        keys = [
            str(key.value)
            for made in dicts
            for key, value in zip(made.keys, made.values, strict=True)
            if isinstance(key, ast.Constant) and any(part is call for part in ast.walk(value))
        ]
        name = next(iter([*around, *keys]), "")
        wrapped = any(part is call for mask in _masks(one) for part in ast.walk(mask))
        found.setdefault(name or ast.unparse(call), _Opened(call, name, wrapped))
    return list(found.values())


def _masks(one: ClassOf) -> list[ast.Call]:
    """Return the calls that make masks of torchvision."""
    calls = [node for node in ast.walk(one.made) if isinstance(node, ast.Call)]
    return [call for call in calls if one.script.called(call).endswith(_MASKS)]


def _has_several(one: ClassOf) -> bool:
    """Return whether a sample has several images, or masks."""
    return len(_opened(one)) > 1 or bool(_masks(one))


def _pair_of(one: ClassOf) -> _Pair | None:
    """Return the image and the mask that `__getitem__` opens itself; None of others."""
    opened = _opened(one)
    masks = [part for part in opened if part.is_mask]
    if len(opened) != 2 or len(masks) != 1 or not all(one.script.called(part.call) in IMAGES for part in opened):
        return None
    return _Pair(next(part for part in opened if part is not masks[0]), masks[0])


def _is_mask(one: ClassOf, pair: _Pair, part: Part) -> bool | None:
    """Return whether a part of a sample is the mask; None of what is neither the mask nor the image."""
    by_name = {pair.image.name: False, pair.mask.name: True}
    values = [value for name, _, value in assigned_in(one.getter) if name == name_of(part.code)]
    if any(isinstance(value, ast.Dict) for value in [part.code, *values]):
        return None  # such as a mask with boxes
    if isinstance(part.code, ast.Name) and part.code.id in by_name:
        return by_name[part.code.id]
    if part.name in by_name and part.name:
        return by_name[part.name]
    has_image, has_mask = (_comes_from(one, part.code, opened) for opened in (pair.image, pair.mask))
    return None if has_image == has_mask else has_mask


def _comes_from(one: ClassOf, node: ast.AST, opened: _Opened) -> bool:
    """Return whether an expression of `__getitem__` has an opened image in it, by names, too."""
    left, seen = [node], set()
    while left:
        for part in ast.walk(left.pop()):
            if part is opened.call:
                return True
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                left += [value for name, _, value in assigned_in(one.getter) if name == part.id]
    return False


def _form(sample: Sample, order: list[bool | None]) -> tuple[str, tuple[str, ...]]:
    """Return the method that gives rows the form of samples, and the fields of a tuple."""
    if sorted(map(str, order)) != ["False", "True"]:
        return "", ()
    stored = ["mask" if is_mask else "image" for is_mask in order]
    if sample.kind == "tuple":
        return f".as_tuple({', '.join(map(quoted, stored))})", tuple(stored)
    pairs = zip(stored, (part.name for part in sample.parts), strict=True)
    renamed = ", ".join(f"{quoted(old)}: {quoted(new)}" for old, new in pairs if old != new)
    return f".rename({{{renamed}}})" if renamed else "", ()


def _suffix_of(one: ClassOf, mask: _Opened) -> tuple[str, list[str]]:
    """Return the option for what names of masks have more than those of images, and what is said of their files."""
    texts = [text for node in _inside(one, mask.call.args[0]) if (text := _ending_of(node))]
    stems = [posixpath.splitext(text)[0] for text in texts]
    suffix = next((stem for stem in stems if re.fullmatch(r"[_-]\w+", stem)), "")
    others = [
        end for text in texts if (end := posixpath.splitext(text)[1].lower()) in (".gif", ".jpg", ".jpeg", ".bmp")
    ]
    told = [
        f"not followed: masks are {end} files: --masks takes PNG, so write them as such first" for end in others[-1:]
    ]
    if not suffix:
        told.append("--mask-suffix TEXT is for masks whose names have more than those of images, as 17_mask.png has")
    return f" --mask-suffix {suffix}" * bool(suffix), told


def _inside(one: ClassOf, node: ast.expr) -> Iterator[ast.AST]:
    """Yield what a path of `__getitem__` is made of, with what its names and attributes are."""
    left, seen = [node], set()
    while left:
        for part in ast.walk(left.pop()):
            yield part
            name = name_of(part)
            if name and name not in seen:
                seen.add(name)
                known = one.outside(part, one.getter, 10**9) if name.startswith("self.") else None  # type: ignore[arg-type]
                left += [value for other, _, value in assigned_in(one.getter) if other == name]
                left += [] if known is None else [known]


def _ending_of(node: ast.AST) -> str:
    """Return a text such as "_mask.png" that names may end with."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[_-]?\w*(\.\w+)?", node.value):
        return node.value
    return ""


# What changes both


def casts_with_masks(
    script: Script, compose: ast.Call, cast: str, notes: tuple[str, ...]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the cast of each field that does what a `Compose` does, and notes, where its datasets have masks, too.

    A random step is that of a cast where both have it; else it is left out, since masks would not follow.

    Args:
        script: the script.
        compose: the call that makes the `Compose`.
        cast: the code of the cast of images.
        notes: what is said of it.
    """
    classes = [one for one in _classes(script) if any(node is compose for node in transforms_of(script, one.call))]
    uses = {use for one in classes for use in _uses_of(one, compose)}
    if not classes:
        return ({"image": cast} if cast else {}), notes
    if uses == {"mask"}:
        told = "not followed: these steps, of masks: the command resizes masks with their images, to the nearest pixel"
        return {}, (f"{told}, and a cast of masks may convert them",)
    image, mask = _names_of(classes[0])
    plain, _, augment = cast.partition(_AUGMENT)
    plain += ")" * bool(augment)
    augment = augment.removesuffix(")")
    if not augment:
        return ({image: cast} if cast else {}), notes
    if uses == {"both"} and script.called(compose).startswith(_V2) and dict_of(script, compose) is None:
        nearest = f'{augment.removesuffix(")")}, interpolation="nearest")' if "resize=" in augment else augment
        alike = "masks are float32 by their cast, (H, W): .long() of them where whole numbers are wanted"
        return {image: cast, mask: f"memload.Cast(torch.float32{_AUGMENT}{nearest})"}, (*notes, alike)
    told = f"not followed: a random step, which masks have to follow: augment={augment} {_ALIKE}"
    plain = "" if plain == "memload.Cast(torch.float32, channels=-3)" else plain
    return ({image: plain} if plain else {}), (*notes, told)


def _classes(script: Script) -> Iterator[ClassOf]:
    """Yield the classes with masks, as each call makes them."""
    for call in (node for node in script.nodes if isinstance(node, ast.Call)):
        made = script.class_named(script.called(call))
        one = None if made is None else ClassOf(script, made, call)
        if one is not None and one.method("__getitem__") is not None and _has_several(one):
            yield one


def _uses_of(one: ClassOf, compose: ast.Call) -> Iterator[str]:
    """Yield what `__getitem__` changes by a `Compose`: "image", "mask", or "both" at once."""
    code = ast.dump(compose)
    opened = _opened(one)
    for node in (node for node in ast.walk(one.getter) if isinstance(node, ast.Call)):
        known = one.outside(node.func, one.getter, 10**9) if name_of(node.func) else None
        value = None if known is None else one.script.value_of(known, 10**9)
        if value is not compose and (value is None or name_of(known) or ast.dump(value) != code):
            continue
        given = [*node.args, *(word.value for word in node.keywords)]
        of = {part.is_mask for part in opened for each in given if _comes_from(one, each, part)}
        names = {bool(_NAMES_OF_MASKS.search(ast.unparse(each))) for each in given}
        if len(given) > 1:
            yield "both"
        else:
            yield "mask" if (of or names) == {True} else "image" if (of or names) == {False} else "unknown"


def _names_of(one: ClassOf) -> tuple[str, str]:
    """Return the fields of images and masks that the set has for a class."""
    sample, pair = one.sample(), _pair_of(one)
    if sample.kind != "dict" or pair is None:
        return "image", "mask"
    named = {_is_mask(one, pair, part): part.name for part in sample.parts}
    return named.get(False, "image"), named.get(True, "mask")
