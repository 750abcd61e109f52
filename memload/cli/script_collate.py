"""What a script's collate function does with the samples of a batch, where that can be followed.

torch.stack([b["x"] for b in batch])            -> what FastLoader does by itself
pad_sequence([x for x, _ in batch], True)       -> batch[0].values, with ragged={"x": ("padded", 0)}
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memload.cli.script import FAST_LOADER, OTHERS, Advice, Loader, Script, Verdict, name_of

_DEFAULT = frozenset(
    [
        *("torch.utils.data.default_collate", "torch.utils.data.dataloader.default_collate"),
        *("torch.utils.data._utils.collate.default_collate", "memload.graph_collate", "memload.group_collate"),
    ]
)
_STACKS = frozenset(["torch.stack", "numpy.stack", "torch.tensor", "torch.as_tensor", "numpy.array", *_DEFAULT])
_TENSORS = {"torch.LongTensor": ".long()", "torch.FloatTensor": ".float()", "torch.Tensor": ".float()"}
_AS_IS = frozenset(["torch.from_numpy", "torch.as_tensor", "torch.tensor", "numpy.asarray", "list", "tuple"])
Place = int | str | None
"""Which field of a sample: its place in a tuple, its key in a dict, or None for a sample that is one value."""


class _NotFollowedError(Exception):
    """A function does what is not followed here."""


@dataclass(frozen=True)
class _Field:
    """A field of one sample; with `length`, the number of its items."""

    place: Place
    length: bool = False


@dataclass(frozen=True)
class _Many:
    """Something of each sample, in a list."""

    of: object


@dataclass(frozen=True)
class _Columns:
    """A list of each field of all samples, as `zip(*batch)` makes them."""

    of: object


@dataclass(frozen=True)
class Joined:
    """A field of all samples, as one tensor of a batch.

    Attributes:
        place: which field.
        how: "stacked", "padded", or "lengths" for the lengths of its rows.
        methods: what is done to the tensor, such as ".long()".
        pad: the number behind the end of shorter rows.
    """

    place: Place
    how: str = "stacked"
    methods: str = ""
    pad: str = "0"


@dataclass(frozen=True)
class Collate:
    """A collate function.

    Attributes:
        code: the expression that names it.
        made: what it makes of the samples: a `Joined`, or a tuple or a dict of such; None if it is not followed.
        joined: the fields in it; of a function that is not followed those that it pads, as far as they are seen.
    """

    code: str
    made: object = None
    joined: tuple[Joined, ...] = field(default=())

    @property
    def padded(self) -> tuple[Place, ...]:
        """The fields whose rows differ in length."""
        return tuple(one.place for one in self.joined if one.how == "padded")

    def only_stacks(self, kind: str, count: int) -> bool:
        """Return whether this makes what FastLoader makes by itself of samples of a kind with so many fields.

        Args:
            kind: "tuple", "dict" or "one"; "" if unknown.
            count: the number of fields; 0 if unknown.
        """
        if any(one.how != "stacked" or one.methods for one in self.joined):
            return False
        if isinstance(self.made, Joined):
            return self.made.place is None and kind in ("", "one")
        places = [one.place for one in self.joined]
        if len(places) != count and count:
            return False
        if isinstance(self.made, Mapping):
            return kind in ("", "dict") and places == list(self.made)
        return kind in ("", "tuple") and places == list(range(len(places)))

    def of_batch(self) -> str:
        """Return the code that makes the same of a batch whose fields are stacked, or padded."""
        return _code(self.made)


def _code(made: object) -> str:
    if isinstance(made, Joined):
        taken = {"padded": ".values", "lengths": ".lengths"}.get(made.how, "")
        return f"batch{'' if made.place is None else f'[{json.dumps(made.place)}]'}{taken}{made.methods}"
    if isinstance(made, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)}: {_code(one)}' for key, one in made.items())}}}"
    assert isinstance(made, tuple)
    return f"({', '.join(map(_code, made))}{',' * (len(made) == 1)})"


def of_padded(collate: Collate | None, fields: Sequence[str]) -> str:
    """Return `.with_ragged(...)` of a dataset with some fields, for what a collate function pads; "" for nothing."""
    joined = collate.joined if collate is not None and collate.made is not None else ()
    padded = [one for one in joined if one.how == "padded"]
    named = {name_in(fields, one.place): one.pad for one in padded}
    listed = ", ".join(f'"{name}": ("padded", {pad})' for name, pad in named.items())
    return f".with_ragged({{{listed}}})" if named else ""


def name_in(fields: Sequence[str | int], place: Place) -> str:
    """Return the name of a field that a collate function joins, or FIELD where it is not known."""
    if isinstance(place, str):
        return place
    return str(fields[place or 0]) if (place or 0) < len(fields) else "FIELD"


def of_collate(loader: Loader, collate: Collate, below: Verdict) -> Verdict:
    """Return the verdict on a loader with a collate function."""
    name, line = f"collate_fn={collate.code}", loader.given["collate_fn"].lineno
    if collate.made is None:
        notes = (
            f"not followed: {collate.code} makes a batch of a list of samples; FastLoader calls it as torch does",
            "rows of one shape need none: FastLoader stacks them, and batch_transform=fn gets the stacked batch",
            "rows that differ in length: memload.from_arrays(x=memload.ragged(rows), ...), or ragged= in ShardWriter; "
            "batches have values and offsets, as for EmbeddingBag, or padded (B, T) with "
            'ragged={"x": ("padded", 0)} in FastLoader: docs/ragged.md',
        )
        return Verdict(False, f"{name} makes batches of samples in Python", Advice(notes=notes), line)
    if collate.only_stacks(below.kind, len(below.fields)):
        why = f"{name} only stacks the fields of samples, as FastLoader does by itself: it can be left out"
        return Verdict(False, why, Advice((_without_collate(loader, {}),)), line)
    ragged = {name_in(below.fields, one.place): one.pad for one in collate.joined if one.how == "padded"}
    in_dataset = any(".with_ragged(" in line for line in below.advice.code)
    options = {"batch_transform": f"lambda batch: {collate.of_batch()}"}
    if ragged and not in_dataset:
        listed = ", ".join(f'"{field}": ("padded", {pad})' for field, pad in ragged.items())
        options = {"ragged": f"{{{listed}}}", **options}
    after = ("where the advice for the dataset has a batch_transform, too, this one is given what that one returns",)
    why = f"{name} makes batches of samples in Python: of batches that are stacked or padded, a function makes the same"
    return Verdict(False, why, Advice((_without_collate(loader, options),), notes=after * (not ragged)), line)


def _without_collate(loader: Loader, options: Mapping[str, str]) -> str:
    """Return the code of a loader that has options of FastLoader in the place of its collate function."""
    given = [ast.keyword(name, ast.parse(code, mode="eval").body) for name, code in options.items()]
    kept = [one for one in loader.call.keywords if one.arg != "collate_fn"]
    call = ast.Call(ast.parse(FAST_LOADER, mode="eval").body, loader.call.args[:6], [*kept, *given])
    return f"{loader.name} = {ast.unparse(call)}" if loader.name else ast.unparse(call)


def collate_of(script: Script, call: ast.Call) -> Collate | None:
    """Return the collate function of the loader of a dataset that a call makes; None without one."""
    lines = script.loaders_of(call)
    loader = next((one for one in script.loaders if one.kind not in OTHERS and one.call.lineno in lines), None)
    return None if loader is None else collate_in(script, loader)


def collate_in(script: Script, loader: Loader) -> Collate | None:
    """Return the collate function of a loader; None without one of its own."""
    given = loader.given.get("collate_fn")
    if given is None or script.meaning(given) in _DEFAULT or ast.unparse(given) == "None":
        return None
    code = ast.unparse(given)
    function = _function(script, given)
    if function is None:
        return Collate(code)
    try:
        parameter, body = function
        made = _Reader(script, {parameter: _Many(_Field(None))}).run(body)
        joined = tuple(_joined(made))
    except _NotFollowedError:
        return Collate(code, joined=_padded_by(script, function))
    padded = {one.place for one in joined if one.how == "padded"}
    if any(one.how == "lengths" and one.place not in padded for one in joined) or not joined:
        return Collate(code)
    return Collate(code, made, joined)


def _padded_by(script: Script, function: tuple[str, list[ast.stmt]]) -> tuple[Joined, ...]:
    """Return the fields that a function pads, as far as they are seen in one that is not followed as a whole."""
    parameter, body = function
    reader = _Reader(script, {parameter: _Many(_Field(None))})
    found: list[Joined] = []
    for statement in body:
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        for call in (one for one in calls if script.called(one).rpartition(".")[2] == "pad_sequence"):
            with contextlib.suppress(_NotFollowedError):
                found += _joined(reader.call(call))
        with contextlib.suppress(_NotFollowedError):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                reader.bind(statement.targets[0], reader.of(statement.value))
            elif isinstance(statement, ast.For):
                reader.appended(statement)
    return tuple(found)


def _joined(made: object) -> Sequence[Joined]:
    if isinstance(made, Joined):
        return [made]
    if isinstance(made, Mapping):
        made = tuple(made.values())
    if not isinstance(made, tuple):
        raise _NotFollowedError
    return [inner for one in made for inner in _joined(one)]


def _function(script: Script, given: ast.expr) -> tuple[str, list[ast.stmt]] | None:
    """Return the parameter and the statements of a function of one argument; None if the script does not have it."""
    value = script.value_of(given, 10**9) or given
    if isinstance(value, ast.Lambda):
        names = [one.arg for one in value.args.args]
        return (names[0], [ast.Return(value.body)]) if len(names) == 1 else None
    short = name_of(given).rpartition(".")[2]
    found = [node for node in script.nodes if isinstance(node, ast.FunctionDef) and node.name == short]
    if not short or len(found) != 1:
        return None
    names = [one.arg for one in found[0].args.args if one.arg not in ("self", "cls")]
    return (names[0], found[0].body) if len(names) == 1 else None


@dataclass
class _Reader:
    """Reads the statements of a collate function, with what its names are."""

    script: Script
    names: dict[str, object]

    def run(self, body: Sequence[ast.stmt]) -> object:
        """Return what the statements return."""
        for statement in body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.of(statement.value)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self.bind(statement.targets[0], self.of(statement.value))
            elif isinstance(statement, ast.For) and not statement.orelse:
                self.appended(statement)
            elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                raise _NotFollowedError
        raise _NotFollowedError

    def bind(self, target: ast.expr, value: object) -> None:
        """Give names to a value, or to what it consists of."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
            return
        if not isinstance(target, (ast.Tuple, ast.List)):
            raise _NotFollowedError
        for place, inner in enumerate(target.elts):
            if isinstance(value, tuple) and len(value) == len(target.elts):
                self.bind(inner, value[place])
            else:
                self.bind(inner, _part(value, place))

    def appended(self, loop: ast.For) -> None:
        """Follow a loop over the samples that appends to lists."""
        inner = _Reader(self.script, dict(self.names))
        inner.bind(loop.target, _each(self.of(loop.iter)))
        for statement in loop.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                inner.bind(statement.targets[0], inner.of(statement.value))
            elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
                if self.names.get(name_of(call.func.value)) != () or len(call.args) != 1:
                    raise _NotFollowedError
                self.names[name_of(call.func.value)] = _Many(inner.of(call.args[0]))
            else:
                raise _NotFollowedError

    def of(self, node: ast.expr) -> object:
        """Return what an expression is."""
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(map(self.of, node.elts))
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {key.value: self.of(one) for key, one in pairs if isinstance(key, ast.Constant)}
        if isinstance(node, ast.Subscript):
            return self.item(node)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
            turn = node.generators[0]
            inner = _Reader(self.script, dict(self.names))
            inner.bind(turn.target, _each(self.of(turn.iter)))
            if not turn.ifs:
                return _Many(inner.of(node.elt))
        if isinstance(node, ast.Call):
            return self.call(node)
        raise _NotFollowedError

    def item(self, node: ast.Subscript) -> object:
        """Return `b["x"]`, `b[0]` or, of `x.shape[0]`, the number of items."""
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and ast.unparse(node.slice) == "0":
            return _length(self.of(node.value.value))
        if not isinstance(node.slice, ast.Constant) or not isinstance(node.slice.value, (int, str)):
            raise _NotFollowedError
        return _part(self.of(node.value), node.slice.value)

    def call(self, node: ast.Call) -> object:
        """Return what a call makes."""
        called, given = self.script.called(node), node.args
        named = {one.arg: one.value for one in node.keywords}
        if called == "zip" and len(given) == 1 and isinstance(given[0], ast.Starred):
            return _Columns(_each(self.of(given[0].value)))
        if called == "map" and len(given) == 2 and name_of(given[0]) in ("list", "tuple"):
            return self.of(given[1])
        if called == "len" and len(given) == 1:
            return _length(self.of(given[0]))
        if called.rpartition(".")[2] == "pad_sequence" and given:
            return self.padded(given, named)
        if isinstance(node.func, ast.Attribute) and not called.startswith(("torch.", "numpy.")):
            return self.method(node, node.func, named)
        if not given:
            raise _NotFollowedError
        inner = self.of(given[0])
        if isinstance(inner, (_Field, Joined)) and called in _AS_IS and len(given) == 1 and not named:
            return inner
        if isinstance(inner, (_Many, _Columns)) and called in ("list", "tuple"):
            return inner
        return self.stacked(called, inner, given[1:], named)

    def stacked(
        self, called: str, inner: object, rest: Sequence[ast.expr], named: Mapping[str | None, ast.expr]
    ) -> Joined:
        """Return the tensor of one field of all samples."""
        axis = [*map(ast.unparse, rest), *(ast.unparse(named[name]) for name in ("dim", "axis") if name in named)]
        others = set(named) - {"dim", "axis", "dtype"}
        is_known = called in _STACKS or called in _TENSORS
        if (
            not (isinstance(inner, _Many) and isinstance(inner.of, _Field) and is_known)
            or others
            or axis not in ([], ["0"])
        ):
            raise _NotFollowedError
        methods = _TENSORS.get(called, "")
        if "dtype" in named:
            methods = f".to({ast.unparse(named['dtype'])})"
        return Joined(inner.of.place, "lengths" if inner.of.length else "stacked", methods)

    def padded(self, given: Sequence[ast.expr], named: Mapping[str | None, ast.expr]) -> Joined:
        """Return the tensor of rows that are padded to one length."""
        options = dict(zip(("batch_first", "padding_value"), map(ast.unparse, given[1:]), strict=False))
        options |= {name: ast.unparse(one) for name, one in named.items() if name is not None}
        pad, first = options.pop("padding_value", "0"), options.pop("batch_first", "False")
        inner = self.of(given[0])
        is_number = pad.removeprefix("-").replace(".", "", 1).isdigit()
        if options or first not in ("True", "False") or not is_number or not isinstance(inner, _Many):
            raise _NotFollowedError
        if not isinstance(inner.of, _Field) or inner.of.length:
            raise _NotFollowedError
        return Joined(inner.of.place, "padded", "" if first == "True" else ".transpose(0, 1)", pad)

    def method(self, node: ast.Call, function: ast.Attribute, named: Mapping[str | None, ast.expr]) -> object:
        """Return what a method of a tensor makes, if it does the same to a tensor of a batch."""
        inner = self.of(function.value)
        if isinstance(inner, _Field) and function.attr == "size" and list(map(ast.unparse, node.args)) == ["0"]:
            return _length(inner)
        used = {one.id for argument in node.args for one in ast.walk(argument) if isinstance(one, ast.Name)}
        if not isinstance(inner, Joined) or named or used & set(self.names):
            raise _NotFollowedError
        return replace(inner, methods=f"{inner.methods}.{function.attr}({', '.join(map(ast.unparse, node.args))})")


def _part(value: object, place: int | str) -> object:
    """Return a field of a sample, or of all samples."""
    if isinstance(value, _Columns):
        return _Many(_part(value.of, place))
    if not isinstance(value, _Field) or value.place is not None or value.length:
        raise _NotFollowedError
    return _Field(place)


def _each(value: object) -> object:
    if not isinstance(value, _Many):
        raise _NotFollowedError
    return value.of


def _length(value: object) -> object:
    if not isinstance(value, _Field) or value.length:
        raise _NotFollowedError
    return replace(value, length=True)
