"""Make one set of parts: check them against one another, and give the set its index. No byte of a shard moves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from memload.columns.fields import describe
from memload.errors import FormatError
from memload.formats.shards.index import AnySpec, ShardIndex, dump_index, parse_index
from memload.formats.shards.part_terms import CompletePart, PartNumber, Parts
from memload.sizes import counted

_MOST_NAMED = 12
_MOST_SHOWN = 80  # characters of an option


def seal_parts(folder: Parts, parts: int | None) -> None:
    """Seal the parts of a set; one that is sealed already is only cleared of what no index lists.

    Args:
        folder: the parts.
        parts: how many parts there are; None takes what the writers said.

    Raises:
        FileNotFoundError: there are no parts.
        ValueError: parts are missing or disagree, or none has a row; or the set was sealed of another number of parts.
        ShardFormatError: a shard or the index of a part is missing or damaged.
    """
    there = folder.there()
    if there is None:
        folder.clear(_sealed(folder, parts))
        return
    try:
        index = _merged(folder, parts, *there)  # what is missing is told while writers are at work
    except (OSError, ValueError):
        if not folder.is_sealed:
            raise
        folder.clear(_sealed(folder, parts))  # sealed by another process meanwhile, which removed the parts
        return
    claimed = folder.claim()
    try:
        if claimed:
            index = _merged(folder, parts, *folder.numbers())  # of what completed meanwhile
        folder.check(index)
        folder.publish(dump_index(index))
    except BaseException as error:
        may_be_of_others = isinstance(error, OSError | ValueError)  # that have sealed, or released, meanwhile
        if may_be_of_others and folder.is_sealed:
            index = _sealed(folder, parts)
        elif not _is_released(folder, claimed, error) or not may_be_of_others:
            raise
        else:
            seal_parts(folder, parts)
            return
    folder.clear(index)


def _is_released(folder: Parts, claimed: bool, error: BaseException) -> bool:
    """Release what was claimed; return whether another process did so while this one relied on it."""
    return (claimed and isinstance(error, FileNotFoundError)) or not folder.release()


def check_agreement(part: CompletePart, other: CompletePart) -> None:
    """Raise ValueError if two parts differ in fields, dtypes, shapes, codecs or options."""
    for option in part.options.keys() & other.options.keys():
        if part.options[option] != other.options[option]:
            mine, theirs = (_short(one.options[option]) for one in (part, other))
            raise ValueError(
                f"{part.number} was written with another {option} than {other.number}: {mine}, not {theirs}"
            )
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


def _sealed(folder: Parts, parts: int | None) -> ShardIndex:
    """Return the index of the sealed set. Raises ValueError if that says another number of parts."""
    index = folder.index()
    if parts is not None and index.parts not in (None, parts):
        raise ValueError(
            f"{folder.target}: parts={parts}, but a set is sealed here already, of parts={index.parts}; seal without "
            "parts= to keep that one, or write the parts to another place"
        )
    return index


def _merged(
    folder: Parts, parts: int | None, complete: Sequence[PartNumber], begun: Sequence[PartNumber]
) -> ShardIndex:
    """Return the index of the whole set, after checking all parts."""
    if not complete and not begun:
        raise FileNotFoundError(
            f"{folder.target}: no parts of a set are here; `memload write --part`, or memload.write_part, writes them"
        )
    count = _count(folder.target, complete, begun, parts)
    _check_missing(folder.target, count, complete, begun)
    found = [part for part in folder.read_all(complete) if part is not None]
    _check_missing(folder.target, count, [part.number for part in found], begun)
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
        return parse_index(dump_index(ShardIndex(fields, shards, inner=False, parts=count)))
    except FormatError as error:
        raise type(error)(f"{folder.target}: the parts make no set: {error}") from error


def _count(target: Any, complete: Sequence[PartNumber], begun: Sequence[PartNumber], parts: int | None) -> int:
    """Return how many parts there must be. Raises ValueError if complete ones are of other divisions."""
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
        raise ValueError(f"{target}: parts={parts}, but the parts were written as {counted(said, 'part')}")
    count = said if said is not None else parts
    if count is None:
        raise ValueError(
            f"{target}: the parts were written without their number, and the last one that is here is {there[-1]}; "
            f"give their number: parts={there[-1].part + 1}, if that is the last one"
        )
    surplus = [number for number in complete if number.part >= count]
    if surplus:
        texts = _listed((number.part for number in surplus), len(surplus))
        raise ValueError(f"{target}: parts={count}, but {texts} is complete, too")
    return count


def _check_missing(target: Any, count: int, found: Collection[PartNumber], begun: Sequence[PartNumber]) -> None:
    if len(found) < count:
        there = {number.part for number in found}
        missing = _listed((part for part in range(count) if part not in there), count - len(there))
        started = sorted({number.part for number in begun if number.part < count} - there)
        about = f"; {_listed(started, len(started))} was begun, and is being written or was interrupted"
        raise ValueError(
            f"{target}: {count - len(there)} of {count} parts are missing: {missing}{about if started else ''}. "
            "Write them, and seal again"
        )


def _listed(parts: Iterable[int], count: int) -> str:
    """Return the first of `count` parts as text; of a huge count only these are taken."""
    more = f" and {count - _MOST_NAMED:,} more" if count > _MOST_NAMED else ""
    return f"part {', '.join(map(str, islice(parts, _MOST_NAMED)))}{more}"


def _short(value: str) -> str:
    return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."


def _described(spec: AnySpec) -> str:
    text = " as text" if getattr(spec, "text", False) else ""
    codec = f" with {spec.codec}" if spec.codec is not None else ""
    return f"{describe(spec.dtype, spec.shape)}{text}{codec}"
