"""The form of a dataset, which is enough to plan for it before it exists."""

from __future__ import annotations

import math
import mmap
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from memload._core import Column, Ragged, Storage
from memload.columns.fields import Field, check_name, check_size, row_nbytes
from memload.columns.numbers import is_whole, kind
from memload.columns.ragged_fields import RaggedField
from memload.dataset.dataset import Dataset
from memload.dataset.grouped_tiers import of_fields, of_set
from memload.dtypes import as_torch_dtype
from memload.engine.tiers.placing import as_tier
from memload.engine.tiers.tier import Tier

_NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE: the kernel reserves no memory for the addresses


@dataclass(frozen=True)
class DatasetShape:
    """The number of rows of a dataset and the form of its fields, which is all that `memload.plan` needs.

    Args:
        rows: the number of rows, at least 1.
        fields: the dtype and shape of one row by name, as ``("uint8", (425, 425, 3))``. If rows differ in length, one
            side is None, as in ``("float32", (None, 16))``.
        lengths: the mean and the greatest length of each field whose rows differ in length, as ``{"x": (24, 80)}``.

    Raises:
        ValueError: no rows, no fields, a shape that no field can have, or lengths that are missing or inconsistent.
        TypeError: a dtype is invalid, or `fields` is no mapping.

    Example:
        >>> import memload
        >>> stimuli = memload.DatasetShape(417_000, {"stim": ("uint8", (425, 425, 3))})
        >>> stimuli.nbytes
        225961875000
        >>> stimuli.zeros()[0]["stim"].shape
        torch.Size([425, 425, 3])
    """

    rows: int
    fields: Mapping[str, tuple[Any, tuple[int | None, ...]]]
    lengths: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    _placed: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)
    """The arguments of `with_tier`; empty without it."""

    def __post_init__(self) -> None:
        if not is_whole(self.rows) or self.rows < 1:
            raise ValueError(f"rows is the number of rows, at least 1; got {self.rows!r}")
        object.__setattr__(self, "rows", int(self.rows))
        if not self.fields:
            raise ValueError('a dataset needs at least one field, such as {"stim": ("uint8", (425, 425, 3))}')
        fields = {}
        for name, given in _named(self.fields, "fields", '{"stim": ("uint8", (425, 425, 3))}'):
            check_name(name)
            dtype, shape = _pair(given, f'field {name!r}: dtype and shape, such as ("uint8", (425, 425, 3))')
            fields[name] = (as_torch_dtype(dtype), _checked(name, (shape,) if is_whole(shape) else shape))
            check_size(fields[name][0], (side or 1 for side in fields[name][1]), self.rows)
        object.__setattr__(self, "fields", MappingProxyType(fields))
        object.__setattr__(self, "lengths", MappingProxyType(self._checked_lengths()))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, without the offsets of rows that differ in length."""
        return sum(map(self._field_bytes, self.fields))

    def with_tier(
        self, tier: Tier | str, *, ram_dtype: Mapping[str, Any] | None = None, cache_bytes: int | str | None = None
    ) -> DatasetShape:
        """Return this shape with its rows planned on a tier, as `Dataset.with_tier` places those of a dataset.

        `memload.plan` takes these arguments for this shape where it is not given others.

        Raises:
            ValueError: there is no such tier.

        Example:
            >>> import memload
            >>> shape = memload.DatasetShape(1000, {"x": ("uint8", (500_000,))}).with_tier("ram")
            >>> memload.plan(shape, 10, ram="8GB", disk="1TB").ram.of("rows in RAM")
            500000000
        """
        made = replace(self)
        placed = {"tier": as_tier(tier), "ram_dtype": ram_dtype, "cache_bytes": cache_bytes}
        object.__setattr__(made, "_placed", MappingProxyType(placed))
        return made

    def __memload_concat__(self, members: Mapping[Any, Any], named: bool) -> DatasetShape | JoinedShapes:
        """Return the shape of joined data sets, for `memload.concat`."""
        if named:
            return JoinedShapes(members)
        others = list(members.values())
        for k, other in enumerate(others):
            if not isinstance(other, DatasetShape) or other.fields != self.fields:
                raise ValueError(
                    f"data set {k} is {other!r:.120}, which cannot follow {self!r:.120}: without names, concat joins "
                    "shapes with the same fields"
                )
        rows = sum(other.rows for other in others)
        lengths = {
            name: (
                sum(other.lengths[name][0] * other.rows for other in others) / rows,
                max(other.lengths[name][1] for other in others),
            )
            for name in self.lengths
        }
        return DatasetShape(rows, self.fields, lengths)

    def zeros(self) -> Dataset:
        """Return a dataset of this shape whose values are zeros, in the memory of one row (and of row offsets).

        Lengths rise with the row's number, from nearly nothing to the greatest, so that they have the stated mean.
        """
        return Dataset(
            {
                name: self._ragged(name) if None in shape else zero_field(name, dtype, shape, self.rows)
                for name, (dtype, shape) in self.fields.items()
            }
        )

    def _checked_lengths(self) -> dict[str, tuple[float, int]]:
        lengths = dict(_named(self.lengths, "lengths", '{"x": (24, 80)}'))
        ragged = {name for name, (_, shape) in self.fields.items() if None in shape}
        if ragged != set(lengths):
            raise ValueError(
                f"lengths= gives mean and greatest length of the fields whose rows differ, which are "
                f"{sorted(ragged) or 'none'}; got {sorted(lengths) or 'none'}"
            )
        found = {}
        for name, given in lengths.items():
            mean, greatest = _pair(given, f"field {name!r}: the mean and the greatest length, such as (24, 80)")
            numeric = isinstance(mean, numbers.Real) and isinstance(greatest, numbers.Integral)
            if not (numeric and 0 < float(mean) <= int(greatest)):
                raise ValueError(f"field {name!r}: a mean length from 0 to the greatest, got {(mean, greatest)}")
            found[name] = (float(mean), int(greatest))
        return found

    def _field_bytes(self, name: str) -> int:
        dtype, shape = self.fields[name]
        sides = (self.lengths[name][0] if side is None else side for side in shape)
        return int(self.rows * math.prod(sides) * dtype.itemsize)

    def _ragged(self, name: str) -> RaggedField:
        dtype: torch.dtype = self.fields[name][0]
        shape: tuple[Any, ...] = self.fields[name][1]
        axis = shape.index(None)
        planes, item = math.prod(shape[:axis]), row_nbytes(dtype, shape[axis + 1 :])
        ends = np.zeros(self.rows + 1, dtype=np.int64)
        np.cumsum(self._lengths(name), out=ends[1:])
        plane = int(ends[-1]) * item
        values = np.frombuffer(mmap.mmap(-1, max(1, planes * plane), mmap.MAP_PRIVATE | _NO_RESERVE), dtype=np.uint8)
        offsets = Storage.borrow(ends, ends.ctypes.data, ends.nbytes, f"the offsets of {name!r}")
        items = Storage.borrow(values, values.ctypes.data, values.nbytes, f"zeros for {name!r}")
        column = Ragged(item, planes, [(offsets, 0, items, 0, self.rows, int(ends[-1]), plane)])
        return RaggedField(dtype, shape, column)

    def _lengths(self, name: str) -> Any:
        """Return the length of each row: greatest * t ** (greatest / mean - 1), whose mean over t in 0..1 is `mean`."""
        mean, greatest = self.lengths[name]
        t = (np.arange(self.rows) + 1) / self.rows
        return np.rint(greatest * t ** (greatest / mean - 1)).astype(np.int64)


@dataclass(frozen=True)
class JoinedShapes:
    """Data sets joined by name of which some do not exist yet: what ``memload.concat`` makes of `DatasetShape`s.

    `memload.plan` plans one loader whose batches mix them, as for a `GroupedDataset`.

    Args:
        members: the data sets by name: `DatasetShape`s and datasets of memload.

    Raises:
        TypeError: a member is neither.

    Example:
        >>> import memload
        >>> mouse = memload.DatasetShape(400, {"stim": ("uint8", (36, 64))})
        >>> monkey = memload.DatasetShape(300, {"stim": ("uint8", (80, 80))})
        >>> memload.concat({"mouse": mouse, "monkey": monkey}).names
        ('mouse', 'monkey')
    """

    members: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, member in self.members.items():
            check_name(name)
            if not isinstance(member, DatasetShape | Dataset):
                raise TypeError(f"dataset {name!r} is {kind(member)}; expected a DatasetShape or a memload dataset")
        object.__setattr__(self, "members", MappingProxyType(dict(self.members)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the data sets, by ``dataset_idx``."""
        return tuple(self.members)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows of all data sets."""
        return sum(int(member.nbytes) for member in self.members.values())

    def with_tier(self, tier: Any, *, ram_dtype: Any = None, cache_bytes: Any = None) -> JoinedShapes:
        """Return these data sets planned on tiers, as `GroupedDataset.with_tier` places datasets.

        Args:
            tier: the tier of all, or tiers by name. "auto" is chosen for each by `memload.plan`, under one limit.
            ram_dtype: with "ram", what becomes of fields, in every data set that has them; or such mappings by name.
            cache_bytes: with "hybrid", the budget of a cache for each; or budgets by name.

        Raises:
            KeyError: there is no data set of a name.
            ValueError, TypeError: as ``with_tier`` of a member.

        Example:
            >>> import memload
            >>> shape = memload.DatasetShape(1000, {"x": ("uint8", (500_000,))})
            >>> both = memload.concat({"a": shape, "b": shape}).with_tier({"a": "ram"})
            >>> memload.plan(both, 10, collate_fn=memload.group_collate, ram="8GB").ram.of("rows in RAM")
            500000000
        """
        fields = {name: list(member.fields) for name, member in self.members.items()}
        made = dict(self.members)
        for name, member in self.members.items():
            if (wanted := of_set(tier, name, fields, "tier")) is not None:
                casts = of_fields(ram_dtype, name, fields, "ram_dtype")
                size = of_set(cache_bytes, name, fields, "cache_bytes")
                made[name] = member.with_tier(wanted, ram_dtype=casts, cache_bytes=size)
        return JoinedShapes(made)

    def __len__(self) -> int:
        return sum(one.rows if isinstance(one, DatasetShape) else len(one) for one in self.members.values())


def zero_field(name: str, dtype: torch.dtype, shape: tuple[Any, ...], rows: int) -> Field:
    """Return a field whose rows are all the same row of zeros."""
    nbytes = row_nbytes(dtype, shape)
    row = np.zeros(max(1, nbytes), dtype=np.uint8)
    storage = Storage.borrow(row, row.ctypes.data, row.nbytes, f"a row of zeros for {name!r}")
    return Field(dtype, shape, Column(nbytes, [(storage, 0, rows, 0)]))


def _named(given: Any, what: str, example: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a mapping by name, such as {example}; got {type(given).__name__}")
    return given.items()


def _pair(given: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(f"{what}; got {given!r:.80}")
    return given[0], given[1]


def _checked(name: str, shape: Any) -> tuple[int | None, ...]:
    sides = [side for side in shape if side is not None] if isinstance(shape, Sequence) else [shape]
    counts = all(isinstance(side, numbers.Integral) and not isinstance(side, bool) and int(side) >= 0 for side in sides)
    if not isinstance(shape, Sequence) or not counts or len(shape) - len(sides) > 1 or None in shape[2:]:
        raise ValueError(
            f"field {name!r}: the shape of a row is of whole numbers, such as (425, 425, 3), one of the first two None "
            f"where rows differ in length; got {shape!r:.80}"
        )
    return tuple(None if side is None else int(side) for side in shape)
