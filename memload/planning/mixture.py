"""The bytes of slots whose batches mix data sets: each set has slots for whole batches, and rows of it fill a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from memload.dataset.group_batches import GroupSettings
from memload.sampling.samplers import MixingSampler

EPOCHS = 4
"""Epochs of a run whose fullest slots are planned for: the share of a data set in the fullest of n batches rises with
the square root of log n, by a tenth of a share of 16 in 32 rows from 4 epochs of 30 batches to 40."""


@dataclass(frozen=True)
class Mixture:
    """How full the slots of each data set become in a pass over joined data sets.

    Attributes:
        rows: the most rows of each data set in a slot of its own.
        shares: the share of each data set in all batches; they add up to 1.
        settings: the settings of the pass.
    """

    rows: tuple[int, ...]
    shares: tuple[float, ...]
    settings: GroupSettings

    @classmethod
    def of(cls, settings: GroupSettings, sampler: Any) -> Mixture:
        """Return the mixture of a pass.

        A slot is used by every n-th batch of n slots, and the fullest of its batches counts.
        """
        counts = [one.source.rows for one in settings.each]
        weights = [float(weight) for weight in _weights(sampler, counts)]
        shares = tuple(weight / (sum(weights) or 1.0) for weight in weights)
        slots = settings.depth + 1
        if settings.in_order or len(counts) == 1:
            full = [min(one.slot_rows, -(-rows // slots)) for one, rows in zip(settings.each, counts, strict=True)]
            return cls(tuple(full), shares, settings)
        visits = EPOCHS * sum(counts) / max(1, settings.slot_rows) / slots
        size = settings.slot_rows
        return cls(tuple(_fullest(size, share, visits) for share in shares), shares, settings)

    @property
    def ring_bytes(self) -> int:
        """Bytes of memory that the slots of all data sets take, and the decoded chunks that they keep."""
        each = list(zip(self.settings.each, self.rows, strict=True))
        kept = sum(one.tile_bytes for one, _ in each)
        return kept + sum((one.ring_bytes - one.tile_bytes) * rows // max(1, one.slot_rows) for one, rows in each)

    def mean(self, batch_bytes: list[int]) -> int:
        """Return the bytes of a mean batch, from those of a batch of each data set alone; in order: of the largest."""
        if self.settings.in_order:
            return max(batch_bytes)
        return round(sum(share * nbytes for share, nbytes in zip(self.shares, batch_bytes, strict=True)))


def compositions(counts: Sequence[int], sampler: Any, batch_rows: int, *, in_order: bool) -> list[tuple[int, ...]]:
    """Return the rows of each data set in a batch for each data set: the batch of a run that has most rows of it.

    Args:
        counts: the rows of each data set.
        sampler: the sampler of the loader.
        batch_rows: the rows of a batch.
        in_order: whether a batch has rows of one data set only, one data set after the other.

    Example:
        >>> compositions([700, 300], None, 100, in_order=True)
        [(100, 0), (0, 100)]
        >>> compositions([700, 300], None, 100, in_order=False)
        [(80, 20), (60, 40)]
    """
    weights = [float(weight) for weight in _weights(sampler, list(counts))]
    shares = [weight / (sum(weights) or 1.0) for weight in weights]
    if in_order:
        fullest = [min(batch_rows, rows) for rows in counts]
        return [tuple(rows if k == j else 0 for j in range(len(counts))) for k, rows in enumerate(fullest) if rows]
    batches = EPOCHS * sum(counts) / max(1, batch_rows)
    found = []
    for k, share in enumerate(shares):
        most = _fullest(batch_rows, share, batches)
        others = 1 - share or 1.0
        found.append(tuple(most if k == j else round((batch_rows - most) * p / others) for j, p in enumerate(shares)))
    return list(dict.fromkeys(found))


def _fullest(size: int, share: float, batches: float) -> int:
    """Return the rows of a data set in the fullest of so many batches of `size` drawn rows.

    They are binomial, with the mean n p and the variance n p (1 - p). The expected largest of m such numbers is that of
    m normal ones, by Blom's formula (Statistical Estimates and Transformed Beta-Variables, 1958): the quantile
    (m - 0.375) / (m + 0.25).
    """
    m = max(2.0, batches)
    deviations = NormalDist().inv_cdf((m - 0.375) / (m + 0.25))
    return min(size, round(size * share + deviations * math.sqrt(size * share * (1 - share))))


def _weights(sampler: Any, counts: list[int]) -> list[Any]:
    if isinstance(sampler, MixingSampler) and len(sampler.weights) == len(counts):
        return list(sampler.weights)
    return counts
