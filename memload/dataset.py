"""The dataset: columns side by side, and index arithmetic on them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from memload.batches.layout import flat
from memload.engine.door import Door
from memload.engine.source import Source
from memload.fields import Field, check_equal_lengths, check_name, check_same_fields
from memload.gpu.near import near_device
from memload.gpu.near_door import NearDoor
from memload.ragged_rows.fields import forms_of_fields, with_forms
from memload.ragged_rows.samples import Forms, sample_of
from memload.rows.borders import NONE, Borders, of_joined, of_selected
from memload.rows.numbers import kind, row_number, row_numbers, rows_of_each, two_parts
from memload.sampling.row_plan import as_indices, from_end
from memload.sizes import format_size
from memload.stats import LoaderStats
from memload.tiers.tiered import Tiered, origin_words, tier_words
from memload.transforms.mapped import MappedDataset
from memload.transport.columns import PackedColumns, pack_columns, unpack_columns
from memload.windows import hopping, lagged, spans_of

Layout = Literal["dict", "tuple", "only"]

TAG = "dataset_idx"
"""The field that says which of several joined datasets a row comes from."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Tiered, torch.utils.data.Dataset[Any]):
    """Rows of named fields, read in place: a torch dataset that is also cheap to reorder, cut and join.

    Made by `memload.open` and `memload.from_arrays`. Immutable: `select`, `split`, `concat` and `memload.zip` return
    new datasets that share the bytes. `ds[i]` is a dict of freshly read tensors, or a tuple after `as_tuple`, or one
    tensor after `only`.

    Args:
        fields: the fields in order, all of one length.
        layout: what `ds[i]` gives: "dict", "tuple", or "only" (of a single field).
        names: of the datasets that `memload.concat({"name": dataset})` joined, by the number that each row then has as
            `dataset_idx`; empty for others.
        borders: the rows at which those of another dataset begin, where datasets were joined: windows end there.

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
        near_device(self.fields)
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def __len__(self) -> int:
        return next(iter(self.fields.values())).rows

    def __getitem__(self, index: SupportsIndex) -> Any:
        row = np.array([row_number(index, len(self))], dtype=np.int64)
        sample = self._arranged(lambda field: field.sample(row))
        if self.names:
            sample[TAG] = int(sample[TAG])
        return sample_of(sample, self._forms) if self.layout != "only" else sample

    def __getitems__(self, indices: Any) -> list[Any]:
        """Return the samples of these rows, as a stock DataLoader asks for them; memload's threads gather them.

        `torch.utils.data.default_collate` makes the gathered batch of this list as it is. To any other collate function
        it is the list `[ds[i] for i in indices]`.

        Args:
            indices: integers; negative ones count from the end.

        Raises:
            IndexError, TypeError: as `ds[i]` does.
        """
        if type(self).__getitem__ is not Dataset.__getitem__:
            return [self[index] for index in indices]
        rows = self._rows_at(indices)
        if self.layout == "only" and next(iter(self.fields.values())).kind == "text":
            return list(self._door.gather(rows)) if len(rows) else []
        return self._door.rows(rows)

    def with_ragged(self, form: Any = None, /, *, pad_value: Any = None, **forms: Any) -> Dataset:
        """Return this dataset with another form of batches for the fields whose rows differ in length.

        Args:
            form: for all such fields: "offsets" (the default of a dataset), a `memload.Ragged` of values and offsets;
                "padded", a `memload.Padded`; ("padded", -100), padded with that number instead of 0; or "jagged",
                tensors of torch.nested.
            pad_value: the number that pads rows, for all fields that become padded, or a dict of numbers by field.
            forms: forms for single fields, by name.

        Raises:
            KeyError: there is no field of such a name.
            TypeError: a form is none of these, or a pad value is no number.
            ValueError: all rows of a field have the same length, its batches cannot have that form, or its dtype cannot
                hold the pad value.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(tokens=memload.ragged([torch.arange(3), torch.arange(1)]))
            >>> next(iter(memload.FastLoader(ds.with_ragged("padded"), batch_size=2)))["tokens"].values
            tensor([[0, 1, 2],
                    [0, 0, 0]])
        """
        if (form is None) == (not forms):
            raise ValueError('with_ragged takes one form, or forms by field: with_ragged(tokens="padded")')
        return replace(self, fields=with_forms([*self.fields.items()], forms if form is None else form, pad_value))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows of all fields, as they would be read; a row selected twice counts twice."""
        return sum(field.nbytes for field in self.fields.values())

    def stats(self) -> LoaderStats:
        """Return counters of the batches that stock DataLoaders took from this dataset, in this process.

        Lightning, accelerate, HF Trainer, Ray Train and PyG may build a stock DataLoader around the dataset; this says
        whether, and how fast, memload's threads gathered its batches. `wall_seconds` is the time inside these gathers,
        all of which the loop waits for. Each worker process has counters of its own.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(x=torch.arange(6))
            >>> batches = list(torch.utils.data.DataLoader(ds, batch_size=2))
            >>> ds.stats().batches
            3
        """
        return self._door.stats()

    def select(self, rows: Any) -> Dataset:
        """Return the dataset of these rows, in this order; repeats are allowed, and nothing is copied.

        Args:
            rows: integers in any sequence, array, CPU tensor or range; or one bool per row, which keeps the true ones.
                Negative numbers are refused, since -1 in a table of trials mostly means that something is missing.

        Raises:
            IndexError: a row is not there; the message names the first such position and its value.
            TypeError: `rows` are not integers.

        Example:
            >>> import memload, torch
            >>> memload.from_arrays(x=torch.arange(5)).only("x").select([4, 0, 4])[2]
            tensor(4)
        """
        numbers = row_numbers(rows, len(self))
        fields = {name: field.select(numbers) for name, field in self.fields.items()}
        return replace(self, fields=fields, borders=of_selected(self.borders, numbers))

    def split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """Split the rows at random into two datasets, the first with round(fraction * len) of them.

        Args:
            fraction: the share of the rows, between 0 and 1, that goes into the first part.
            seed: the same seed gives the same parts, which are slices of torch.randperm.

        Raises:
            ValueError: a part would be empty.
            TypeError: `fraction` is no number, or `seed` no integer of 64 bits.

        Example:
            >>> import memload, torch
            >>> train, valid = memload.from_arrays(x=torch.arange(10)).split(0.8, seed=1)
            >>> len(train), len(valid)
            (8, 2)
        """
        first, second = two_parts(len(self), fraction, seed)
        return self.select(first), self.select(second)

    def concat(self, *others: Dataset) -> Dataset:
        """Return the rows of this dataset and then those of the others; nothing is copied.

        Raises:
            ValueError: field names, dtypes or shapes differ; the message names the first difference.
            TypeError: one of the others is no dataset.

        Example:
            >>> import memload, torch
            >>> part = memload.from_arrays(x=torch.arange(3))
            >>> len(part.concat(part, part))
            9
        """
        for position, other in enumerate(others, start=1):
            check_same_fields(self.fields, _dataset(other, position).fields, position)
        members = (self, *others)
        fields = {name: Field.concat([one.fields[name] for one in members]) for name in self.fields}
        return Dataset(fields, self.layout, borders=of_joined((len(one), one.borders) for one in members))

    def rows_by_name(self) -> dict[str, range | NDArray[np.int64]]:
        """Return where the rows of each dataset lie that `memload.concat({"name": dataset})` joined.

        Returns:
            Row numbers by name, in rising order: a range where they follow each other.

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

    def map(self, fn: Callable[..., Any], *, in_processes: bool = False) -> MappedDataset:
        """Return a dataset whose samples are ``fn(sample)``, with sample ``i`` as ``self[i]`` gives it.

        In a `FastLoader` rows are gathered natively and ``fn`` runs ahead of the loop in background threads; see
        `MappedDataset`, which this makes, for its arguments.

        Example:
            >>> import memload, torch
            >>> memload.from_arrays(x=torch.arange(4)).only("x").map(torch.neg)[3]
            tensor(-3)
        """
        return MappedDataset(self, fn, in_processes=in_processes)

    def with_lags(
        self,
        lags: Mapping[str, Any] | None = None,
        /,
        *,
        valid: Any = None,
        segments: Any = None,
        across: bool = False,
        **fields: Any,
    ) -> Dataset:
        """Return the dataset whose row for frame i holds the frames i - lag for each lag, for the fields named.

        Only frames whose window is complete become rows: with lags 0 to 31, frame 31 of a recording is the first.
        Fields without lags give frame i itself. Nothing is copied: overlapping windows are gathered from frames that
        are stored once. Take lags first, and ``select``, ``split`` and ``memload.concat`` afterwards: lags count rows
        of this dataset, in whatever order they are.

        Args:
            lags: a sequence of whole numbers for each field, for names that are not valid keywords; they precede
                `fields`. Negative lags are later rows. A field of shape ``(*shape)`` becomes ``(len(lags), *shape)``.
            valid: row numbers, or one bool per row: which frames become rows, in this order. Each must have a complete
                window.
            segments: stretches of rows whose ends no window crosses: one label per row, such as trial numbers, where
                each run of equal labels is a segment; or pairs (start, stop) of rows. None: one segment.
            across: whether windows may reach from one dataset into the next, where several were joined by `concat`, or
                opened as several files. By default each of them is a recording of its own, and ends a segment.
            fields: lags by field.

        Raises:
            KeyError: there is no such field.
            ValueError: no row has a complete window, or segments overlap.
            IndexError: a row of `valid` is not there, or has no complete window.
            TypeError: lags are no sequence of whole numbers.

        Example:
            >>> import memload, torch
            >>> movie = memload.from_arrays(stim=torch.arange(6), robs=torch.arange(6) * 10)
            >>> lagged = movie.with_lags(stim=range(3))
            >>> len(lagged), lagged[0]
            (4, {'stim': tensor([2, 1, 0]), 'robs': tensor(20)})
        """
        named = {name: given for name, given in {**(lags or {}), **fields}.items() if self._field(name)}
        if not named:
            raise ValueError("no field has lags; name one, as in with_lags(stim=range(32))")
        spans = spans_of(segments, len(self), NONE if across else self.borders)
        made, borders = lagged(self.fields, named, valid, spans, self.borders)
        return replace(self, fields=made, borders=borders)

    def windows(self, *names: str, window: int, hop: int = 1, segments: Any = None, across: bool = False) -> Dataset:
        """Return the dataset whose rows are windows: `window` consecutive rows of this one, starting `hop` rows apart.

        Nothing is copied, and frames that several windows share are stored once. Incomplete windows are left out.

        Args:
            names: the fields to cut into windows; default: all. The others give the row at which the window starts.
            window: rows in a window: a field of shape ``(*shape)`` becomes ``(window, *shape)``.
            hop: rows from the start of one window to the start of the next.
            segments: stretches whose ends no window crosses, as in `with_lags`; each starts with a window.
            across: whether windows may reach from one joined dataset into the next, as in `with_lags`.

        Raises:
            KeyError: there is no such field.
            ValueError: no window fits, `window` or `hop` is no number of rows, or segments overlap.

        Example:
            >>> import memload, torch
            >>> sound = memload.from_arrays(spectrum=torch.rand(100, 128)).windows(window=32, hop=4)
            >>> len(sound), sound[3]["spectrum"].shape
            (18, torch.Size([32, 128]))
        """
        chosen = [name for name in names or self.fields if self._field(name)]
        spans = spans_of(segments, len(self), NONE if across else self.borders)
        made, borders = hopping(self.fields, chosen, window, hop, spans, self.borders)
        return replace(self, fields=made, borders=borders)

    def as_tuple(self, *names: str) -> Dataset:
        """Return the dataset of these fields, in this order, whose rows and batches are tuples; all if none is named.

        Raises:
            KeyError, TypeError: there is no such field, or a name is no str.
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

    def __repr__(self) -> str:
        name_width = max(map(len, self.fields))
        where = f"{origin_words(self.fields)}{tier_words(self.fields)}{self._rows_are()}"
        lines = [f"memload.Dataset: {len(self):,} rows, {format_size(self.nbytes)}, {where}"]
        for name, field in self.fields.items():
            lines.append(
                f"  {name:{name_width}}  {field.kind:9} {field.shape!s:18} "
                f"{format_size(field.row_bytes):>8} a row, {format_size(field.nbytes)}"
            )
        return "\n".join(lines)

    def __copy__(self) -> Dataset:
        return self  # immutable; going through __reduce__ would copy borrowed memory

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        for field in self.fields.values():
            field.check_in_place()
        described = [(name, type(field), field.recipe()) for name, field in self.fields.items()]
        packed = pack_columns([field.column for field in self.fields.values()])
        return _restore, (described, packed, self.layout, self.names, self.borders)

    @functools.cached_property
    def _door(self) -> Door:
        source = Source(dict(self.fields.items()), flat(self.layout, list(self.fields)), {})
        door = Door if near_device(self.fields) is None else NearDoor
        return door(source, tensors=self.layout == "only", tag=TAG if self.names else None)

    @functools.cached_property
    def _forms(self) -> Forms:
        keys = self.fields if self.layout == "dict" else range(len(self.fields))
        return forms_of_fields(dict(zip(keys, self.fields.values(), strict=True)))

    def _rows_at(self, indices: Any) -> NDArray[np.int64]:
        try:
            rows = from_end(as_indices(indices), len(self))
        except (TypeError, ValueError):  # something among them is no index, or needs to be asked for its number
            return np.array([row_number(index, len(self)) for index in indices], dtype=np.int64)
        for position in np.flatnonzero((rows < 0) | (rows >= len(self)))[:1]:
            row_number(indices[position], len(self))  # says what is wrong
        return rows

    def _field(self, name: str) -> Field:
        if not isinstance(name, str):
            raise TypeError(
                f"a field is named by a str, got {kind(name)}; give several names one by one, as in "
                'as_tuple("stim", "robs")'
            )
        if name not in self.fields:
            raise KeyError(f"no field {name!r}; there are {list(self.fields)}")
        return self.fields[name]

    def _arranged(self, read: Callable[[Field], torch.Tensor]) -> Any:
        if self.layout == "dict":
            return {name: read(field) for name, field in self.fields.items()}
        tensors = tuple(read(field) for field in self.fields.values())
        return tensors[0] if self.layout == "only" else tensors

    def _rows_are(self) -> str:
        return {"dict": "", "tuple": ", rows are tuples", "only": ", rows are tensors"}[self.layout]


def _dataset(member: object, position: int) -> Dataset:
    if not isinstance(member, Dataset):
        raise TypeError(
            f"dataset {position} is {kind(member)}; expected one.concat(two, three), or memload.concat([one, two])"
        )
    return member


def _restore(
    described: list[tuple[str, type[Field], dict[str, Any]]],
    packed: PackedColumns,
    layout: Layout,
    names: tuple[str, ...],
    borders: Borders = NONE,
) -> Dataset:
    columns = unpack_columns(packed)
    return Dataset(
        {
            name: kind_of_field(column=column, **recipe)
            for (name, kind_of_field, recipe), column in zip(described, columns, strict=True)
        },
        layout,
        names,
        borders,
    )
