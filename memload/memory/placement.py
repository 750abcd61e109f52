"""Where the rows of a planned run lie, and how many bytes they are there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memload._core import Storage
from memload.cast import Cast
from memload.cold import SMALL_ROW
from memload.dataset import Dataset
from memload.fields import Field
from memload.groups import GroupedDataset
from memload.memory.request import Request
from memload.memory.shape import DatasetShape, zero_field
from memload.memory.tiers import Tier
from memload.sizes import parse_size

IN_RAM = (Tier.RAM, Tier.PINNED)
PAST_CACHE = (Tier.DIRECT, Tier.HYBRID)
GATHERED_ON_GPU = (Tier.PINNED, Tier.DEVICE)
MAPPED = (Tier.MMAP, Tier.HYBRID)


@dataclass(frozen=True)
class Placement:
    """The rows of a data set, and the tier that holds them.

    Attributes:
        dataset: as the loader reads it from its tier.
        tier: which one.
        stored_bytes: of all rows, as they are stored.
        held_bytes: of all rows, as a tier in RAM or on a GPU holds them.
        cache_bytes: that the cache of the tier "hybrid" may take; 0 for others.
        files: that are read, by name.
        file_bytes: of these.
        array_bytes: of arrays that lie in RAM whatever the tier.
        planned: whether the data do not exist yet.
    """

    dataset: Any
    tier: Tier
    stored_bytes: int
    held_bytes: int
    cache_bytes: int
    files: tuple[str, ...]
    file_bytes: int
    array_bytes: int
    planned: bool

    @property
    def reads_past_cache(self) -> bool:
        """Whether rows may be read past the page cache: where the tier does so, and large rows that nobody read yet."""
        if self.tier in PAST_CACHE:
            return True
        return self.tier is Tier.MMAP and self.mapped_bytes > 0 and _largest_row(self.dataset) > SMALL_ROW

    @classmethod
    def of(cls, request: Request) -> Placement:
        """Return the placement that a request describes.

        Raises:
            TypeError: the data are a path, or nothing that says how large it is.
            ValueError: tier, dtypes and cache do not go together.
        """
        data, tier, casts, cache_bytes = request.data, Tier(request.tier), request.ram_casts, request.cache_bytes
        if isinstance(data, str | os.PathLike):
            raise TypeError(f"{str(data)!r} is a path, not a dataset: give memload.open({str(data)!r})")
        if casts and tier not in IN_RAM:
            raise ValueError(f'ram_dtype= is for rows that are loaded into RAM: tier="ram", not {str(tier)!r}')
        if (cache_bytes is not None) != (tier is Tier.HYBRID):
            raise ValueError(f'cache_bytes= is for tier="hybrid", which needs it; the tier is {str(tier)!r}')
        dataset = data.zeros() if isinstance(data, DatasetShape) else data
        planned = dataset is not data
        stored = _nbytes(dataset)
        held = recast(dataset, casts) if casts else dataset
        storages = [] if planned else _storages(dataset)
        files = {storage.name: storage.nbytes for storage in storages if storage.mapped}
        return cls(
            dataset=held,
            tier=tier,
            stored_bytes=stored,
            held_bytes=_nbytes(held),
            cache_bytes=parse_size(cache_bytes) if cache_bytes is not None else 0,
            files=tuple(files),
            file_bytes=sum(files.values()),
            array_bytes=sum(storage.nbytes for storage in storages if not storage.mapped),
            planned=planned,
        )

    @property
    def mapped_bytes(self) -> int:
        """Bytes of files that are mapped, and that the page cache can hold."""
        return self.stored_bytes if self.planned else self.file_bytes


def recast(dataset: Any, casts: Mapping[str, Cast]) -> Dataset:
    """Return a dataset of the same form in which some fields have other dtypes, and read as zeros.

    Raises:
        TypeError: it is no memload dataset.
        KeyError: there is no such field.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"ram_dtype= is for the datasets of memload, not for {type(dataset).__name__}")
    fields: dict[str, Field] = dict(dataset.fields)
    for name, cast in casts.items():
        if name not in fields:
            raise KeyError(f"ram_dtype= names the field {name!r}; the dataset has {', '.join(map(repr, fields))}")
        fields[name] = zero_field(name, cast.dtype, fields[name].shape, len(dataset))
    return replace(dataset, fields=fields)


def _largest_row(dataset: Any) -> int:
    """Bytes of the largest field of a row."""
    members = dataset.members.values() if isinstance(dataset, GroupedDataset) else [dataset]
    fields = [field for member in members for field in getattr(member, "fields", {}).values()]
    return max((field.row_bytes for field in fields), default=0)


def _nbytes(dataset: Any) -> int:
    nbytes = getattr(dataset, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    raise TypeError(
        f"{type(dataset).__name__} does not say how large it is: give a memload dataset, or a memload.DatasetShape"
    )


def _storages(dataset: Any) -> list[Storage]:
    """What the fields of a dataset are read from, each once."""
    members = dataset.members.values() if isinstance(dataset, GroupedDataset) else [dataset]
    fields = [field for member in members for field in getattr(member, "fields", {}).values()]
    return list(dict.fromkeys(storage for field in fields for storage in field.column.storages))
