"""What stores the samples of a Dataset class once, as rows, where they are more than rows of files."""

from __future__ import annotations

import ast

from memload.cli.script import Advice, name_of
from memload.cli.script_collate import collate_of, name_in, of_padded
from memload.cli.script_names import draws_random, free_name, is_generator, quoted
from memload.cli.script_options import notes_of_options
from memload.cli.script_reads import ClassOf, Sample
from memload.cli.script_transforms import draws_by_step, split_at_random, transforms_of

_ONCE = (
    "{} is written in the first run, by one process, and then opened: remove it where data, class or arguments change"
)


def stored_once(one: ClassOf, sample: Sample | None, why: str = "") -> Advice:
    """Return the code that stores what a class returns, with its random transforms left to `map`."""
    made, random, noise, tensors, sized = split_at_random(one.script, one.call)
    if random and _changes_together(one):
        told = "changes several parts of a sample by the same random numbers, which .map(fn) of one part would not"
        return Advice(notes=(f"not followed: {random} {told}: docs/transforms.md",))
    fields = [part.name for part in sample.parts] if sample is not None else []
    collate = collate_of(one.script, one.call)
    notes = [*[why] * bool(why), _ONCE.format(one.shards_of_script.removeprefix("f").strip('"'))]
    named = "NAME: a text that tells the datasets of this line apart, since each has a folder of its own"
    notes += [*[named] * ("NAME" in one.turn), *notes_of_options(one.script, one.call, one.made)]
    if draws(one):
        told = "__getitem__ draws random numbers: leave that out of it, and do it in .map(fn), with torch.rand; what is"
        notes.append(f"{told} stored with them is the same in each epoch")
    notes += [
        f"rows of a set have one shape: give {step} both sides, as (H, W), if it keeps proportions" for step in sized
    ]
    is_dict = sample is not None and sample.kind == "dict"
    form = "" if is_dict else _form(fields)
    if collate is None or (collate.made is not None and not collate.padded):
        written = _batches(one, made, [] if is_dict else fields, fields if is_dict else [])
    else:
        ragged = [name_in(fields, place) for place in collate.padded]
        written = _samples(one, made, fields, is_dict, ragged)
        if not ragged:
            named = 'ragged=["NAME"] in ShardWriter names their fields'
            notes.append(f"rows that differ in length: {named}, docs/ragged.md")
    guard = f"if not os.path.exists({one.shards_of_script}):"  # a set is there once it is complete
    lines = (*["import os"] * ("os" not in one.script.imported), guard, *(f"    {line}" for line in written))
    opened = f"memload.open({one.shards_of_script}){form}"
    padded = of_padded(collate, fields)
    if not random:
        return Advice((*lines, f"{one.name} = {opened}{padded}"), notes=tuple(notes))
    shared = "draws from a generator that threads share: torch.randint(low, high, ()).item() is drawn by row"
    notes += [f"{name} {shared}" for name in noise]
    steps = one.free("random")
    function = f"lambda sample: {steps}({{name: value.numpy() for name, value in sample.items()}})"
    if not is_dict:
        function = f"lambda sample: {steps}(sample)"
        notes.append(f"{steps} has those that draw random numbers: change the lambda so that they get the image")
    elif tensors:
        function = steps
    mapped = (f"{steps} = {random}", f"{one.name} = {opened}.map({function}){padded}  # samples have tensors")
    return Advice((*lines, *mapped), notes=tuple(notes))


def _changes_together(one: ClassOf) -> bool:
    """Return whether `__getitem__` calls a transform of the object with several values, as an image and a mask."""
    getter = one.method("__getitem__")
    calls = [node for node in ast.walk(getter) if isinstance(node, ast.Call)] if getter is not None else []
    return any(
        len(call.args) + len(call.keywords) > 1
        for call in calls
        if name_of(call.func).startswith("self.") and one.method(name_of(call.func)[5:]) is None
    )


def _form(fields: list[str]) -> str:
    """Return the method that gives samples of these fields as the class does, which returns no dicts."""
    names = [quoted(name) for name in fields]
    if len(names) > 1:
        return f".as_tuple({', '.join(names)})"
    return f".only({names[0]})" if names else ""


def _batches(one: ClassOf, made: str, fields: list[str], names: list[str]) -> list[str]:
    """Return the code that stores what a class makes, batch by batch."""
    writer, batch = (free_name(one.script, name) for name in ("writer", "batch"))
    if names and all(names):
        extend = f"{writer}.extend(**{batch})  # {', '.join(names)}: each row of one shape, so resize images here"
    elif len(fields) > 1:
        extend = f"{writer}.extend({', '.join(f'{name}={batch}[{place}]' for place, name in enumerate(fields))})"
    elif fields:
        extend = f"{writer}.extend({fields[0]}={batch})"
    else:
        of_tuples = f"{writer}.extend(x={batch}[0], y={batch}[1])"
        extend = f"{writer}.extend(**{batch})  # a dict of fields; of tuples: {of_tuples}"
    return [
        f"with memload.ShardWriter({one.shards_of_script}) as {writer}:",
        f"    for {batch} in memload.FastLoader({made}, batch_size=64):",
        f"        {extend}",
    ]


def _samples(one: ClassOf, made: str, fields: list[str], is_dict: bool, ragged: list[str]) -> list[str]:
    """Return the code that stores what a class makes, sample by sample: rows may differ in length."""
    wanted = ("writer", "samples", "sample", "number")
    writer, samples, sample, number = (free_name(one.script, name) for name in wanted)
    append = f"{writer}.append({', '.join(f'{name}={sample}[{place}]' for place, name in enumerate(fields))})"
    if is_dict or not fields:
        append = f"{writer}.append(**{sample})"
    elif len(fields) == 1:
        append = f"{writer}.append({fields[0]}={sample})"
    named = f", ragged=[{', '.join(map(quoted, ragged))}]" if ragged else ""
    return [
        f"{samples} = {made}",
        f"with memload.ShardWriter({one.shards_of_script}{named}) as {writer}:",
        f"    for {number} in range(len({samples})):",
        f"        {sample} = {samples}[{number}]",
        f"        {append}",
    ]


def draws(one: ClassOf) -> bool:
    """Return whether `__getitem__` draws random numbers: itself, by what it calls, or by transforms of the class."""
    if any(draws_by_step(one.script, step) for step in transforms_of(one.script, one.call, given=False)):
        return True
    functions = {node.name: node for node in one.script.tree.body if isinstance(node, ast.FunctionDef)}
    getter = one.method("__getitem__")
    left, seen = [getter] if getter else [], set()
    while left:
        method = left.pop()
        seen.add(method)
        for node in (node for node in ast.walk(method) if isinstance(node, ast.Call)):
            if draws_random(one.script, node) or _of_generator(one, node):
                return True
            name = name_of(node.func)
            called = one.method(name[5:]) if name.startswith("self.") else functions.get(name)
            left += [called] if called is not None and called not in seen else []
    return False


def _of_generator(one: ClassOf, call: ast.Call) -> bool:
    """Return whether a call is that of a method of a generator: of the object, or of the script."""
    base = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if base.startswith("self."):
        return any(is_generator(one.script, value) for _, _, value in one.assigned(base[5:]))
    return bool(base) and is_generator(one.script, one.script.value_of(ast.Name(base), 10**9))
