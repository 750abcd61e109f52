"""How large the batches of a pass are, as far as its sampler and the dataset tell beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from memload import _core
from memload.engine.source import PipelineField, Source
from memload.sampling.batch_streams import MOST_ROWS, batches_known
from memload.sampling.draws import Indices

_BLOCK = 1 << 16  # rows whose lengths are looked up at once


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of the batches of one pass.

    Attributes:
        batch_rows: rows of a full batch; of the largest, where they differ and are known.
        slot_rows: rows that a slot is made for. Where rows differ in length it is made for so many of the longest.
        planned_rows: rows of the pass, 0 if its sampler does not say.
    """

    batch_rows: int
    slot_rows: int
    planned_rows: int

    @classmethod
    def of(cls, sampler: Any, source: Source) -> BatchSizes:
        """Work the sizes out for a batch sampler, or for what is taken for one."""
        if batches_known(sampler):
            largest = sampler.largest
            return cls(largest, _enough_rows(sampler, source, largest), sampler.rows)
        if type(sampler) is BatchSampler:
            rows, planned = min(_batch_rows(sampler), MOST_ROWS), _length(sampler.sampler)
            return cls(rows, max(1, min(rows, planned or source.rows)), planned or _length(sampler) * rows)
        rows = _batch_rows(sampler)
        return cls(rows, rows, _length(sampler) * rows)


def _length(sized: Any) -> int:
    try:
        return len(sized)
    except Exception:  # samplers need not have a length, and whoever asks for it gets their own error
        return 0


def _batch_rows(batch_sampler: Any) -> int:
    if isinstance(batch_sampler, list | tuple):
        return max(1, *map(_length, batch_sampler)) if batch_sampler else 1
    rows = getattr(batch_sampler, "batch_size", None)
    return rows if isinstance(rows, int) and rows > 0 else 1


def _enough_rows(sampler: Any, source: Source, largest: int) -> int:
    """So many rows that a slot for the longest of them takes any of the batches, to a factor of two.

    A batch of many rows has short ones, if it is filled by length: one of as many long rows never comes.
    """
    fields = source.pipeline_fields()
    ragged = any(isinstance(column, _core.Ragged) for column, *_ in fields)
    if not ragged or source.rows < len(sampler.costs) or not len(sampler):
        return largest
    rows, bounds = sampler.planned()
    most = sum(_bytes_of_batches(field, rows, bounds) for field in fields).max(initial=0)
    enough = 1
    while enough < largest and _core.Pipeline.ring_bytes(fields, enough, depth=1) // 2 < most:
        enough *= 2
    return min(enough, largest)


def _bytes_of_batches(field: PipelineField, rows: Indices, bounds: Indices) -> Any:
    """Bytes that the field takes in each batch, of the rows between its two bounds: float64 (batches,)."""
    column, _, _, bits, shape = field
    item, counts = bits // 8 * math.prod(shape), bounds[:, 1] - bounds[:, 0]
    if not isinstance(column, _core.Ragged):
        return counts * float(item)
    parts = [column.lengths(rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK)]
    lengths = np.concatenate([*parts, np.zeros(1, dtype=np.int64)])  # one more, so that every bound is a place in it
    combined = np.maximum if column.pads else np.add
    items = combined.reduceat(lengths, bounds.reshape(-1))[::2] * (counts if column.pads else column.planes)
    return items * float(item) + 8.0 * (counts + 1)
