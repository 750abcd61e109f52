"""Many datasets at once: joined by name, each row with the number of its dataset, and batches collated by dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from memload._core import Column, Storage
from memload.batches.collate_rules import as_shipped
from memload.batches.gathered import GatheredRows
from memload.dataset import TAG, Dataset
from memload.fields import Field, check_name
from memload.graphs.datasets import GraphDataset
from memload.ragged_rows.forms import taken
from memload.ragged_rows.samples import NO_FORMS, forms_of, sample_of
from memload.rows.numbers import by_first_appearance, kind, row_number, row_numbers, rows_of_each, two_parts
from memload.sizes import format_size
from memload.transforms.mapped import MappedDataset


@dataclass(frozen=True, eq=False, repr=False)
class GroupedDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of several datasets that differ in fields or shapes, each row with the number of its dataset.

    Made by ``memload.concat({"name": dataset, ...})``. Immutable. ``ds[i]`` is a dict of freshly read tensors, and
    ``dataset_idx``, an int: the position of the row's dataset among ``names``. Batches are collated by
    `memload.group_collate`, which FastLoader runs natively.

    Args:
        members: the datasets by name, whose rows are dicts.
        rows: int64 (n,), which rows there are, counted over all members in turn, as `select` makes them; None: all.

    Raises:
        TypeError, ValueError: a member is no dataset, or none that can be joined; see `memload.concat`.

    Example:
        >>> import memload, torch
        >>> a, b = memload.from_arrays(x=torch.zeros(3, 8)), memload.from_arrays(x=torch.zeros(5, 9))
        >>> both = memload.concat({"a": a, "b": b})
        >>> len(both), both[3]["x"].shape, both[3]["dataset_idx"]
        (8, torch.Size([9]), 1)
    """

    members: Mapping[str, Dataset]
    rows: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name, member in self.members.items():
            _check_member(name, member)
        object.__setattr__(self, "members", MappingProxyType(dict(self.members)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the datasets, by ``dataset_idx``."""
        return tuple(self.members)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the rows of each dataset begin, counted over all in turn, and where the last ends."""
        return np.cumsum([0, *map(len, self.members.values())], dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows of all fields, as they would be read; a row selected twice counts twice."""
        row_bytes = [member.nbytes // max(1, len(member)) for member in self.members.values()]
        return sum(len(rows) * size for rows, size in zip(self.rows_by_name().values(), row_bytes, strict=True))

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        row = np.array([row_number(index, len(self))], dtype=np.int64)
        (tag,), (inner,) = self.locate(row)
        sample = list(self.members.values())[tag][inner]
        return _tagged(sample, int(tag))

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return of each row the number of its dataset, and its row there.

        Args:
            rows: int64 (n,), each in [0, len(self)).
        """
        if self.rows is not None:
            rows = self.rows[rows]
        starts = self.starts
        tags = np.searchsorted(starts, rows, side="right") - 1
        return tags, rows - starts[tags]

    def select(self, rows: Any) -> GroupedDataset:
        """Return the dataset of these rows, in this order, as `Dataset.select` does.

        Raises:
            IndexError, TypeError: as `Dataset.select`.

        Example:
            >>> import memload, torch
            >>> a, b = memload.from_arrays(x=torch.arange(3)), memload.from_arrays(y=torch.arange(5))
            >>> memload.concat({"a": a, "b": b}).select([7, 0])[0]
            {'y': tensor(4), 'dataset_idx': 1}
        """
        chosen = row_numbers(rows, len(self))
        return replace(self, rows=chosen.copy() if self.rows is None else self.rows[chosen])

    def split(self, fraction: float, seed: int) -> tuple[GroupedDataset, GroupedDataset]:
        """Return two shuffled parts without a common row, as `Dataset.split` does.

        Raises:
            ValueError, TypeError: as `Dataset.split`.
        """
        first, second = two_parts(len(self), fraction, seed)
        return self.select(first), self.select(second)

    def map(self, fn: Callable[..., Any], *, in_processes: bool = False) -> MappedDataset:
        """Return a dataset whose samples are ``fn(sample)``, as `Dataset.map` does; ``dataset_idx`` is an int there.

        FastLoader runs it on the stock machinery, also with ``collate_fn=memload.group_collate``. The native way is a
        ``batch_transform`` behind `group_collate`, which gets one batch for each dataset.

        Example:
            >>> import memload, torch
            >>> a, b = memload.from_arrays(x=torch.arange(3)), memload.from_arrays(y=torch.arange(5))
            >>> memload.concat({"a": a, "b": b}).map(lambda sample: sample["dataset_idx"])[4]
            1
        """
        return MappedDataset(self, fn, in_processes=in_processes)

    def rows_by_name(self) -> dict[str, range | NDArray[np.int64]]:
        """Return where the rows of each dataset lie: row numbers by name, a range where they follow each other."""
        if self.rows is None:
            starts = self.starts.tolist()
            return {name: range(starts[k], starts[k + 1]) for k, name in enumerate(self.names)}
        return rows_of_each(np.searchsorted(self.starts, self.rows, side="right") - 1, self.names)

    def __repr__(self) -> str:
        lines = [
            f"memload.GroupedDataset: {len(self):,} rows of {len(self.names)} datasets, {format_size(self.nbytes)}"
        ]
        for (name, rows), member in zip(self.rows_by_name().items(), self.members.values(), strict=True):
            lines += [f"{name}: {len(rows):,} rows of", *(f"  {line}" for line in repr(member).splitlines())]
        return "\n".join(lines)

    def __copy__(self) -> GroupedDataset:
        return self

    def __reduce__(self) -> tuple[Callable[..., GroupedDataset], tuple[Any, ...]]:
        return GroupedDataset, (dict(self.members), self.rows)


@overload
def concat(datasets: Mapping[str, Dataset], /) -> Dataset | GroupedDataset: ...
@overload
def concat(*datasets: Dataset | Iterable[Dataset]) -> Dataset: ...
def concat(*datasets: Any) -> Any:
    """Return the rows of the first dataset, then those of the second, and so on; nothing is copied.

    Given by name, each row also gets the number of its dataset as ``dataset_idx``: an int in ``ds[i]``, an int64 tensor
    (B,) in a batch. ``names`` of the result has the names by that number. Datasets given by name may differ in fields,
    dtypes and shapes: the result is then a `GroupedDataset`, whose batches `memload.group_collate` collates.

    Args:
        datasets: at least one. As arguments or in one iterable: all with the same field names, dtypes and row shapes;
            the first gives the order of fields and whether rows are dicts, tuples or tensors. As one mapping from names
            to datasets: rows must be dicts without a field ``dataset_idx``.

    Raises:
        ValueError: there is none, or they differ; the message names the first difference. By name: a name cannot be
            stored, rows are no dicts, or have a field ``dataset_idx`` already.
        TypeError: one of them is no dataset.

    Example:
        >>> import memload, torch
        >>> len(memload.concat(memload.from_arrays(x=torch.zeros(n)) for n in (2, 3)))
        5
        >>> a, b = memload.from_arrays(x=torch.zeros(2)), memload.from_arrays(x=torch.ones(3))
        >>> named = memload.concat({"a": a, "b": b})
        >>> named.names, named[4]
        (('a', 'b'), {'x': tensor(1.), 'dataset_idx': 1})
    """
    members: list[Any] = list(datasets)
    if len(datasets) == 1 and isinstance(datasets[0], Mapping):
        return _concat_named(datasets[0])
    if len(datasets) == 1 and isinstance(datasets[0], Iterable):
        members = list(datasets[0])
    if not members:
        raise ValueError("concat needs at least one dataset")
    if not isinstance(members[0], Dataset):
        raise TypeError(
            f"dataset 0 is {kind(members[0])}; expected one.concat(two, three), or memload.concat([one, two])"
        )
    return members[0].concat(*members[1:])


def _concat_named(members: Mapping[str, Any]) -> Dataset | GroupedDataset:
    if not members:
        raise ValueError("concat needs at least one dataset")
    grouped = GroupedDataset(members)
    first, *others = members.values()
    if any(_form(other) != _form(first) for other in others):
        _check_no_graphs(members)
        return grouped
    tagged = [with_tag(member, k) for k, member in enumerate(members.values())]
    return replace(tagged[0].concat(*tagged[1:]), names=tuple(members))


def _check_member(name: Any, member: Any) -> None:
    check_name(name)
    if isinstance(member, GroupedDataset):
        raise TypeError(f"dataset {name!r} is joined already: give the datasets one by one, {list(member.names)!r} too")
    if not isinstance(member, Dataset):
        raise TypeError(
            f"dataset {name!r} is {kind(member)}; expected a memload dataset, as memload.open and memload.from_arrays "
            "make them"
        )
    if member.layout != "dict":
        raise ValueError(
            f"the rows of dataset {name!r} are no dicts: join the datasets first, then use as_tuple or only"
        )
    if TAG in member.fields:
        raise ValueError(
            f"dataset {name!r} has a field {TAG!r} already, which concat would add: give the datasets one by one "
            "instead of joined ones, or leave the field out when you write or open them"
        )


def _form(dataset: Dataset) -> Any:
    return isinstance(dataset, GraphDataset), [(name, field.signature) for name, field in dataset.fields.items()]


def _check_no_graphs(members: Mapping[str, Dataset]) -> None:
    graphs = [name for name, member in members.items() if isinstance(member, GraphDataset)]
    if graphs:
        raise ValueError(
            f"the graphs of {graphs[0]!r} and the rows of the other datasets differ in attributes, dtypes or shapes, "
            "so that no batch can join them: give graphs that have the same attributes in the same order, or join "
            "ds.as_plain(), whose samples are dicts"
        )


def with_tag(dataset: Dataset, number: int) -> Dataset:
    """Return the dataset with one more field, ``dataset_idx``, that is this number in every row: 8 bytes in all."""
    one = np.array([number], dtype=np.int64)
    storage = Storage.borrow(one, one.ctypes.data, one.nbytes, f"the number of dataset {number}")
    tag = Field(torch.int64, (), Column(one.nbytes, [(storage, 0, len(dataset), 0)]))
    return replace(dataset, fields={**dataset.fields, TAG: tag})


def with_int_tag(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample that was cut from a batch as the joined dataset gives it: with its number as an int."""
    return _tagged(sample, int(sample[TAG]))


def _tagged(sample: Mapping[str, Any], tag: int) -> dict[str, Any]:
    made: dict[str, Any] = sample_of({**sample, TAG: tag}, getattr(sample, "forms", NO_FORMS))
    return made


def group_collate(samples: Sequence[Any]) -> list[Any]:
    """Return one collated batch for each dataset that occurs among the samples, in order of first appearance.

    A collate function for samples that have a ``dataset_idx``, as those of ``memload.concat({"name": dataset, ...})``
    do: for the stock DataLoader as for FastLoader, which runs it natively on such datasets. Rows keep their order.

    Args:
        samples: dicts, each with ``dataset_idx``, an integer. Those with the same one are collated by torch's
            ``default_collate``, which makes ``dataset_idx`` an int64 tensor (k,).

    Raises:
        TypeError: a sample is no mapping, or its ``dataset_idx`` no integer.
        KeyError: a sample has no ``dataset_idx``.

    Example:
        >>> import memload, torch
        >>> a, b = memload.from_arrays(x=torch.zeros(3, 8)), memload.from_arrays(x=torch.zeros(5, 9))
        >>> loader = memload.FastLoader(memload.concat({"a": a, "b": b}), 4, collate_fn=memload.group_collate)
        >>> [tuple(group["x"].shape) for group in next(iter(loader))]
        [(3, 8), (1, 9)]
    """
    if (gathered := _gathered(samples)) is not None:
        return gathered
    groups: dict[int, list[Any]] = {}
    for position, sample in enumerate(samples):
        groups.setdefault(_tag_of(sample, position), []).append(sample)
    return [default_collate(group) for group in groups.values()]


def _gathered(samples: Sequence[Any]) -> list[Any] | None:
    """The groups of samples that a memload dataset gathered as a whole; None if these are ordinary samples."""
    if not isinstance(samples, GatheredRows) or not len(samples) or not as_shipped():
        return None
    batch = samples.whole()
    tags = batch.get(TAG) if isinstance(batch, dict) else None
    if tags is None or tags.dtype != torch.int64 or tags.ndim != 1:
        return None
    places = map(torch.from_numpy, by_first_appearance(tags.numpy()))
    pads = {name: pad_value for name, (_, _, pad_value) in forms_of(batch, samples.forms).items()}
    return [
        {name: taken(values, rows, pads[name]) if name in pads else values[rows] for name, values in batch.items()}
        for rows in places
    ]


def _tag_of(sample: Any, position: int) -> int:
    if not isinstance(sample, Mapping):
        raise TypeError(f"group_collate takes samples that are dicts; sample {position} is {kind(sample)}")
    if TAG not in sample:
        raise KeyError(
            f"group_collate takes samples with a {TAG!r}; sample {position} has {', '.join(map(repr, sample))}. "
            'memload.concat({"name": dataset, ...}) adds it'
        )
    try:
        return operator.index(sample[TAG])
    except TypeError:
        raise TypeError(f"{TAG!r} must be an integer; that of sample {position} is {kind(sample[TAG])}") from None
