"""Check the row numbers that users give; the messages name the wrong one."""

from __future__ import annotations

import itertools
import math
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from memload.sizes import counted


def kind(value: object) -> str:
    """Return the type of `value` for messages: "a list"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number of Python's or numpy's types; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def row_number(index: SupportsIndex, length: int) -> int:
    """Return the row in [0, length) that `index` means; -1 is the last.

    Raises:
        TypeError: `index` is no integer.
        IndexError: there is no such row.
    """
    try:
        row = operator.index(index)
    except TypeError:
        raise TypeError(_not_an_index(index)) from None
    if not -length <= row < length:
        raise IndexError(f"row {row} is not one of the {length:,} rows")
    return row % length


_COMPARED = (
    "; to choose rows by the values of a field, read the field first, as in "
    'ds.select(ds.fields["session"].gather(range(len(ds))) == 2)'
)


def row_numbers(rows: Any, length: int) -> NDArray[np.int64]:
    """Return rows, given as integers or as one bool per row, as int64 (n,), each in [0, length).

    Raises:
        TypeError: they are not integers.
        IndexError: a row does not exist; negative numbers are not accepted.
    """
    wanted = np.asarray(rows)
    if wanted.ndim == 0:
        remedy = _COMPARED if wanted.dtype == np.bool_ else ""
        raise TypeError(f"expected a sequence of row numbers, such as [3] or range(0, 3), got {kind(rows)}{remedy}")
    if wanted.ndim != 1:
        raise TypeError(f"expected row numbers in one dimension, got shape {wanted.shape}")
    if wanted.dtype == np.bool_:
        if len(wanted) != length:
            raise IndexError(f"one bool for each of the {length:,} rows is expected, got {len(wanted):,}")
        return np.flatnonzero(wanted)
    if not len(wanted):
        return np.empty(0, dtype=np.int64)
    if wanted.dtype.kind not in "iu":
        remedy = "; convert whole numbers by .astype(numpy.int64)" if wanted.dtype.kind == "f" else ""
        raise TypeError(f"row numbers must be integers, got dtype {wanted.dtype}{remedy}")
    bad = (wanted < 0) | (wanted >= length)
    if bad.any():
        position = int(bad.argmax())
        raise IndexError(
            f"row {wanted[position]} at position {position} is not one of the {length:,} rows, which count from 0"
            + ("; negative numbers do not count from the end here" if wanted[position] < 0 else "")
        )
    return np.ascontiguousarray(wanted, dtype=np.int64)


def as_indices(rows: Any) -> NDArray[np.int64]:
    """Return row indices in any integer sequence, array or tensor as int64 of shape ``(n,)``.

    Raises:
        TypeError: the indices are not integers. Bools and uint8 tensors are refused, because torch takes them as masks.
        ValueError: an index does not fit into 64 bits.
    """
    array = np.asarray(rows)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"row indices must be a flat sequence of integers, got {array.dtype} of shape {array.shape}")
    if isinstance(rows, list | tuple) and bool in set(map(type, rows)):  # numpy converts bools among integers
        raise TypeError("row indices must be integers, got a bool among them")
    if array.dtype == np.uint8 and (isinstance(rows, torch.Tensor) or torch.Tensor in set(map(type, rows))):
        raise TypeError("row indices must be integers; torch takes tensors of uint8 for masks: give them as int64")
    if array.dtype == np.uint64 and array.max() >= 1 << 63:
        raise ValueError(f"the row index {array.max()} does not fit into 64 bits with a sign")
    return array.astype(np.int64, copy=False)


def from_end(rows: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Replace indices that count from the end (-1 is the last of ``n`` rows); all others stay as they are."""
    return np.where((rows < 0) & (rows >= -n), rows + n, rows) if rows.size and rows.min() < 0 else rows


def random_parts(
    length: int, fraction: float | Sequence[float], seed: int | None, keys: Any = None, what: str = "row"
) -> list[NDArray[np.int64]]:
    """Return shuffled parts of range(length) without a common row.

    Args:
        length: the rows.
        fraction: the share of the first of two parts, which gets round(fraction * length) rows, or the shares of all.
        seed: of the permutation.
        keys: one for each row, or None; rows with equal keys stay together, so the shares are those of the different
            keys, and the rows of each part rise.
        what: what is split, for messages.

    Raises:
        ValueError: a part would be empty, shares do not sum to 1, or keys are not one for each row.
        TypeError: `fraction` has no numbers, `seed` is no integer, or keys cannot be compared.
    """
    if keys is not None:
        different, key_of_row = _different(keys, length)
        part_of_key = np.empty(different, np.int64)
        parts = random_parts(different, fraction, seed, what="key")
        for number, part in enumerate(parts):
            part_of_key[part] = number
        return [np.flatnonzero(part_of_key[key_of_row] == number) for number in range(len(parts))]
    shares = _shares(fraction, length, what)
    if seed is None:
        raise TypeError(
            f"seed must be an integer, as in ds.split({fraction}, seed=0), and none was given: the same seed gives the "
            "same parts in every run"
        )
    if not isinstance(seed, numbers.Integral) or not -(2**63) <= seed < 2**64:
        raise TypeError(f"seed must be an integer of 64 bits, such as 0, got {seed!r:.80}")
    borders = [round(math.fsum(shares[:part]) * length) for part in range(1, len(shares))]
    sizes = np.diff([0, *borders, length])
    if sizes.min() <= 0:
        cut = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
        raise ValueError(f"split({fraction}) cuts {counted(length, what)} into {cut}: a part is empty")
    generator = torch.Generator().manual_seed(int(seed))
    order: NDArray[np.int64] = torch.randperm(length, generator=generator, device="cpu").numpy()
    return np.split(order, borders)


def _shares(fraction: Any, length: int, what: str) -> list[float]:
    """Return the shares of all parts, the last one as what the others leave."""
    if isinstance(fraction, numbers.Real):
        first = float(fraction)
        if not 0 < first < 1:
            share = f"; {fraction:,} of {length:,} {what}s are {fraction} / {length}" if 1 < first < length else ""
            raise ValueError(f"fraction must lie between 0 and 1, got {fraction}{share}")
        return [first, 1 - first]
    try:
        shares = [float(share) for share in fraction]
    except (TypeError, ValueError):
        raise TypeError(
            "fraction must be one number, such as 0.8 for the first part, or several, such as [0.8, 0.1, 0.1], got "
            f"{kind(fraction)}"
        ) from None
    if len(shares) < 2 or not all(share > 0 for share in shares) or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        counts = f"; counts are fractions as in [{shares[0]:g} / {length}, ...]" if sum(shares) == length else ""
        raise ValueError(
            f"fractions must be two or more that sum to 1, such as [0.8, 0.1, 0.1], got {fraction}{counts}"
        )
    return shares


def _different(keys: Any, length: int) -> tuple[int, NDArray[np.int64]]:
    """Return how many different keys there are, and the number of each row's among them, sorted."""
    if isinstance(keys, str):
        raise TypeError(f"by={keys!r}: the datasets of groups have fields of their own; give one key for each row")
    try:
        array = array_of(keys)
    except ValueError as error:  # sequences of several lengths
        raise ValueError(f"by has sequences among its keys, such as tuples: join each to one text ({error})") from None
    if array.shape != (length,):
        raise ValueError(
            f"by has the shape {array.shape}, expected one key for each of {counted(length, 'row')}: ({length},), or "
            "the name of a field"
        )
    try:
        if array.dtype == object:
            return _different_objects(array)
        found, numbers = np.unique(array, return_inverse=True)
    except TypeError as error:  # None beside texts, say
        raise TypeError(f"by has keys that cannot be compared: {error}; fill what is missing") from None
    return len(found), numbers


def _different_objects(keys: NDArray[np.object_]) -> tuple[int, NDArray[np.int64]]:
    """Work as `_different`, by hashes: with NaN among them, or sets, objects that are equal may be sorted apart."""
    same = [math.nan if isinstance(key, float) and math.isnan(key) else key for key in keys.tolist()]
    number = {key: place for place, key in enumerate(sorted(dict.fromkeys(same)))}
    return len(number), np.fromiter((number[key] for key in same), np.int64, len(same))


def array_of(values: Any) -> NDArray[Any]:
    """Return values in any form, a tensor of any device and dtype too, as an array of numpy's."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        if values.is_floating_point() and values.dtype not in (torch.float64, torch.float16):
            values = values.float()  # exact, and numpy has no bfloat16
    return np.asarray(values)


def rows_of_each(tags: NDArray[np.int64], names: Sequence[str]) -> dict[str, range | NDArray[np.int64]]:
    """Return the rows of each name, rising, as a range where possible; row i belongs to `names[tags[i]]`."""
    if (tags[1:] >= tags[:-1]).all():
        bounds = np.searchsorted(tags, np.arange(len(names) + 1)).tolist()
        return {name: range(bounds[k], bounds[k + 1]) for k, name in enumerate(names)}
    order = np.argsort(tags, kind="stable")
    parts = np.split(order, np.searchsorted(tags[order], np.arange(1, len(names))))
    return dict(zip(names, parts, strict=True))


def by_first_appearance(tags: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the positions of each tag, rising, with tags in order of appearance; `tags` must not be empty."""
    if tags.min() >= 0 and tags.max() < 1 << 15:
        tags = tags.astype(np.int16)  # sorted by radix, five times as fast
    order = np.argsort(tags, kind="stable")
    ordered = tags[order]
    ends = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(tags)]
    groups = [order[begin:end] for begin, end in itertools.pairwise(ends)]
    return sorted(groups, key=lambda group: int(group[0]))


def _not_an_index(index: Any) -> str:
    if isinstance(index, str):
        return f"a dataset is read row by row, got {index!r}; ds.only({index!r}) is the dataset of that field"
    several = "select(range(start, stop))" if isinstance(index, slice) else "select([...])"
    return f"a dataset is read row by row, by an integer, got {kind(index)}; ds.{several} takes several rows at once"


def begins_of(runs: Iterable[tuple[int, int, int]]) -> NDArray[np.int64]:
    """Return the frames at which windows begin, in order; runs are (first frame, windows, frames from one to the next).

    Example:
        >>> begins_of([(3, 2, 1), (10, 3, 4)])
        array([ 3,  4, 10, 14, 18])
    """
    parts = [first + hop * np.arange(rows, dtype=np.int64) for first, rows, hop in runs]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
