"""memload.join: the rows of two datasets side by side, paired by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from memload.columns.fields import TAG
from memload.columns.key_columns import KeyColumn, comparable, key_of_field, key_of_values
from memload.columns.matching import Matches, matched
from memload.columns.numbers import kind
from memload.dataset.dataset import Dataset
from memload.dataset.groups import GroupedDataset
from memload.dataset.mapped import MappedDataset
from memload.dataset.zipping import side_by_side
from memload.sizes import counted

How = Literal["left", "inner", "exact"]

_SHOWN = 3  # keys in a message


def join(
    left: Dataset, right: Dataset, on: Any = None, *, left_on: Any = None, right_on: Any = None, how: How = "left"
) -> Dataset:
    """Return the rows of `left`, each with the fields of the row of `right` that has the same key; nothing is copied.

    Several rows of `left` may match the same row of `right`, such as trials that showed one image. Each key must occur
    only once in `right`, and by default every row of `left` must have a partner. Key fields are read once, and compared
    as whole numbers or texts.

    Args:
        left: the dataset whose rows, in their order, are the rows of the result.
        right: the dataset in which partners are looked up.
        on: the field, or fields, that are the key on both sides; the key fields of `right` are not in the result.
        left_on, right_on: instead of `on`, the key of each side: a name of a field, an array or tensor with one value
            for each row, or several of these.
        how: "left": a row of `left` without a partner is an error; rows of `right` without a partner are left out.
            "inner": rows of `left` without a partner are left out, too. "exact": each row of either side must have
            exactly one partner.

    Returns:
        A dataset whose rows are dicts with the fields of both, those of `left` first. Windows end where recordings of
        `left` end. Beside graphs, fields become attributes, as in `memload.zip`.

    Raises:
        KeyError: there is no field of such a name; the message lists the existing names.
        ValueError: rows do not match; the message says how many, on which side, and the first keys. Or both sides have
            a field of one name, or a key has values that are neither whole numbers nor texts.
        TypeError: a side is not a dataset of rows, or keys are numbers on one side and texts on the other.

    Example:
        >>> import memload, torch
        >>> trials = memload.from_arrays(beta=torch.rand(4), image=["cat", "dog", "dog", "cat"])
        >>> images = memload.from_arrays(pixels=torch.arange(3), image=["dog", "fox", "cat"])
        >>> joined = memload.join(trials, images, on="image")
        >>> [int(row["pixels"]) for row in joined]
        [2, 0, 0, 2]
    """
    for side, dataset in (("left", left), ("right", right)):
        _check_side(side, dataset)
    if how not in ("left", "inner", "exact"):
        raise ValueError(f'how is "left", "inner" or "exact", got {how!r}')
    pairs = _keys(left, right, on, left_on, right_on)
    columns = [comparable(own, other) for own, other in pairs]
    found = matched([own for own, _ in columns], [other for _, other in columns])
    told = _Mismatches(pairs)
    told.check_right(found)
    if how == "exact":
        told.check_each_once(found)
    if how != "inner":
        told.check_left(found)
    kept, rows = left, found.rows
    if how == "inner" and (rows < 0).any():
        there = np.flatnonzero(rows >= 0)
        if not len(there):
            told.check_left(found)
        kept, rows = left.select(there), rows[there]
    looked_up = right if np.array_equal(rows, np.arange(len(right))) else right.select(rows)
    both = {own.name for own, other in pairs if own.is_field and other.is_field and own.name == other.name}
    fields = {name: field for name, field in looked_up.fields.items() if name not in both}
    return side_by_side({"left": kept, "right": looked_up}, {"left": kept.fields, "right": fields}, kept.borders)


def _check_side(side: str, dataset: object) -> None:
    if isinstance(dataset, Dataset):
        return
    remedy = "memload.open and memload.from_arrays make them"
    if isinstance(dataset, GroupedDataset):
        remedy = f"join each of {', '.join(map(repr, dataset.names))} before memload.concat"
    elif isinstance(dataset, MappedDataset):
        remedy = "join the dataset first, and map the result: memload.join(...).map(fn)"
    raise TypeError(
        f"{side} is {kind(dataset)}; join takes datasets of memload's whose rows are read in place: {remedy}"
    )


def _keys(left: Dataset, right: Dataset, on: Any, left_on: Any, right_on: Any) -> list[tuple[KeyColumn, KeyColumn]]:
    """Return the key columns of both sides in pairs."""
    if (on is None) == (left_on is None and right_on is None) or (left_on is None) != (right_on is None):
        raise TypeError(
            'join takes on=, the fields that are the key on both sides, as in on=("session", "trial"); or left_on= and '
            "right_on="
        )
    mine, theirs = _listed("on" if left_on is None else "left_on", on if left_on is None else left_on), None
    theirs = mine if right_on is None else _listed("right_on", right_on)
    if len(mine) != len(theirs):
        raise ValueError(f"left_on= has {counted(len(mine), 'part')} of the key, right_on= has {len(theirs)}")
    pairs = [
        (_column("left", left, one, other, part), _column("right", right, other, one, part))
        for part, (one, other) in enumerate(zip(mine, theirs, strict=True))
    ]
    if not left.names or not right.names or left.names == right.names:
        return pairs
    tags = [own.is_field and other.is_field and own.name == other.name == TAG for own, other in pairs]
    return [  # the numbers of datasets mean others on the other side
        (own.named(left.names), other.named(right.names)) if tag else (own, other)
        for tag, (own, other) in zip(tags, pairs, strict=True)
    ]


def _listed(option: str, given: Any) -> list[Any]:
    listed = [given] if isinstance(given, str) or hasattr(given, "shape") else given
    parts = list(listed) if isinstance(listed, list | tuple) else []
    named = option == "on"
    if not parts or not all(isinstance(part, str) or (not named and hasattr(part, "shape")) for part in parts):
        allowed = "a name of a field, or several" if named else "a name of a field, an array, or several of these"
        raise TypeError(f"{option}= takes {allowed}, got {given!r:.80}")
    return parts


def _column(side: str, dataset: Dataset, given: Any, partner: Any, part: int) -> KeyColumn:
    if not isinstance(given, str):
        name = partner if isinstance(partner, str) else f"number {part}"
        return key_of_values(side, name, given, len(dataset))
    if given not in dataset.fields:
        raise KeyError(
            f"{side}: no field {given!r} to join on; there are {list(dataset.fields)}. Keys of files come by "
            "row_field= and a pattern such as betas{session:d}.npy; left_on= and right_on= take other names"
        )
    return key_of_field(side, given, dataset.fields[given])


class _Mismatches:
    """Raises the errors for keys that do not match.

    Args:
        pairs: the key columns of both sides in pairs.
    """

    def __init__(self, pairs: Sequence[tuple[KeyColumn, KeyColumn]]) -> None:
        self._left, self._right = [own for own, _ in pairs], [other for _, other in pairs]

    def check_right(self, found: Matches) -> None:
        """Raise ValueError if a key occurs twice on the right."""
        if not len(found.repeated):
            return
        codes = found.codes[found.repeated]
        distinct, firsts = np.unique(codes, return_index=True)
        shown = [found.repeated[codes == codes[first]] for first in np.sort(firsts)[:_SHOWN]]
        listed = "; ".join(f"{self._key(self._right, rows[0])} in rows {_few(rows)}" for rows in shown)
        raise ValueError(
            f"right: {counted(len(distinct), 'key is', 'keys are')} in several rows ({len(found.repeated):,} of "
            f"{len(found.codes):,} "
            f"rows): {listed}. Each row of the left looks up one row: add what tells them apart to the key, leave "
            "repeats out by select(), or swap left and right if it is the left that is looked up"
        )

    def check_left(self, found: Matches) -> None:
        """Raise ValueError if a row of the left has no partner."""
        missing = np.flatnonzero(found.rows < 0)
        if not len(missing):
            return
        total, used = len(found.rows), len(np.unique(found.rows[found.rows >= 0]))
        listed = ", ".join(f"{self._key(self._left, row)} in row {row}" for row in missing[:_SHOWN])
        extents = ", ".join(
            f"{own.name} is {own.extent} on the left and {other.extent} on the right"
            for own, other in zip(self._left, self._right, strict=True)
        )
        raise ValueError(
            f"left: {len(missing):,} of {total:,} rows have no partner on the right, the first: {listed}; "
            f"{used:,} of the {len(found.codes):,} rows on the right are looked up; {extents}. "
            'how="inner" leaves rows without a partner out'
        )

    def check_each_once(self, found: Matches) -> None:
        """Raise ValueError if a row of the right has several partners, or none."""
        self.check_left(found)
        times = np.bincount(found.rows, minlength=len(found.codes))
        for rows, what in (
            (np.flatnonzero(times > 1), "several times"),
            (np.flatnonzero(times == 0), "by no row of the left"),
        ):
            if len(rows):
                listed = ", ".join(f"{self._key(self._right, row)} in row {row}" for row in rows[:_SHOWN])
                raise ValueError(
                    f"right: {len(rows):,} of {len(times):,} rows are looked up {what}, the first: {listed}; "
                    'how="exact" pairs each row of either side once, how="left" allows this'
                )

    def _key(self, columns: Sequence[KeyColumn], row: int) -> str:
        return f"({', '.join(f'{column.name}={column.value(row)!r:.60}' for column in columns)})"


def _few(rows: NDArray[np.int64]) -> str:
    return ", ".join(map(str, rows[:_SHOWN].tolist())) + (", ..." if len(rows) > _SHOWN else "")
