"""Data sets of a group on other tiers: arguments for all, or for one by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from memload.casts.rule import casts_by_field
from memload.dataset.dataset import Dataset
from memload.engine.tiers.placing import TierOptions, as_tier, check_option_names, placed
from memload.engine.tiers.tier import Tier
from memload.sampling.draws import Indices


def with_tiers(
    members: Mapping[str, Dataset], tier: Any, ram_dtype: Any, cache_bytes: Any, options: Mapping[str, Any]
) -> dict[str, Dataset]:
    """Return data sets on their tiers; see `GroupedDataset.with_tier`.

    Data sets of the same tier without a size of their own are placed together: "auto" chooses by the bytes of all of
    them, and one cache holds rows of all.

    Raises:
        KeyError: an argument names a data set that is not there, or a field that none has.
        MemorySpaceError, TypeError, ValueError: as `Dataset.with_tier`.
    """
    check_option_names(options, "with_tier")
    fields = {name: list(member.fields) for name, member in members.items()}
    made, together = dict(members), dict[Tier, dict[str, Any]]()
    for name, member in members.items():
        wanted = of_set(tier, name, members, "tier")
        casts = casts_by_field(of_fields(ram_dtype, name, fields, "ram_dtype"), "ram_dtype")
        size = of_set(cache_bytes, name, members, "cache_bytes")
        if wanted is None:
            if size is not None and isinstance(cache_bytes, Mapping):
                raise TypeError(f"cache_bytes= names the data set {name!r}, which has no tier= here: give both")
            continue
        where = as_tier(wanted)
        TierOptions(cache_bytes=size).check_for(where)
        if size is None and where in (Tier.AUTO, Tier.HYBRID, Tier.RAM):
            together.setdefault(where, {})[name] = casts
        else:
            made[name] = member.with_tier(where, ram_dtype=casts, cache_bytes=size, **options)
    for where in sorted(
        together, key=[Tier.RAM, Tier.HYBRID, Tier.AUTO].index
    ):  # what is loaded leaves less for others
        made |= _placed_together({name: members[name] for name in together[where]}, where, together[where], options)
    return made


def _placed_together(
    members: Mapping[str, Dataset], tier: Tier, casts: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Dataset]:
    """Return data sets on one tier; messages name their fields as NAME/FIELD."""
    if options.get("device") is not None:
        raise TypeError(
            f'device= is for tier="device", "pinned" and "split", not "{tier}"; a loader takes it for all tiers'
        )
    places = {f"{name}/{field}": (name, field) for name, member in members.items() for field in member.fields}
    wanted = {f"{name}/{field}": cast for name, each in casts.items() for field, cast in (each or {}).items()}
    given = {key: value for key, value in options.items() if key != "device"}
    fields = {key: members[name].fields[field] for key, (name, field) in places.items()}
    found = placed(fields, tier, TierOptions(ram_dtype=wanted or None, **given))
    return {
        name: replace(member, fields={field: found[f"{name}/{field}"] for field in member.fields})
        for name, member in members.items()
    }


def only_selected(members: Mapping[str, Dataset], tags: Indices, inner: Indices) -> tuple[dict[str, Dataset], Indices]:
    """Return data sets that have only the rows of a selection, and the selection of the same rows of these, int64 (n,).

    Args:
        members: the data sets by name.
        tags: int64 (n,), the number of each selected row's data set.
        inner: int64 (n,), the row's number there.

    Example:
        >>> import memload, numpy
        >>> a = memload.from_arrays(x=numpy.arange(5))
        >>> found, rows = only_selected({"a": a, "b": a}, numpy.array([1, 0, 1]), numpy.array([4, 2, 0]))
        >>> [len(one) for one in found.values()], rows.tolist()
        ([1, 2], [1, 0, 2])
    """
    found = {name: one.select(inner[tags == k]) for k, (name, one) in enumerate(members.items())}
    rows = np.empty(len(tags), dtype=np.int64)
    rows[np.argsort(tags, kind="stable")] = np.arange(len(tags))
    return found, rows


def of_set(value: Any, name: str, names: Iterable[str], argument: str, default: Any = None) -> Any:
    """Return the value of an argument for one data set: the value for all, or that of its name in a mapping.

    Raises:
        KeyError: a mapping names a data set that is not there.

    Example:
        >>> of_set({"mouse": "ram"}, "mouse", ["mouse", "monkey"], "tier")
        'ram'
    """
    if not isinstance(value, Mapping):
        return value
    _check_names(value, names, argument)
    return value.get(name, default)


def of_fields(value: Any, name: str, fields: Mapping[str, Iterable[str] | None], argument: str) -> Any:
    """Return the dtypes by field for one data set; a mapping by field holds for every data set that has the field.

    Args:
        value: a mapping by field, or by data set and field; or None.
        name: the name of the data set.
        fields: the names of the fields of each data set; None where they are not known.
        argument: the name of the argument, for messages.

    Raises:
        KeyError: a mapping names a data set that is not there, or a field that none has.

    Example:
        >>> of_fields({"stim": "float16"}, "mouse", {"mouse": ["stim"], "monkey": ["robs"]}, "ram_dtype")
        {'stim': 'float16'}
    """
    if not isinstance(value, Mapping) or not value:
        return value
    if all(one is None or isinstance(one, Mapping) for one in value.values()):
        _check_names(value, fields, argument)
        return value.get(name) or None
    if None in fields.values():
        return value
    for field in value:
        if not any(field in (names or ()) for names in fields.values()):
            there = ", ".join(repr(one) for one in dict.fromkeys(f for names in fields.values() for f in names or ()))
            raise KeyError(f"{argument}= names the field {field!r}; the data sets have {there}")
    return {field: one for field, one in value.items() if field in (fields[name] or ())} or None


def _check_names(value: Mapping[Any, Any], names: Iterable[str], argument: str) -> None:
    known = list(names)
    for name in value:
        if name not in known:
            raise KeyError(f"{argument}= names the data set {name!r}; there are {', '.join(map(repr, known))}")
