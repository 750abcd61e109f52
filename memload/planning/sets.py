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
from memload.dataset.grouped_tiers import of_fields, of_set, only_selected
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
    return only_selected(grouped.members, *grouped.locate(np.arange(len(grouped), dtype=np.int64)))[0]


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
    found = {
        key: of_set(value, name, sets.members, key, 1 if key == "batch_size" else None)
        for key, value in given.items()
        if key != "ram_dtype"
    }
    fields = {one: _field_names(member) for one, member in sets.members.items()}
    found["ram_dtype"] = of_fields(given.get("ram_dtype"), name, fields, "ram_dtype")
    if loader.get("cast") is None:
        return {**found, "loader": loader}
    return {**found, "loader": {**loader, "cast": of_fields(loader["cast"], name, fields, "cast")}}


def _field_names(data: Any) -> list[str] | None:
    fields = getattr(data.base if isinstance(data, Float32View) else data, "fields", None)
    return list(fields) if isinstance(fields, Mapping) else None
