"""Make one set of parts: check them against one another, and give the set its index. No byte of a shard moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from memload.columns.fields import describe
from memload.errors import FormatError
from memload.formats.shards.index import AnySpec, ShardIndex, dump_index, parse_index, read_index
from memload.formats.shards.parts import CompletePart, PartNumber, PartsFolder
from memload.formats.shards.reading import check_shard

_MOST_NAMED = 12


def seal_parts(target: Path, parts: int | None) -> None:
    """Seal the parts in a directory; a set that is sealed already is only cleared of what no index lists.

    Args:
        target: the directory of the set.
        parts: how many parts there are; None takes what the writers said.

    Raises:
        FileNotFoundError: there are no parts.
        ValueError: parts are missing or disagree, or none has a row.
        ShardFormatError: a shard or the index of a part is missing or damaged.
    """
    folder = PartsFolder(target)
    if folder.is_sealed:
        folder.clear(read_index(target))
        return
    _merged(folder, parts)  # what is missing is told while writers are at work
    folder.claim()
    try:
        index = _merged(folder, parts)
        for shard in index.shards:
            check_shard(target, shard, index.fields)
        folder.publish(dump_index(index))
    except BaseException as error:
        if folder.is_sealed and isinstance(error, OSError | ValueError):  # by another process, meanwhile
            index = read_index(target)
        else:
            folder.release()
            raise
    folder.clear(index)


def check_agreement(part: CompletePart, other: CompletePart) -> None:
    """Raise ValueError if two parts differ in fields, dtypes, shapes, codecs or options."""
    for option in part.options.keys() & other.options.keys():
        if part.options[option] != other.options[option]:
            raise ValueError(f"{part.number} was written with another {option} than {other.number}")
    if not part.index.fields or not other.index.fields:
        return
    fields, expected = part.index.fields, other.index.fields
    if fields.keys() != expected.keys():
        raise ValueError(f"{part.number} has the fields {sorted(fields)}, {other.number} has {sorted(expected)}")
    for name, spec in fields.items():
        if spec != expected[name]:
            raise ValueError(
                f"field {name!r} is {_described(spec)} in {part.number}, and {_described(expected[name])} in "
                f"{other.number}"
            )


def _merged(folder: PartsFolder, parts: int | None) -> ShardIndex:
    """Return the index of the whole set, after checking all parts."""
    complete, begun = folder.numbers()
    if not complete and not begun:
        raise FileNotFoundError(f"{folder.target}: no parts of a set are here; memload.write_part writes them")
    numbers = _all_numbers(folder.target, complete, begun, parts)
    found = [part for part in map(folder.read, numbers) if part is not None]
    _check_missing(folder.target, numbers, [part.number for part in found], begun)
    with_fields = [part for part in found if part.index.fields] or found
    for part in found:
        try:
            check_agreement(part, with_fields[0])
        except ValueError as error:
            raise ValueError(f"{folder.target}: {error}; write the one that is wrong again") from None
    if not sum(part.index.rows for part in found):
        raise ValueError(f"{folder.target}: no part has a row; a set needs at least one")
    fields = with_fields[0].index.fields
    shards = tuple(shard for part in found for shard in part.index.shards)
    try:
        return parse_index(dump_index(ShardIndex(fields, shards)))
    except FormatError as error:
        raise type(error)(f"{folder.target}: the parts make no set: {error}") from error


def _all_numbers(
    target: Path, complete: Sequence[PartNumber], begun: Sequence[PartNumber], parts: int | None
) -> list[PartNumber]:
    """Return the parts that there must be, in order. Raises ValueError if complete ones are of other divisions."""
    there = complete or begun
    stated = {number.parts for number in there}
    if len(stated) > 1:
        other = next(number for number in there if number.parts != there[0].parts)
        raise ValueError(
            f"{target}: {there[0]} and {other} are here; all parts must be of the same number of parts: remove "
            f"{target}, and write them again"
        )
    (said,) = stated
    if parts is not None and said is not None and parts != said:
        raise ValueError(f"{target}: parts={parts}, but the parts were written as {said} parts")
    count = said if said is not None else parts
    if count is None:
        raise ValueError(f"{target}: the parts were written without their number; give it, as parts=16")
    surplus = [number for number in complete if number.part >= count]
    if surplus:
        raise ValueError(f"{target}: parts={count}, but {_listed(surplus)} is complete, too")
    return [PartNumber(part, said) for part in range(count)]


def _check_missing(
    target: Path, wanted: Sequence[PartNumber], found: Sequence[PartNumber], begun: Sequence[PartNumber]
) -> None:
    there = set(found)
    missing = [number for number in wanted if number not in there]
    if missing:
        started = [number for number in missing if number in begun]
        about = f"; {_listed(started)} was begun, and is being written or was interrupted" if started else ""
        raise ValueError(
            f"{target}: {len(missing)} of {len(wanted)} parts are missing: {_listed(missing)}{about}. "
            "Write them, and seal again"
        )


def _listed(numbers: Iterable[PartNumber]) -> str:
    texts = [str(number.part) for number in numbers]
    more = f" and {len(texts) - _MOST_NAMED:,} more" if len(texts) > _MOST_NAMED else ""
    return f"part {', '.join(texts[:_MOST_NAMED])}{more}"


def _described(spec: AnySpec) -> str:
    text = " as text" if getattr(spec, "text", False) else ""
    codec = f" with {spec.codec}" if spec.codec is not None else ""
    return f"{describe(spec.dtype, spec.shape)}{text}{codec}"
