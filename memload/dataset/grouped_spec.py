"""The gather specification for `group_collate`, which assigns the rows of a batch to groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Subset

from memload.casts.rule import Cast
from memload.columns.fields import TAG, Field
from memload.columns.numbers import by_first_appearance
from memload.dataset.groups import GroupedDataset, with_tag
from memload.engine.cast_batches import check_groups
from memload.engine.gather_spec import GatherSpec, Key, NotNative
from memload.engine.layout import DictOf, Only
from memload.engine.readers import check_unaltered, resolve, rows_of_subset
from memload.sampling.draws import Indices

if TYPE_CHECKING:
    from memload.dataset.float32_view import Float32View

_TAG_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Share:
    """The rows of a batch that come from one source.

    Attributes:
        source: the index of the source.
        rows: int64 (n,), row numbers of that source, ordered by group.
        counts: the number of rows of each group; their sum is n.
    """

    source: int
    rows: Indices
    counts: list[int]


@dataclass(frozen=True)
class GroupedSpec:
    """A dataset whose batches are lists of groups.

    Attributes:
        sources: one source for each dataset if their fields differ; else a single source of all rows.
        rows: the number of rows.
        locate: maps row numbers, all in range, to their ``dataset_idx`` and to their rows in their source.
        selection_bytes: bytes of the row selections that were made to read the dataset.
    """

    sources: tuple[GatherSpec, ...]
    rows: int
    locate: Callable[[Indices], tuple[Indices, Indices]]
    selection_bytes: int = 0

    @property
    def fields(self) -> dict[Key, Field]:
        """All fields, by the index of their source and their key."""
        return {(k, str(key)): field for k, source in enumerate(self.sources) for key, field in source.fields.items()}

    def shares(self, rows: Indices) -> list[Share]:
        """Return the share of each source in a batch of these rows; groups are in order of first appearance.

        Raises:
            IndexError: a row number is out of range.
            ShardReadError: the file with the ``dataset_idx`` of the rows cannot be read.
        """
        bad = (rows < 0) | (rows >= self.rows)
        if bad.any():
            raise IndexError(f"row {rows[bad.argmax()]} is not one of the {self.rows} rows of the data set")
        tags, inner = self.locate(rows)
        groups = by_first_appearance(tags)
        if len(self.sources) > 1:
            return [Share(int(tags[group[0]]), inner[group], [len(group)]) for group in groups]
        return [Share(0, inner[np.concatenate(groups)], [len(group) for group in groups])]

    def with_casts(self, casts: Mapping[Any, Cast]) -> GroupedSpec:
        """Return this source with casts for some fields, in every dataset that has them.

        Raises:
            KeyError: a cast names a field that no dataset has.
            ValueError: a field has a cast already, or the cast does not fit its dtype.
        """
        check_groups(casts)
        known = dict.fromkeys(key for source in self.sources for key in source.fields)
        for key in casts:
            if key not in known:
                raise KeyError(f"cast= names the field {key!r}; the datasets have {', '.join(map(repr, known))}")
        cast = [one.with_casts({key: casts[key] for key in casts if key in one.fields}) for one in self.sources]
        return replace(self, sources=tuple(cast))


def resolve_groups(dataset: Any) -> GroupedSpec:
    """Return the gather specification of ``dataset`` for `group_collate`.

    Raises:
        NotNative: the engine cannot read the dataset; the message says why.
    """
    if not _holds_groups(dataset):
        return _of_source(resolve(dataset))
    check_unaltered(dataset)
    if isinstance(dataset, Subset):
        return _of_subset(dataset)
    from memload.dataset.float32_view import Float32View

    if isinstance(dataset, Float32View):
        return _of_view(dataset)
    tagged = [resolve(with_tag(member, k)) for k, member in enumerate(dataset.members.values())]
    return GroupedSpec(tuple(tagged), len(dataset), dataset.locate)


def _holds_groups(dataset: Any) -> bool:
    from memload.dataset.float32_view import Float32View

    while isinstance(dataset, Subset | Float32View):
        dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.base
    return isinstance(dataset, GroupedDataset)


def _of_subset(dataset: Subset[Any]) -> GroupedSpec:
    base = resolve_groups(dataset.dataset)
    rows = rows_of_subset(dataset, base.rows)
    return GroupedSpec(
        base.sources, len(rows), lambda chosen: base.locate(rows[chosen]), base.selection_bytes + rows.nbytes
    )


def _of_view(view: Float32View) -> GroupedSpec:
    base = resolve_groups(view.base)
    if any(source.casts for source in base.sources):
        raise NotNative("A Float32View of a Float32View converts twice: one view, or cast=, is enough.")
    rules = [view.rules({str(name): field for name, field in one.fields.items()}) for one in base.sources]
    sources = tuple(one.with_casts(rule) for one, rule in zip(base.sources, rules, strict=True))
    return replace(base, sources=sources)


def _of_source(source: GatherSpec) -> GroupedSpec:
    tag = source.fields.get(TAG)
    if source.maps:
        raise NotNative(
            "group_collate of mapped samples needs the samples themselves: group the dataset before it is mapped, and "
            "give batch_transform=, which is called with the groups."
        )
    flat = isinstance(source.layout, DictOf) and all(member == Only() for _, member in source.layout.members)
    if not flat or tag is None or tag.shape or tag.dtype not in _TAG_DTYPES:
        raise NotNative(
            f"group_collate needs dicts of tensors with an integer {TAG!r}, which the samples are not: join datasets "
            'by memload.concat({"name": dataset, ...}).'
        )
    return GroupedSpec((source,), source.rows, lambda rows: (tag.gather(rows).numpy(), rows), source.selection_bytes)
