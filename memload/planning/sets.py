"""The data sets of a plan: which there are, whether one loader mixes them, and the settings of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import Subset

from memload.columns.fields import check_name
from memload.columns.numbers import kind
from memload.dataset.float32_view import Float32View
from memload.dataset.groups import GroupedDataset, concat, group_collate
from memload.engine.readers import rows_of_subset
from memload.planning.shape import JoinedShapes


@dataclass(frozen=True)
class Sets:
    """The data sets of a plan.

    Attributes:
        members: the data sets by name.
        joined: whether one loader makes batches of all of them; else each has a loader of its own, all open together.
        convert: makes what the joined loader reads of the joined data sets: these, or a view of them.
    """

    members: Mapping[str, Any]
    joined: bool
    convert: Callable[[Any], Any] = lambda dataset: dataset

    def as_read(self, placed: Mapping[str, Any]) -> Any:
        """Return the dataset that the joined loader reads."""
        return self.convert(concat(dict(placed)))


def sets_of(data: Any, collate_fn: Any = None) -> Sets | None:
    """Return the data sets of a plan's data; None if it is a single one.

    Raises:
        ValueError, TypeError: a mapping is empty, a name cannot be one, or a member has several data sets itself.
    """
    if isinstance(data, JoinedShapes):
        return Sets(data.members, joined=True)
    if isinstance(data, GroupedDataset):
        return Sets(_selected_parts(data), joined=True)
    if isinstance(data, Float32View):
        base, view = sets_of(data.base), data
        return base and replace(base, convert=lambda joined: Float32View(joined, view.norm_removed, view.float16))
    if type(data) is Subset:
        base = sets_of(data.dataset)
        whole = base and base.as_read(base.members)
        grouped = whole.base if isinstance(whole, Float32View) else whole
        if base is None or not isinstance(grouped, GroupedDataset):
            return None
        return replace(base, members=_selected_parts(grouped.select(rows_of_subset(data, len(grouped)))))
    return _of_mapping(data, collate_fn) if isinstance(data, dict) else None


def _of_mapping(data: dict[Any, Any], collate_fn: Any) -> Sets:
    if not data:
        raise ValueError("a plan needs at least one data set; got an empty mapping")
    for name, member in data.items():
        check_name(name)
        if sets_of(member) is not None:
            raise TypeError(f"data set {name!r} has several data sets itself ({kind(member)}): give each by its name")
    return Sets(dict(data), joined=collate_fn is group_collate)


def _selected_parts(grouped: GroupedDataset) -> dict[str, Any]:
    if grouped.rows is None:
        return dict(grouped.members)
    tags, inner = grouped.locate(np.arange(len(grouped), dtype=np.int64))
    return {name: member.select(inner[tags == k]) for k, (name, member) in enumerate(grouped.members.items())}


def settings_of(name: str, sets: Sets, given: Mapping[str, Any], loader: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a plan as they are for one of its data sets.

    Args:
        name: the name of the data set.
        sets: all of them.
        given: the arguments that may be mappings by data set: batch_size, tier, ram_dtype and cache_bytes.
        loader: the arguments of the loader, whose ``cast`` may be one.

    Raises:
        KeyError: a mapping names a data set that is not there, or a field that none has.
    """
    found = {key: _for_one(value, name, sets, key) for key, value in given.items() if key != "ram_dtype"}
    found["ram_dtype"] = _fields_for_one(given.get("ram_dtype"), name, sets, "ram_dtype")
    if loader.get("cast") is None:
        return {**found, "loader": loader}
    return {**found, "loader": {**loader, "cast": _fields_for_one(loader["cast"], name, sets, "cast")}}


def _for_one(value: Any, name: str, sets: Sets, argument: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    _check_names(value, sets, argument)
    return value.get(name, 1 if argument == "batch_size" else None)


def _fields_for_one(value: Any, name: str, sets: Sets, argument: str) -> Any:
    """Return the dtypes by field for one data set; a mapping by field holds for every data set that has the field."""
    if not isinstance(value, Mapping) or not value:
        return value
    if all(one is None or isinstance(one, Mapping) for one in value.values()):
        _check_names(value, sets, argument)
        return value.get(name) or None
    known = {one: _field_names(member) for one, member in sets.members.items()}
    if None in known.values():
        return value
    for field in value:
        if not any(field in (names or ()) for names in known.values()):
            there = ", ".join(repr(one) for one in dict.fromkeys(f for names in known.values() for f in names or ()))
            raise KeyError(f"{argument}= names the field {field!r}; the data sets have {there}")
    return {field: one for field, one in value.items() if field in (known[name] or ())} or None


def _check_names(value: Mapping[Any, Any], sets: Sets, argument: str) -> None:
    for name in value:
        if name not in sets.members:
            raise KeyError(f"{argument}= names the data set {name!r}; there are {', '.join(map(repr, sets.members))}")


def _field_names(data: Any) -> list[str] | None:
    fields = getattr(data.base if isinstance(data, Float32View) else data, "fields", None)
    return list(fields) if isinstance(fields, Mapping) else None
