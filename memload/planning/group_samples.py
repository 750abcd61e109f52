"""Batches of groups without memory, for the steps of plans: for each data set the batch with most rows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memload.columns.fields import TAG
from memload.dataset.group_batches import GroupSettings
from memload.dataset.grouped_spec import GroupedSpec
from memload.engine.gather_spec import GatherSpec, Key
from memload.loader.fast_loader import FastLoader
from memload.nested import leaves_with_paths
from memload.planning.mixture import compositions

_COUNTED = 100_000  # rows of data sets of one form that are looked up, to count those of each data set
_MOST = 8  # batches whose steps are compared: those with most bytes

SampleField = Callable[[GatherSpec, Key, int], Any]
Others = Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class SampleBatches:
    """Batches of a loader; the one whose step takes most memory counts.

    Attributes:
        each: the batches.
        others: reads batches that the loader gives before these, which steps are made with, too; None: there are none.
    """

    each: tuple[Any, ...]
    others: Others | None = None


def batches_in(sample: Any) -> Iterator[Any]:
    """Yield the batches of a sample: those of `SampleBatches`, else the sample itself."""
    yield from sample.each if isinstance(sample, SampleBatches) else [sample]


def others_of(sample: Any) -> Others | None:
    """Return what reads the other batches of `SampleBatches`; None of another sample, which has none."""
    return sample.others if isinstance(sample, SampleBatches) else None


def tags_in(sample: Any) -> list[torch.Tensor]:
    """Return the numbers of data sets in a batch of groups, by which models choose layers: tensors on the CPU."""
    found = (leaf for path, leaf in leaves_with_paths(sample) if path and path[-1] == TAG)
    return [one for one in found if isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.ndim < 2]


def group_batches(loader: FastLoader[Any], source: GroupedSpec, sample_field: SampleField) -> SampleBatches:
    """Return batches of a loader over joined data sets, on "meta"; their numbers of data sets have values.

    Args:
        loader: the loader.
        source: what it reads.
        sample_field: returns a field of a batch of so many rows.
    """
    access = loader.__memload_loader__()
    request = access.asks()
    settings = GroupSettings.of(request, source.with_casts(request.casts))
    names, counts = _counts(source)
    found = []
    for rows in compositions(counts, loader.sampler, settings.slot_rows, in_order=settings.in_order):
        groups = [(k, n) for k, n in zip(names, rows, strict=True) if n]
        found.append([_group(settings.source, k, n, sample_field) for k, n in groups])
    return SampleBatches(tuple(sorted(found, key=_nbytes, reverse=True)[:_MOST]))


def _counts(source: GroupedSpec) -> tuple[list[int], list[int]]:
    """Return the numbers of the data sets, and the rows of each, counted among rows at equal distances."""
    rows = np.linspace(0, max(0, source.rows - 1), min(source.rows, _COUNTED)).round().astype(np.int64)
    tags, counts = np.unique(source.locate(rows)[0], return_counts=True)
    return tags.tolist(), (counts * source.rows // max(1, len(rows))).tolist()


def _group(source: GroupedSpec, tag: int, rows: int, sample_field: SampleField) -> dict[str, Any]:
    one = source.sources[tag if len(source.sources) > 1 else 0]
    made: dict[str, Any] = one.layout.build(iter([sample_field(one, key, rows) for key in one.fields]))
    return {**made, TAG: torch.full((rows,), tag)}


def _nbytes(batch: list[dict[str, Any]]) -> int:
    return sum(one.nbytes for group in batch for one in group.values() if isinstance(one, torch.Tensor))
