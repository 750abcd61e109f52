"""What stores the samples of a Dataset class once, as rows, where they are more than rows of files."""

from __future__ import annotations

import ast

from memload.cli.script import Advice
from memload.cli.script_collate import collate_of, of_padded
from memload.cli.script_names import quoted
from memload.cli.script_reads import ClassOf, Sample
from memload.cli.script_transforms import split_at_random

_ONCE = "the lines that write run once, before training: afterwards the set is there, and they are left out"


def stored_once(one: ClassOf, sample: Sample | None, why: str = "") -> Advice:
    """Return the code that stores what a class returns, with its random transforms left to `map`."""
    made, random, noise = split_at_random(one.script, one.call)
    fields = [part.name for part in sample.parts] if sample is not None else []
    collate = collate_of(one.script, one.call)
    notes = [why] * bool(why) + [_ONCE]
    if draws(one):
        notes.append("__getitem__ draws random numbers: leave that out of it, and do it in .map(fn), with torch.rand")
    names = [quoted(name) for name in fields]
    form = f".as_tuple({', '.join(names)})" if len(fields) > 1 else f".only({names[0]})" if fields else ""
    is_dict = sample is not None and sample.kind == "dict"
    if is_dict:
        form = ""
    if collate is None or (collate.made is not None and not collate.padded):
        lines = _batches(made, fields if sample is None or not is_dict else [], fields if is_dict else [])
    else:
        ragged = [fields[place] if isinstance(place, int) and fields else str(place) for place in collate.padded]
        lines = _samples(made, fields, is_dict, ragged)
        if not ragged:
            notes.append(
                'rows that differ in length: ragged=["NAME"] in ShardWriter names their fields, docs/ragged.md'
            )
    opened = f'memload.open("shards/"){form}'
    padded = of_padded(collate, fields)
    if not random:
        return Advice((*lines, f"{one.name} = {opened}{padded}"), notes=tuple(notes))
    notes += [
        f"{name} draws from a generator that threads share: torch.randint in its place is drawn by row"
        for name in noise
    ]
    rows = "random({name: value.numpy() for name, value in sample.items()})"
    if not is_dict:
        rows = "sample"
        notes.append("random has the steps that draw random numbers: change the lambda so that they get the image")
    mapped = (f"random = {random}", f"{one.name} = {opened}.map(lambda sample: {rows}){padded}  # samples have tensors")
    return Advice((*lines, *mapped), notes=tuple(notes))


def _batches(made: str, fields: list[str], names: list[str]) -> list[str]:
    """Return the code that stores what a class makes, batch by batch."""
    if names and all(names):
        extend = f"writer.extend(**batch)  # {', '.join(names)}: each row of one shape, so resize images here"
    elif len(fields) > 1:
        extend = f"writer.extend({', '.join(f'{name}=batch[{place}]' for place, name in enumerate(fields))})"
    elif fields:
        extend = f"writer.extend({fields[0]}=batch)"
    else:
        extend = "writer.extend(**batch)  # a dict of fields; of tuples: writer.extend(x=batch[0], y=batch[1])"
    return [
        'with memload.ShardWriter("shards/") as writer:  # once; without random transforms',
        f"    for batch in memload.FastLoader({made}, batch_size=64):",
        f"        {extend}",
    ]


def _samples(made: str, fields: list[str], is_dict: bool, ragged: list[str]) -> list[str]:
    """Return the code that stores what a class makes, sample by sample: rows may differ in length."""
    append = f"writer.append({', '.join(f'{name}=sample[{place}]' for place, name in enumerate(fields))})"
    if is_dict or not fields:
        append = "writer.append(**sample)"
    elif len(fields) == 1:
        append = f"writer.append({fields[0]}=sample)"
    named = f", ragged=[{', '.join(map(quoted, ragged))}]" if ragged else ""
    return [
        f"samples = {made}",
        f'with memload.ShardWriter("shards/"{named}) as writer:  # once; without random transforms',
        "    for number in range(len(samples)):",
        "        sample = samples[number]",
        f"        {append}",
    ]


def draws(one: ClassOf) -> bool:
    """Return whether `__getitem__` draws random numbers itself."""
    getter = one.method("__getitem__")
    called = [one.script.called(node) for node in ast.walk(getter) if isinstance(node, ast.Call)] if getter else []
    return any(name.startswith(("numpy.random.", "random.", "torch.rand")) for name in called)
