"""Messages of an AttributeError that say what to do instead.

a dataset:          names of other libraries for its methods
a grouped dataset:  these, and methods of a single dataset
a mapped dataset:   methods of what is mapped
to set one:         the methods that return changed datasets"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

_T = TypeVar("_T")

_FIELDS = "the names of the fields are list(ds.fields)"
_ROWS = "rows are chosen by ds.select(rows), with row numbers or one bool for each row"
_WRITE = "memload.write(path, ds) stores a dataset"
_MAP = "rows are tensors already; ds.map(fn), or batch_transform= of the loader, changes them"
_DEVICE = 'memload.to_device(ds, "cuda") keeps rows on a GPU, and device= of the loader moves batches'
_INSTEAD = {
    "keys": _FIELDS,
    "columns": _FIELDS,
    "column_names": _FIELDS,
    "features": "ds.fields has dtype and shape of each field",
    "dtypes": "ds.fields has dtype and shape of each field",
    "shape": "len(ds) is the number of rows, and ds.fields[name].shape the shape of one",
    "num_rows": "len(ds) is the number of rows",
    "filter": _ROWS,
    "loc": _ROWS,
    "iloc": _ROWS,
    "take": "the first n rows are ds.select(range(n))",
    "skip": "all but the first n rows are ds.select(range(n, len(ds)))",
    "head": "the first n rows are ds.select(range(n))",
    "shuffle": "memload.FastLoader(ds, shuffle=True) shuffles, or ds.select(torch.randperm(len(ds)))",
    "sort": 'ds.select(torch.argsort(ds.fields["x"].gather(range(len(ds))))) has the rows by a field',
    "repeat": "memload.concat([ds] * 2) has the rows twice; an epoch more is one more loop over the loader",
    "train_test_split": "ds.split(0.8, seed=0) gives two shuffled parts",
    "random_split": "ds.split(0.8, seed=0) gives two shuffled parts",
    "batch": "memload.FastLoader(ds, batch_size=...) makes batches",
    "to": _DEVICE,
    "cuda": _DEVICE,
    "pin_memory": "FastLoader(ds, pin_memory=True) gives pinned batches",
    "with_format": _MAP,
    "set_format": _MAP,
    "with_transform": _MAP,
    "set_transform": _MAP,
    "transform": _MAP,
    "save": _WRITE,
    "save_to_disk": _WRITE,
    "memmap": _WRITE,
    "rename_column": 'ds.rename({"old": "new"}) renames fields',
    "rename_columns": 'ds.rename({"old": "new"}) renames fields',
    "cast": "cast= of memload.FastLoader or memload.write converts fields",
    "cast_column": "cast= of memload.FastLoader or memload.write converts fields",
    "cache": "ds.with_tier(...) keeps rows in memory, and ds.map(fn).cache(...) results",
}

_EACH = "{name: one.%s for name, one in ds.members.items()}"
_JOINED = "each dataset gets it before they are joined, memload.concat(" + _EACH + ")"
_ROWS_ARE = "rows are dicts with dataset_idx; ds.members[name].%s is one dataset with other rows, and batch_transform= "
_PARTS = "of the loader gets the dict of each group"
_OF_GROUPS = {
    "with_lags": _JOINED % "with_lags(...)",
    "windows": _JOINED % "windows(...)",
    "with_ragged": _JOINED % "with_ragged(...)",
    "only": _ROWS_ARE % "only(...)" + _PARTS,
    "as_tuple": _ROWS_ARE % "as_tuple(...)" + _PARTS,
    "layout": "rows are dicts in every grouped dataset",
    "concat": 'memload.concat({**ds.members, "other": other}) joins one more',
    "lengths": "ds.members[name].lengths(...) are those of one dataset",
    "stats": "ds.members[name].stats() are those of one dataset, and loader.stats() those of a loader",
    "tier_reason": _EACH % "tier_reason",
    "borders": _EACH % "borders",
    "fields": _EACH % "fields",
    "casts": _EACH % "casts",
    **dict.fromkeys(("keys", "columns", "column_names"), _EACH % "fields"),
    **dict.fromkeys(("features", "dtypes", "shape"), _EACH % "fields" + " have dtypes and shapes"),
    **dict.fromkeys(("to", "cuda"), "device= of the loader moves batches, and ds.members[name] can lie on a GPU"),
    **dict.fromkeys(("save", "save_to_disk", "memmap"), "memload.write(path, ds.members[name]) stores one dataset"),
}


def instead_of(dataset: object, name: str) -> str:
    """Return what a dataset has instead of an attribute that other libraries have, or an empty text."""
    if name in vars(dataset).get("fields", ()):
        return f"ds.only({name!r}) is the dataset of that field, and ds[i][{name!r}] is it in row i"
    return _INSTEAD.get(name, "")


def instead_of_grouped(dataset: object, name: str) -> str:
    """Return what a grouped dataset has instead of an attribute of a dataset or of other libraries, or ''."""
    if any(name in member.fields for member in vars(dataset).get("members", {}).values()):
        return f"ds[i][{name!r}] is that field in row i, and ds.members[name].only({name!r}) the dataset of it"
    return _OF_GROUPS.get(name) or _INSTEAD.get(name, "")


def instead_of_mapped(dataset: object, name: str) -> str:
    """Return where a mapped dataset has an attribute of what it maps, or an empty text."""
    base = vars(dataset).get("base")
    if name.startswith("_") or not (hasattr(type(base), name) or name in getattr(base, "__dict__", ())):
        return ""
    called = f"{name}(...)" if callable(getattr(type(base), name, None)) else name
    return f"what is mapped has it, ds.base.{called}; fields and windows are chosen before .map(fn)"


_RETURN_OTHERS = ("select", "split", "rename", "only", "as_tuple", "windows", "with_ragged", "with_tier", "map")


def says_immutable(cls: type[_T]) -> type[_T]:
    """Have a frozen dataclass say, where an attribute is set or deleted, which methods return changed datasets."""
    names = ", ".join(f"ds.{name}" for name in _RETURN_OTHERS if hasattr(cls, name))
    set_it, delete_it = cls.__setattr__, cls.__delattr__
    words = (
        f"a {cls.__name__} is immutable: {names} return changed ones, memload.zip adds fields, and values of your own, "
        "such as a mean, belong in variables beside it"
    )

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807 - what a frozen dataclass has, in other words
        try:
            set_it(self, name, value)
        except FrozenInstanceError:
            raise FrozenInstanceError(f"cannot set {name!r}: {words}") from None

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        try:
            delete_it(self, name)
        except FrozenInstanceError:
            raise FrozenInstanceError(f"cannot delete {name!r}: {words}") from None

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__  # type: ignore[method-assign]
    return cls


class SaysInstead:
    """A class whose missing attributes say what there is instead."""

    _instead_of: ClassVar[Callable[[Any, str], str]]
    """Returns what there is instead of an attribute of that name, or an empty text."""

    if not TYPE_CHECKING:  # type checkers know the attributes that there are

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__") and (instead := self._instead_of(name)):
                words = f"{type(self).__name__!r} object has no attribute {name!r}: {instead}"
                raise AttributeError(words, name=name, obj=self)
            return object.__getattribute__(self, name)  # raises the original AttributeError
