"""What a Dataset class does to the rows that it reads, as a function of samples, a cast and a function of batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from memload.cli.script import IN_FAST_LOADER, Advice
from memload.cli.script_moved import Above, moved
from memload.cli.script_names import quoted
from memload.cli.script_reads import ClassOf, Part, Read, Sample
from memload.cli.script_steps import Done, done_by

_NUMBERS = "Python's numbers become int64 or float64 in a batch; rows of memload keep the dtype of their file"


def work_on_rows(one: ClassOf, sample: Sample, above: Above) -> Advice:
    """Return what does to rows what a class does: a function of samples, a cast, a function of batches.

    Args:
        one: the class.
        sample: what it returns, of which each part reads a row.
        above: takes what a function of samples needs to have computed.
    """
    done = {part.name: done_by(part.read.steps) for part in sample.parts if part.read is not None}
    kept = [part for part in sample.parts if sample.transform or not done[part.name].whole]
    rest = {part.name: done[part.name] for part in sample.parts if part not in kept}
    code = list(_of_samples(one, sample, kept, above)) if kept else []
    places = {part.name: str(place) for place, part in enumerate(sample.parts)}
    by_place = bool(kept) and sample.kind == "tuple"  # fields of tuples that a function returned have no names
    casts = {places[name] if by_place else quoted(name): one.cast for name, one in rest.items() if one.cast}
    if casts:
        code.append(f"cast={{{', '.join(f'{name}: {cast}' for name, cast in casts.items())}}}  {IN_FAST_LOADER}")
    changed = {name: "".join(f".{method}" for method in one.methods) for name, one in rest.items() if one.methods}
    if changed:
        code.append(f"batch_transform=lambda batch: {_of_batches(sample, changed)}  {IN_FAST_LOADER}")
    return Advice(tuple(code), notes=tuple(_notes(sample, rest)))


def _notes(sample: Sample, done: Mapping[str, Done]) -> Iterator[str]:
    for name, one in done.items():
        yield from (f"{name}: {note}" for note in one.notes)
    numbers = [
        part.name
        for part in sample.parts
        if part.name in done and part.read is not None and part.read.steps and part.read.steps[-1].kind == "number"
    ]
    if numbers:
        yield f"{', '.join(numbers)}: {_NUMBERS}"


def _of_batches(sample: Sample, changed: Mapping[str, str]) -> str:
    """Return the code of a batch whose fields the methods have changed."""
    if sample.kind == "one":
        return f"batch{next(iter(changed.values()))}"
    if sample.kind == "tuple":
        elements = [f"batch[{place}]{changed.get(part.name, '')}" for place, part in enumerate(sample.parts)]
        return f"[{', '.join(elements)}]"
    pairs = [f"{quoted(name)}: batch[{quoted(name)}]{methods}" for name, methods in changed.items()]
    return f"{{**batch, {', '.join(pairs)}}}"


def _of_samples(one: ClassOf, sample: Sample, kept: Sequence[Part], above: Above) -> Iterator[str]:
    """Yield a function of samples that makes some parts of them as the class does, and the dataset that it makes."""

    def of_row(read: Read) -> ast.expr | None:
        for place, part in enumerate(sample.parts):
            if part.read is not None and part.read.row == read.row:
                return ast.parse(f"{_taken(sample, place)}.numpy()", mode="eval").body
        return None

    codes = [
        moved(one, part.code, sample.line, above, of_row) if part in kept else _taken(sample, place)
        for place, part in enumerate(sample.parts)
    ]
    if not all(codes):
        yield from own_function(one, [part.name for part in kept])
        return
    pairs = [f"{quoted(part.name)}: {code}" for part, code in zip(sample.parts, codes, strict=True) if part in kept]
    made = f"{{**sample, {', '.join(pairs)}}}" if not sample.transform else f"{{{', '.join(pairs)}}}"
    made = {"tuple": f"({', '.join(codes)})", "one": codes[0]}.get(sample.kind, made)
    if sample.transform:
        function = ast.parse(sample.transform, mode="eval").body
        made = f"{ast.unparse(above.name(function, 'transform'))}({made})"
    prepare = one.free("prepare")
    yield from (f"def {prepare}(sample):  # of one row, in threads", f"    return {made}", "")
    yield f"{one.name} = {one.name}.map({prepare})"


def _taken(sample: Sample, place: int) -> str:
    if sample.kind == "one":
        return "sample"
    return f"sample[{place}]" if sample.kind == "tuple" else f"sample[{quoted(sample.parts[place].name)}]"


def own_function(one: ClassOf, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a function of samples that is left to the user, with what it has to do, and the dataset that it makes."""
    what = f"what __getitem__ (line {one.getter.lineno}) makes of {', '.join(names) or 'a row'}"
    prepare = one.free("prepare")
    return (
        f"def {prepare}(sample):  # yours to write: {what}",
        "    return sample",
        "",
        f"{one.name} = {one.name}.map({prepare})",
    )
