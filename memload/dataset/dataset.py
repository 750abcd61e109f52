"""`Dataset`: named fields of equal length, and index arithmetic on their rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from memload.casts.rule import Cast
from memload.columns.borders import NONE, Borders, of_joined, of_selected
from memload.columns.fields import (
    TAG,
    UNNAMED,
    Field,
    check_equal_lengths,
    check_name,
    check_same_fields,
    not_a_dataset,
    renamed,
)
from memload.columns.foreign_names import SaysInstead, instead_of, says_immutable
from memload.columns.html_tables import fields_table
from memload.columns.numbers import as_indices, from_end, kind, random_parts, row_number, row_numbers, rows_of_each
from memload.columns.ragged_fields import HasRaggedFields, forms_of_fields
from memload.columns.ragged_samples import Forms, sample_of
from memload.columns.windows import Windowed
from memload.dataset.mapped import MappedDataset
from memload.dataset.tiered import Tiered, origin_words, tier_words
from memload.engine.batch_fetcher import BatchFetcher
from memload.engine.gather_spec import GatherSpec, Key
from memload.engine.layout import flat
from memload.engine.mutation_guards import guarded_tensors
from memload.engine.readers import answers_by
from memload.sizes import counted, format_size
from memload.stats import LoaderStats

if TYPE_CHECKING:
    from memload.columns.pickled_columns import PackedColumns

Layout = Literal["dict", "tuple", "only"]

JOINED_UNLIKE = (
    'memload.concat({"s1": one, "s2": other}) joins datasets that differ, whose batches '
    "FastLoader(..., collate_fn=memload.group_collate) makes"
)
"""What to do with datasets that cannot be one, for messages."""


@says_immutable
@answers_by("_arranged")
@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Tiered, Windowed, HasRaggedFields, SaysInstead, torch.utils.data.Dataset[Any]):
    """A torch dataset of named fields that reads rows in place and is cheap to reorder, split and join.

    `memload.open` and `memload.from_arrays` make datasets. A dataset is immutable: `select`, `split`, `concat` and
    `memload.zip` return new datasets that share the bytes. `ds[i]` is a dict of freshly read tensors, a tuple after
    `as_tuple`, or one tensor after `only`.

    Args:
        fields: the fields in order, all of one length.
        layout: the type of `ds[i]`: "dict", "tuple", or "only" (the tensor of a single field).
        names: the names of the datasets that `memload.concat({"name": dataset})` joined, in the order of
            `dataset_idx`; empty for other datasets.
        borders: the first row of each joined dataset but the first; a window never crosses one.

    Raises:
        ValueError: no fields, fields of different length, or a name that cannot be stored.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(stim=torch.arange(12).reshape(4, 3), robs=torch.zeros(4))
        >>> len(ds), ds[1]["stim"]
        (4, tensor([3, 4, 5]))
    """

    fields: Mapping[str, Field]
    layout: Layout = "dict"
    names: tuple[str, ...] = ()
    borders: Borders = dataclasses.field(default_factory=lambda: NONE)

    _of_graphs: ClassVar[bool] = False
    """Whether samples are graphs, as PyTorch Geometric has them."""

    _instead_of = instead_of

    _collate_fn: ClassVar[Callable[..., Any] | None] = None
    """The collate function that these samples need; None: torch's default_collate makes their batches."""

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("a dataset needs at least one field")
        for name in self.fields:
            check_name(name)
        if self.layout not in ("dict", "tuple", "only"):
            raise ValueError(f'layout must be "dict", "tuple" or "only", got {self.layout!r}')
        if self.layout == "only" and len(self.fields) != 1:
            raise ValueError(f'layout "only" is for a single field, got {list(self.fields)}')
        if self.names and (self.layout != "dict" or TAG not in self.fields):
            raise ValueError(f"names= is for datasets whose rows are dicts with a field {TAG!r}")
        check_equal_lengths({name: field.rows for name, field in self.fields.items()}, "the fields")
        if any(field.resident for field in self.fields.values()):
            from memload.device.resident import resident_device

            resident_device(self.fields)  # raises unless all fields are on one device
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = np.array([row_number(index, len(self))], dtype=np.int64)
        sample = self._arranged(lambda field: field.sample(row))
        if self.names:
            sample[TAG] = int(sample[TAG])
        return sample_of(sample, self._forms) if self.layout != "only" else sample

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of these rows for a stock DataLoader; memload's threads gather them as one batch.

        `torch.utils.data.default_collate` turns the list into the gathered batch without a copy. Any other collate
        function sees the list `[ds[i] for i in indices]`.

        Args:
            indices: integers; negative ones count from the end.

        Raises:
            IndexError, TypeError: as `ds[i]` does.
        """
        if type(self).__getitem__ is not Dataset.__getitem__:
            return [self[index] for index in indices]
        rows = self._rows_at(indices)
        if self.layout == "only" and next(iter(self.fields.values())).kind == "text":
            return list(self._fetcher.gather(rows)) if len(rows) else []
        return self._fetcher.rows(rows)

    @property
    def nbytes(self) -> int:
        """Bytes that reading all rows of all fields takes; a row that is selected twice counts twice."""
        return sum(field.nbytes for field in self.fields.values())

    @property
    def casts(self) -> dict[str, Cast]:
        """Casts to float32 of the fields whose files state a scale for their values, such as NIfTI's.

        ``FastLoader(ds, cast=ds.casts)`` gives what is meant, and no cast what is stored; other fields have none here.
        """
        meant = {name: field.meant for name, field in self.fields.items() if field.meant is not None}
        return {name: Cast(torch.float32, scale=scale, offset=offset) for name, (scale, offset) in meant.items()}

    def stats(self) -> LoaderStats:
        """Return counters of the batches that stock DataLoaders took from this dataset, in this process.

        Lightning, accelerate, HF Trainer, Ray Train and PyG may build a stock DataLoader around the dataset; the
        counters show whether memload's threads gathered its batches, and how fast. `wall_seconds` is the time inside
        these gathers; the loop waits for all of it. Each worker process has counters of its own.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(x=torch.arange(6))
            >>> batches = list(torch.utils.data.DataLoader(ds, batch_size=2))
            >>> ds.stats().batches
            3
        """
        return self._fetcher.stats()

    def select(self, rows: Any) -> Dataset:
        """Return the dataset of these rows, in this order; repeats are allowed, and nothing is copied.

        Args:
            rows: integers in any sequence, array, CPU tensor or range; or one bool per row, True for rows to keep.
                Negative numbers are refused, since -1 in a table of trials mostly marks a missing value.

        Raises:
            IndexError: a row number is out of range; the message names the first such position and its value.
            TypeError: `rows` are not integers.

        Example:
            >>> import memload, torch
            >>> memload.from_arrays(x=torch.arange(5)).only("x").select([4, 0, 4])[2]
            tensor(4)
        """
        numbers = row_numbers(rows, len(self))
        fields = {name: field.select(numbers) for name, field in self.fields.items()}
        return replace(self, fields=fields, borders=of_selected(self.borders, numbers))

    def split(
        self, fraction: float | Sequence[float], seed: int | None = None, *, by: Any = None
    ) -> tuple[Dataset, ...]:
        """Split the rows at random into datasets without a common row.

        Args:
            fraction: the share of the rows, between 0 and 1, that goes into the first of two parts, or the shares of
                all parts, which sum to 1; with `by`, shares of the different keys. Shares are rounded to whole rows.
            seed: must be given; the same seed gives the same parts, which are slices of torch.randperm.
            by: the name of a field of one number or text a row, which is read as a whole, or one key for each row, such
                as the patient or session. Rows with equal keys go into the same part, in rising order.

        Raises:
            KeyError: there is no field of this name.
            ValueError: a part would be empty, shares do not sum to 1, or `by` gives no key for each row.
            TypeError: `fraction` has no numbers, `seed` is not an integer of 64 bits, or keys cannot be compared.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(x=torch.arange(10), patient=["a", "a", "b", "b", "b", "c", "c", "d", "e", "e"])
            >>> [len(part) for part in ds.split([0.6, 0.2, 0.2], seed=1)]
            [6, 2, 2]
            >>> train, valid = ds.split(0.8, seed=1, by="patient")
            >>> {row["patient"] for row in train} & {row["patient"] for row in valid}
            set()
        """
        return tuple(map(self.select, random_parts(len(self), fraction, seed, self._labels("by", by))))

    def concat(self, *others: Dataset) -> Dataset:
        """Return the rows of this dataset and then those of the others; nothing is copied.

        Raises:
            ValueError: field names, dtypes or shapes differ; the message names the first difference. Or the numbers in
                ``dataset_idx`` mean different names in two of the datasets.
            TypeError: one of the others is not a dataset.

        Example:
            >>> import memload, torch
            >>> part = memload.from_arrays(x=torch.arange(3))
            >>> len(part.concat(part, part))
            9
        """
        for position, other in enumerate(others, start=1):
            try:
                check_same_fields(self.fields, _dataset(other, position).fields, position)
            except ValueError as error:
                raise ValueError(f"{error}; {JOINED_UNLIKE}") from None
            if self.names and other.names and self.names != other.names:
                raise ValueError(
                    f"dataset {position}: {TAG!r} stands for {list(other.names)}, in the first one for "
                    f"{list(self.names)}; join the datasets of both by one memload.concat({{name: dataset, ...}})"
                )
        members = (self, *others)
        fields = {name: Field.concat([one.fields[name] for one in members]) for name in self.fields}
        names = self.names if all(one.names == self.names for one in others) else ()
        return Dataset(fields, self.layout, names, of_joined((len(one), one.borders) for one in members))

    def rows_by_name(self) -> dict[str, range | NDArray[np.int64]]:
        """Return the row numbers of each dataset that `memload.concat({"name": dataset})` joined.

        Returns:
            Row numbers by name, in rising order: a range if they are consecutive, else int64 (n,).

        Raises:
            ValueError: this dataset was not joined by names.

        Example:
            >>> import memload, torch
            >>> a, b = memload.from_arrays(x=torch.zeros(3)), memload.from_arrays(x=torch.zeros(5))
            >>> memload.concat({"a": a, "b": b}).rows_by_name()
            {'a': range(0, 3), 'b': range(3, 8)}
        """
        if not self.names:
            raise ValueError('only datasets that memload.concat({"name": dataset, ...}) joined have rows by name')
        return rows_of_each(self.fields[TAG].gather(np.arange(len(self))).cpu().numpy(), self.names)

    def map(self, fn: Callable[[Any], Any], *, in_processes: bool = False) -> MappedDataset:
        """Return a dataset whose sample ``i`` is ``fn(self[i])``.

        A `FastLoader` gathers rows natively and runs ``fn`` ahead of the loop in background threads; see
        `MappedDataset` for the arguments.

        Example:
            >>> import memload, torch
            >>> memload.from_arrays(x=torch.arange(4)).only("x").map(torch.neg)[3]
            tensor(-3)
        """
        return MappedDataset(self, fn, in_processes=in_processes)

    def as_tuple(self, *names: str) -> Dataset:
        """Return the dataset of these fields, in this order, whose rows and batches are tuples.

        Args:
            names: the names of the fields; all fields if none is named.

        Raises:
            KeyError, TypeError: there is no such field, or a name is not a str.
            ValueError: a field is named twice.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(stim=torch.zeros(4, 3), robs=torch.arange(4))
            >>> for x, y in torch.utils.data.DataLoader(ds.as_tuple("stim", "robs"), batch_size=4):
            ...     print(x.shape, y)
            torch.Size([4, 3]) tensor([0, 1, 2, 3])
        """
        chosen = {name: self._field(name) for name in names or self.fields}
        if names and len(chosen) != len(names):
            raise ValueError(f"each field can be named once, got {', '.join(map(repr, names))}")
        return Dataset(chosen, "tuple", borders=self.borders)

    def only(self, name: str) -> Dataset:
        """Return the dataset of this one field, whose rows and batches are tensors.

        Example:
            >>> import memload, torch
            >>> memload.from_arrays(stim=torch.arange(4), robs=torch.zeros(4)).only("stim")[3]
            tensor(3)
        """
        return Dataset({name: self._field(name)}, "only", borders=self.borders)

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Return the same rows with other names for some fields; the order stays, and nothing is copied.

        Args:
            names: a mapping from old names to new ones. All other fields keep their names.

        Raises:
            KeyError: there is no field of an old name.
            ValueError: two fields would have one name, a new name cannot be stored, or the field is the ``dataset_idx``
                of joined datasets.
            TypeError: `names` is not a mapping, or a new name is not a str.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(data=torch.arange(4), robs=torch.zeros(4))
            >>> ds.rename({"data": "stim"})[3]
            {'stim': tensor(3), 'robs': tensor(0.)}
        """
        made = renamed(self.fields, names)
        if self.names and TAG in names:
            raise ValueError(f"rename: {TAG!r} says which of the joined datasets a row comes from, and keeps its name")
        return replace(self, fields=made)

    def __repr__(self) -> str:
        name_width = max(map(len, self.fields))
        rows_are = {"dict": "", "tuple": ", rows are tuples", "only": ", rows are tensors"}[self.layout]
        where = f"{origin_words(self.fields)}{tier_words(self.fields)}{rows_are}"
        lines = [f"memload.Dataset: {counted(len(self), 'row')}, {format_size(self.nbytes)}, {where}"]
        for name, field in self.fields.items():
            lines.append(
                f"  {name:{name_width}}  {field.kind:9} {field.shape!s:18} "
                f"{format_size(field.row_bytes):>8} a row, {format_size(field.nbytes)}"
                + ("" if field.meant is None else ", times {:g} plus {:g} by cast=ds.casts".format(*field.meant))
            )
        if [*self.fields] == [UNNAMED]:
            lines.append(f'  files without names for arrays have one field {UNNAMED!r}: field="stim", or rename')
        return "\n".join(lines)

    _repr_html_ = fields_table  # what notebooks show

    def __copy__(self) -> Dataset:
        return self  # a dataset is immutable; __reduce__ would copy borrowed memory

    def __deepcopy__(self, _memo: dict[int, Any]) -> Dataset:
        from memload.columns.pickled_columns import copied_fields

        return replace(self, fields=copied_fields(self.fields))

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        for field in self.fields.values():
            field.check_in_place()
        described = [(name, type(field), field.recipe()) for name, field in self.fields.items()]
        from memload.columns.pickled_columns import pack_columns

        packed = pack_columns([field.column for field in self.fields.values()])
        return _restore, (described, packed, self.layout, self.names, self.borders)

    def _with(self, fields: Mapping[str, Field], names: tuple[str, ...], borders: Borders) -> Dataset:
        """Return a dataset of these fields with the class and the layout of this one."""
        return Dataset(fields, names=names, borders=borders)

    @functools.cached_property
    def _rows(self) -> int:
        return next(iter(self.fields.values())).rows

    def __memload_source__(self) -> GatherSpec:
        """Return the gather specification of these rows for the engine."""
        return self._specification

    @functools.cached_property
    def _specification(self) -> GatherSpec:
        lent = [owner.tensor for field in self.fields.values() for owner in field.owners if owner.guarded]
        fields: dict[Key, Field] = dict(self.fields.items())
        tags = (TAG,) if self.names else ()
        guards = guarded_tensors(lent) if lent else ()
        return GatherSpec(fields, flat(self.layout, list(self.fields)), {}, guards=guards, tags=tags)

    @functools.cached_property
    def _fetcher(self) -> BatchFetcher:
        fetcher = BatchFetcher
        if any(field.resident for field in self.fields.values()):
            from memload.device.resident_fetcher import ResidentFetcher as fetcher  # noqa: N813 - either is made in the same way

        return fetcher(self._specification, tensors=self.layout == "only", tag=TAG if self.names else None)

    @functools.cached_property
    def _forms(self) -> Forms:
        keys = self.fields if self.layout == "dict" else range(len(self.fields))
        return forms_of_fields(dict(zip(keys, self.fields.values(), strict=True)))

    def _rows_at(self, indices: Any) -> NDArray[np.int64]:
        try:
            rows = from_end(as_indices(indices), len(self))
        except (TypeError, ValueError):  # some element is not an index, or only has __index__
            return np.array([row_number(index, len(self)) for index in indices], dtype=np.int64)
        for position in np.flatnonzero((rows < 0) | (rows >= len(self)))[:1]:
            row_number(indices[position], len(self))  # raises the error that names the index
        return rows

    def _field(self, name: str) -> Field:
        if not isinstance(name, str):
            raise TypeError(
                f"a field is named by a str, got {kind(name)}; give several names one by one, as in "
                'as_tuple("stim", "robs")'
            )
        if name not in self.fields:
            other = next(iter(self.fields))
            raise KeyError(
                f"no field {name!r}; there are {list(self.fields)}; ds.rename({{{other!r}: {name!r}}}) gives a field "
                "another name"
            )
        return self.fields[name]

    def _arranged(self, read: Callable[[Field], torch.Tensor]) -> Any:
        if self.layout == "dict":
            return {name: read(field) for name, field in self.fields.items()}
        tensors = tuple(read(field) for field in self.fields.values())
        return tensors[0] if self.layout == "only" else tensors


def _dataset(member: object, position: int) -> Dataset:
    if not isinstance(member, Dataset):
        raise not_a_dataset(position, member)
    return member


def _restore(
    described: list[tuple[str, type[Field], dict[str, Any]]],
    packed: PackedColumns,
    layout: Layout,
    names: tuple[str, ...],
    borders: Borders = NONE,
) -> Dataset:
    from memload.columns.pickled_columns import unpack_columns

    made = zip(described, unpack_columns(packed), strict=True)
    return Dataset({name: of(column=column, **recipe) for (name, of, recipe), column in made}, layout, names, borders)
