"""Datasets joined by name: each row has the number of its dataset, and batches are collated by dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from memload.columns.fields import TAG, check_name, not_a_dataset
from memload.columns.foreign_names import SaysInstead, instead_of_grouped, says_immutable
from memload.columns.html_tables import members_table
from memload.columns.numbers import by_first_appearance, kind, random_parts, row_number, row_numbers, rows_of_each
from memload.columns.ragged_forms import taken
from memload.columns.ragged_samples import forms_of, tagged
from memload.dataset.dataset import Dataset
from memload.dataset.grouped_tiers import only_selected, with_tiers
from memload.dataset.mapped import MappedDataset
from memload.engine.collate_function import as_shipped
from memload.engine.gather_spec import NotNative
from memload.engine.gathered import GatheredRows
from memload.engine.readers import answers_by
from memload.engine.tiers.tier import Tier
from memload.formats.key_fields import constant
from memload.sizes import counted, format_size

if TYPE_CHECKING:
    from memload.dataset.float32_view import Float32View


@says_immutable
@answers_by("locate", attributes=["members"])
@dataclass(frozen=True, eq=False, repr=False)
class GroupedDataset(SaysInstead, torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of several datasets that differ in fields or shapes, each row with the number of its dataset.

    ``memload.concat({"name": dataset, ...})`` makes it. It is immutable. ``ds[i]`` is a dict of freshly read tensors
    and of ``dataset_idx``, an int: the position of the row's dataset in ``names``. `memload.group_collate` collates its
    batches; FastLoader runs it natively.

    Args:
        members: the datasets by name; their rows are dicts.
        rows: int64 (n,), the selected rows, counted over all members in turn; None selects all rows.

    Raises:
        TypeError, ValueError: a member is not a dataset, or cannot be joined; see `memload.concat`.

    Example:
        >>> import memload, torch
        >>> a, b = memload.from_arrays(x=torch.zeros(3, 8)), memload.from_arrays(x=torch.zeros(5, 9))
        >>> both = memload.concat({"a": a, "b": b})
        >>> len(both), both[3]["x"].shape, both[3]["dataset_idx"]
        (8, torch.Size([9]), 1)
    """

    members: Mapping[str, Dataset]
    rows: NDArray[np.int64] | None = None

    _why_not_mapped: ClassVar[str] = (
        "Datasets that differ in fields, dtypes or shapes are mapped row by row: leave the map out, and give "
        "collate_fn=memload.group_collate and batch_transform=, whose function gets the list of groups."
    )
    """The reason why the engine does not call functions of these samples."""

    _instead_of = instead_of_grouped

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
        """The first row of each dataset, counted over all members, and the end of the last: int64 (members + 1,)."""
        return np.cumsum([0, *map(len, self.members.values())], dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes that reading all rows of all fields takes; a row that is selected twice counts twice."""
        row_bytes = [member.nbytes // max(1, len(member)) for member in self.members.values()]
        return sum(len(rows) * size for rows, size in zip(self.rows_by_name().values(), row_bytes, strict=True))

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        (tag,), (inner,) = self.locate(np.array([row_number(index, len(self))], dtype=np.int64))
        made: dict[str, Any] = tagged(list(self.members.values())[tag][inner], int(tag))
        return made

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of each row's dataset, and the row's number there; both int64 (n,).

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

    def split(
        self, fraction: float | Sequence[float], seed: int | None = None, *, by: Any = None
    ) -> tuple[GroupedDataset, ...]:
        """Return parts without a common row, as `Dataset.split` does, by one key for each row or none.

        Raises:
            ValueError, TypeError: as `Dataset.split`.
        """
        return tuple(map(self.select, random_parts(len(self), fraction, seed, by)))

    def with_tier(
        self,
        tier: Tier | str | Mapping[str, Tier | str],
        *,
        ram_dtype: Any = None,
        cache_bytes: Any = None,
        **options: Any,
    ) -> GroupedDataset:
        """Return the same rows with the datasets on other tiers, as `Dataset.with_tier` places each.

        Of a selection, only its rows are placed.

        Args:
            tier: the tier of all datasets, or tiers by name; a dataset without one stays where it is. "auto" chooses by
                the bytes of all that have it, one tier for all of these; `memload.plan` chooses a tier for each.
            ram_dtype: with "ram", what becomes of fields, in every dataset that has them; or such mappings by name.
            cache_bytes: with "hybrid", the budget of a cache for each dataset; or budgets by name. Default: one cache
                for all, of half of the free memory.
            **options: other options of `Dataset.with_tier`, for all datasets.

        Raises:
            KeyError: there is no dataset of a name.
            MemorySpaceError, TypeError, ValueError, ShardReadError: as `Dataset.with_tier`.

        Example:
            >>> import memload, numpy, tempfile
            >>> folder = tempfile.mkdtemp()
            >>> for name, size in (("a", 3), ("b", 5)):
            ...     numpy.save(f"{folder}/{name}.npy", numpy.zeros((10, size)))
            >>> both = memload.concat({name: memload.open(f"{folder}/{name}.npy") for name in "ab"})
            >>> [str(ds.tier) for ds in both.with_tier({"a": "ram"}).members.values()]
            ['ram', 'mmap']
        """
        members, rows = self.members, self.rows
        if rows is not None:
            members, rows = only_selected(members, *self.locate(np.arange(len(self), dtype=np.int64)))
        return replace(self, members=with_tiers(members, tier, ram_dtype, cache_bytes, options), rows=rows)

    @property
    def tier(self) -> Tier | None:
        """The tier of all rows; None if they are on several."""
        tiers = {member.tier for member in self.members.values()}
        return tiers.pop() if len(tiers) == 1 else None

    def rename(self, names: Mapping[str, str]) -> GroupedDataset:
        """Return the same rows with other names for some fields, in every dataset that has them.

        Args:
            names: a mapping from old names to new ones. All other fields keep their names.

        Raises:
            KeyError: no dataset has a field of an old name.
            ValueError, TypeError: as `Dataset.rename`; the message begins with the name of the dataset.

        Example:
            >>> import memload, torch
            >>> a, b = memload.from_arrays(x=torch.arange(3)), memload.from_arrays(y=torch.arange(5))
            >>> memload.concat({"a": a, "b": b}).rename({"x": "stim"})[0]
            {'stim': tensor(0), 'dataset_idx': 0}
        """
        known = dict.fromkeys(field for member in self.members.values() for field in member.fields)
        for old in names if isinstance(names, Mapping) else ():
            if old not in known:
                raise KeyError(f"rename: no dataset has a field {old!r}; there are {list(known)}")
        return replace(self, members={name: _renamed(name, one, names) for name, one in self.members.items()})

    def map(self, fn: Callable[[Any], Any], *, in_processes: bool = False) -> MappedDataset:
        """Return a dataset whose sample ``i`` is ``fn(self[i])``; ``dataset_idx`` in a sample is an int.

        FastLoader runs such a dataset on torch's own machinery, also with ``collate_fn=memload.group_collate``. For a
        native pass, use `group_collate` with a ``batch_transform``, which gets one batch for each dataset.

        Example:
            >>> import memload, torch
            >>> a, b = memload.from_arrays(x=torch.arange(3)), memload.from_arrays(y=torch.arange(5))
            >>> memload.concat({"a": a, "b": b}).map(lambda sample: sample["dataset_idx"])[4]
            1
        """
        return MappedDataset(self, fn, in_processes=in_processes)

    def rows_by_name(self) -> dict[str, range | NDArray[np.int64]]:
        """Return the row numbers of each dataset by name: a range if they are consecutive, else int64 (n,)."""
        if self.rows is None:
            starts = self.starts.tolist()
            return {name: range(starts[k], starts[k + 1]) for k, name in enumerate(self.names)}
        return rows_of_each(np.searchsorted(self.starts, self.rows, side="right") - 1, self.names)

    def __memload_source__(self) -> NoReturn:
        """Raise NotNative: only `group_collate` makes batches of these rows, and it reads each dataset by itself."""
        raise NotNative(
            f"The datasets {', '.join(map(repr, self.names))} differ in fields, dtypes or shapes, so that no batch can "
            "hold rows of several: give collate_fn=memload.group_collate."
        )

    def __repr__(self) -> str:
        lines = [
            f"memload.GroupedDataset: {counted(len(self), 'row')} of {counted(len(self.names), 'dataset')}, "
            f"{format_size(self.nbytes)}"
        ]
        for (name, rows), member in zip(self.rows_by_name().items(), self.members.values(), strict=True):
            lines += [f"{name}: {len(rows):,} rows of", *(f"  {line}" for line in repr(member).splitlines())]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table of the fields of each dataset, which notebooks show."""
        return members_table(repr(self), {name: member.fields for name, member in self.members.items()})

    def __copy__(self) -> GroupedDataset:
        return self

    def __reduce__(self) -> tuple[Callable[..., GroupedDataset], tuple[Any, ...]]:
        return GroupedDataset, (dict(self.members), self.rows)


@overload
def concat(datasets: Mapping[str, Dataset], /) -> Dataset | GroupedDataset: ...
@overload
def concat(*datasets: Dataset | Iterable[Dataset]) -> Dataset: ...
@overload
def concat(datasets: Mapping[str, Float32View] | Iterable[Float32View], /) -> Float32View: ...
@overload
def concat(*datasets: Float32View) -> Float32View: ...
def concat(*datasets: Any) -> Any:
    """Return the rows of the first dataset, then those of the second, and so on; nothing is copied.

    If datasets are given by name, each row also has the number of its dataset as ``dataset_idx``: an int in ``ds[i]``,
    an int64 tensor (B,) in a batch. ``names`` of the result lists the names in the order of these numbers. Datasets
    given by name may differ in fields, dtypes and shapes: the result is then a `GroupedDataset`, whose batches
    `memload.group_collate` collates.

    Args:
        datasets: at least one. As arguments or in one iterable, all must have the same field names, dtypes and row
            shapes; the first determines the order of fields and whether rows are dicts, tuples or tensors. In one
            mapping from names to datasets, rows must be dicts without a field ``dataset_idx``. If all are
            `Float32View`s that convert alike, the result is one view of their joined datasets. Of
            `memload.DatasetShape`s, it is the shape of the joined rows; by name, what `memload.plan` takes.

    Raises:
        ValueError: there is none, or they differ; the message names the first difference. By name: a name cannot be
            stored, rows are not dicts, or have a field ``dataset_idx`` already. Views convert differently.
        TypeError: one of them is not a dataset, or some are views and others are not.

    Example:
        >>> import memload, torch
        >>> len(memload.concat(memload.from_arrays(x=torch.zeros(n)) for n in (2, 3)))
        5
        >>> a, b = memload.from_arrays(x=torch.zeros(2)), memload.from_arrays(x=torch.ones(3))
        >>> named = memload.concat({"a": a, "b": b})
        >>> named.names, named[4]
        (('a', 'b'), {'x': tensor(1.), 'dataset_idx': 1})
    """
    from memload.dataset.float32_view import Float32View

    named = len(datasets) == 1 and isinstance(datasets[0], Mapping)
    in_one = len(datasets) == 1 and not named and isinstance(datasets[0], Iterable)
    members: list[Any] = list(datasets[0] if in_one else datasets)
    by_name: Mapping[Any, Any] = datasets[0] if named else dict(enumerate(members))
    for member in by_name.values():
        if (joined := getattr(type(member), "__memload_concat__", None)) is not None:
            return joined(member, by_name, named)
    if any(isinstance(member, Float32View) for member in by_name.values()):
        return _concat_views(by_name, named)
    if named:
        return _concat_named(by_name)
    if not members:
        raise ValueError("concat needs at least one dataset")
    if not isinstance(members[0], Dataset):
        raise not_a_dataset(0, members[0])
    return members[0].concat(*members[1:])


def _concat_views(views: Mapping[Any, Any], named: bool) -> Float32View:
    """Join the datasets below views that convert alike, and return one view of them."""
    from memload.dataset.float32_view import Float32View

    for name, view in views.items():
        if type(view) is not Float32View:
            raise TypeError(
                f"dataset {name!r} is {kind(view)}, and others are Float32Views: join the datasets below them, and "
                "convert all of them by memload.Float32View(memload.concat([...]), norm_removed=...). "
                "torch.utils.data.ConcatDataset joins them as they are"
            )
    first, *others = views
    for name in others:
        for setting in ("norm_removed", "float16"):
            one, other = getattr(views[first], setting), getattr(views[name], setting)
            if one != other:
                raise ValueError(
                    f"the Float32Views convert differently: dataset {first!r} has {setting}={one}, dataset {name!r} "
                    f"{setting}={other}. memload.Float32View(memload.concat([...]), norm_removed=...) of the datasets "
                    "below converts all alike; torch.utils.data.ConcatDataset keeps each as it is"
                )
    bases = {name: view.base for name, view in views.items()}
    joined = concat(bases if named else list(bases.values()))
    return Float32View(joined, views[first].norm_removed, views[first].float16)


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


def _renamed(label: str, member: Dataset, names: Mapping[str, str]) -> Dataset:
    own = {old: new for old, new in names.items() if old in member.fields} if isinstance(names, Mapping) else names
    try:
        return member.rename(own)
    except ValueError as error:
        raise ValueError(f"dataset {label!r}: {error}") from None


def _check_member(name: Any, member: Any) -> None:
    check_name(name)
    if isinstance(member, GroupedDataset):
        raise TypeError(f"dataset {name!r} is joined already: give the datasets one by one, {list(member.names)!r} too")
    if not isinstance(member, Dataset):
        raise TypeError(
            f"dataset {name!r} is {kind(member)}; expected a dataset of memload.open or of memload.from_arrays"
        )
    if member.layout != "dict":
        raise ValueError(f"the rows of dataset {name!r} are no dicts: join the datasets, then use as_tuple or only")
    if TAG in member.fields:
        raise ValueError(
            f"dataset {name!r} has a field {TAG!r} already, which concat would add: give the datasets one by one "
            "instead of joined ones, or leave the field out when you write or open them"
        )


def _form(dataset: Dataset) -> Any:
    return dataset._of_graphs, [(name, field.signature) for name, field in dataset.fields.items()]


def _check_no_graphs(members: Mapping[str, Dataset]) -> None:
    graphs = [name for name, member in members.items() if member._of_graphs]
    if graphs:
        raise ValueError(
            f"the graphs of {graphs[0]!r} and the rows of the other datasets differ in attributes, dtypes or shapes, "
            "so that no batch can join them: give graphs that have the same attributes in the same order, or join "
            "ds.as_plain(), whose samples are dicts"
        )


def with_tag(dataset: Dataset, number: int) -> Dataset:
    """Return the dataset with a field ``dataset_idx`` that is `number` in every row; it takes 8 bytes in all."""
    return replace(dataset, fields={**dataset.fields, TAG: constant(TAG, number, len(dataset))})


def group_collate(samples: Sequence[Any]) -> list[Any]:
    """Return one collated batch for each dataset that occurs among the samples, in order of first appearance.

    This is a collate function for samples with a ``dataset_idx``, such as those of
    ``memload.concat({"name": dataset, ...})``. The stock DataLoader can use it, too; FastLoader runs it natively on
    such datasets. Rows within a group keep their order.

    Args:
        samples: dicts, each with ``dataset_idx``, an integer. torch's ``default_collate`` collates the samples with the
            same number, and makes ``dataset_idx`` an int64 tensor (k,).

    Raises:
        TypeError: a sample is not a mapping, or its ``dataset_idx`` is not an integer.
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
    """Return the groups of samples that a memload dataset gathered as a whole; None if these are ordinary samples."""
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
