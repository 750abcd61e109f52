"""Fill batches by the cost of their rows, such as nodes, edges or tokens, instead of by a number of rows.

    rows in the epoch's order -> batches within the budget -> the same number for every rank -> those of this rank

The epoch's batches follow from the costs, the seed and the epoch alone. So their number is known beforehand, all ranks
agree without communication, and a pass resumes anywhere by computing them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import Sampler

from memload.sampling.budget_filling import Costs, evened, filled
from memload.sampling.draws import Indices, Position
from memload.sampling.ranks import Ranks, count


@dataclass(frozen=True)
class BudgetEpoch:
    """The batches of all ranks in one epoch, before they are shared out.

    Attributes:
        rows: int64, in the order of an epoch.
        bounds: int64 (batches, 2), the begin and end of each batch in `rows`.
    """

    rows: Indices
    bounds: Indices


class BudgetBatchSampler(Ranks, Sampler[list[int]]):
    """Fills each batch with as many rows as a budget allows, in shuffled order: a ``batch_sampler``.

    The rows come in the epoch's order, and a batch is closed when the next row would not fit. Every row comes exactly
    once an epoch, over all ranks. As with torch's DistributedSampler, the order follows from ``seed + epoch``: call
    ``set_epoch`` before each epoch, or all of them are alike. ``len()`` is the number of batches that this rank gets in
    the epoch that was set.

    With several ranks, each gets the same number of batches: where their number is not divisible, the largest of the
    last batches are cut in two, or, with ``drop_last``, left out. Only where too few batches can be cut, such as
    batches of one row each, do rows come twice.

    FastLoader plans the batches as arrays and gathers them ahead. A million rows are planned in about a tenth of a
    second.

    Args:
        costs: one for each row, 0 or more: the nodes, edges, tokens or seconds of it, in any sequence, array or tensor.
        budget: the most that the costs of a batch add up to.
        shuffle: whether the rows come in random order; otherwise they keep their order.
        seed: the seed of the orders, 0 or more; the same on all ranks.
        buckets: the number of groups into which rows are sorted by cost, with equally many rows in each. A batch has
            rows of one group, and the batches of all groups are shuffled together. None: batches mix rows of all costs.
        most_rows: the most rows that a batch may have, however little they cost.
        padded: whether the cost of a batch is that of rows padded to the longest: the number of rows times the highest
            cost among them.
        drop_last: whether to leave out a last batch (with ``buckets``, the last one of each bucket) that could have
            taken more rows, and, with several ranks, the batches left over when each rank has the same number.
        num_replicas: ranks that share the epoch; None: those of torch.distributed, if it is initialised when a pass
            begins, otherwise 1.
        rank: the rank of this process, from 0; None: that of torch.distributed.

    Raises:
        ValueError: a row costs more than the budget (the message names the first such row), a cost is negative or not
            finite, or an argument is out of range.
        TypeError: ``costs`` are not numbers, or an argument is of the wrong type.

    Example:
        >>> sampler = BudgetBatchSampler([3, 1, 2, 2, 4], budget=4, shuffle=False)
        >>> len(sampler), list(sampler)
        (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        costs: Any,
        budget: float,
        *,
        shuffle: bool = True,
        seed: int = 0,
        buckets: int | None = None,
        most_rows: int | None = None,
        padded: bool = False,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        for name, flag in (("shuffle", shuffle), ("padded", padded), ("drop_last", drop_last)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} is True or False; got {flag!r}")
        self.costs = _checked_costs(costs)
        self.budget = _checked_budget(budget, self.costs)
        self.shuffle, self.padded, self.drop_last = shuffle, padded, drop_last
        self.seed = count("seed", seed, least=0)
        self.buckets = None if buckets is None else min(count("buckets", buckets), len(self.costs))
        self.most_rows = None if most_rows is None else count("most_rows", most_rows)
        self.set_ranks(num_replicas, rank)
        self.epoch = 0
        self._bucket_of = _bucket_of(self.costs, self.buckets or 1)
        self._latest: tuple[int, BudgetEpoch] | None = None

    @property
    def sampler(self) -> BudgetBatchSampler:
        """This object, because Lightning and accelerate call ``set_epoch`` on the sampler of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, whose order the next pass and ``len()`` have; each epoch has another order."""
        self.epoch = count("epoch", epoch, least=0)

    def __len__(self) -> int:
        return len(self._own())

    def __iter__(self) -> Iterator[list[int]]:
        batches, seen = self.stream(), 0
        while (rows := batches.next(seen)) is not None:
            yield rows.tolist()
            seen += 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}

    @property
    def rows(self) -> int:
        """Rows that this rank gets in the epoch."""
        bounds = self._own()
        return int((bounds[:, 1] - bounds[:, 0]).sum())

    @property
    def largest(self) -> int:
        """Rows of the largest batch that this rank gets in the epoch."""
        bounds = self._own()
        return int((bounds[:, 1] - bounds[:, 0]).max(initial=1))

    @property
    def nbytes(self) -> int:
        """Bytes of the order and the batches of an epoch."""
        epoch = self.batches(self.epoch)
        return epoch.rows.nbytes + epoch.bounds.nbytes

    def facts(self) -> dict[str, Any]:
        """Return the settings that decide the batches, as plain data; epoch and ranks belong to the position."""
        names = ("budget", "shuffle", "seed", "buckets", "most_rows", "padded", "drop_last")
        costs = xxhash.xxh3_64_hexdigest(self.costs.data)
        return {"rows": len(self.costs), "costs": costs, **{name: getattr(self, name) for name in names}}

    def stream(self, position: Position | None = None) -> BudgetBatches:
        """Return the batches of a pass as arrays for FastLoader, from a position on if one is given."""
        return BudgetBatches(self, position)

    def batches(self, epoch: int) -> BudgetEpoch:
        """Return the batches of all ranks in an epoch, and keep those of the latest epoch."""
        if self._latest is None or self._latest[0] != epoch:
            self._latest = None  # free the old batches before making new ones
            self._latest = epoch, self._filled(epoch)
        return self._latest[1]

    def planned(self) -> tuple[Indices, Indices]:
        """Return the rows of the epoch in order, and the begin and end of each of this rank's batches among them."""
        return self.batches(self.epoch).rows, self._own()

    def _own(self) -> Indices:
        ranks, rank = self.ranks
        bounds = evened(self.batches(self.epoch).bounds, ranks, drop_last=self.drop_last)
        return bounds[rank::ranks]

    def _filled(self, epoch: int) -> BudgetEpoch:
        generator = torch.Generator().manual_seed(self.seed + epoch)
        n = len(self.costs)
        rows = torch.randperm(n, generator=generator, device="cpu").numpy() if self.shuffle else np.arange(n)
        rows = rows[np.argsort(self._bucket_of[rows], kind="stable")] if self.buckets else rows
        ends = np.cumsum(np.bincount(self._bucket_of)).tolist()
        how = {"padded": self.padded, "drop_last": self.drop_last}
        bounds = filled(self.costs[rows], self.budget, ends, self.most_rows, **how)
        if self.buckets and self.shuffle:
            bounds = bounds[torch.randperm(len(bounds), generator=generator, device="cpu").numpy()]
        return BudgetEpoch(rows, bounds)


class BudgetBatches:
    """The batches of one rank in one pass, or in the remainder of a pass by any number of ranks.

    The position has, for each number of ranks that took batches of the epoch, how many they took together. The
    remaining batches are made divisible for the ranks that follow.
    """

    def __init__(self, sampler: BudgetBatchSampler, position: Position | None) -> None:
        self._sampler = sampler
        self._ranks, self._rank = sampler.ranks
        self._epoch: int | None = position["epoch"] if position else None
        self._taken: list[list[int]] = [[int(n) for n in pair] for pair in position["taken"]] if position else []
        self._bounds: list[list[int]] | None = None
        self._given = 0
        self.values = range(len(sampler.costs))

    def next(self, seen: int) -> Indices | None:  # noqa: ARG002 - as of every stream
        """Return the rows of the next batch; None after the last."""
        if self._bounds is None:
            self._epoch = self._sampler.epoch if self._epoch is None else self._epoch
            self._rows, self._bounds = self._left(self._epoch)
        if self._given == len(self._bounds):
            return None
        begin, end = self._bounds[self._given]
        self._given += 1
        return self._rows[begin:end]

    def position(self, seen: int) -> dict[str, Any]:
        """Return the epoch, and how many of its batches were taken by how many ranks."""
        ranks, taken = self._ranks, [list(pair) for pair in self._taken]
        if not taken or taken[-1][0] != ranks:
            taken.append([ranks, 0])
        taken[-1][1] += seen * ranks
        return {"epoch": self._epoch, "taken": [pair for pair in taken if pair[1]]}

    def _left(self, epoch: int) -> tuple[Indices, list[list[int]]]:
        sampler, batches = self._sampler, self._sampler.batches(epoch)
        bounds = batches.bounds
        for ranks, taken in [*self._taken, [self._ranks, 0]]:
            bounds = evened(bounds, ranks, drop_last=sampler.drop_last)[taken:]
        return batches.rows, bounds[self._rank :: self._ranks].tolist()


def _bucket_of(costs: Costs, buckets: int) -> Indices:
    """Return the bucket of each row; buckets have equally many rows, and rows of similar cost share a bucket."""
    bucket = np.empty(len(costs), dtype=np.min_scalar_type(buckets))  # small ints sort faster
    bucket[np.argsort(costs, kind="stable")] = np.arange(len(costs)) * buckets // len(costs)
    return bucket


def _checked_costs(costs: Any) -> Costs:
    array = costs.detach().cpu().numpy() if isinstance(costs, torch.Tensor) else np.asarray(costs)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"costs must be numbers, one for each row, got {array.dtype}")
    if array.ndim != 1 or not array.size:
        raise ValueError(f"costs must be a flat sequence of at least one number, got shape {array.shape}")
    bad = ~((array >= 0) & (array < np.inf))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"row {row} costs {array[row]}; costs must be finite, and 0 or more")
    if array.sum(dtype=np.float64) >= 2.0**63:
        raise ValueError(f"the costs add up to {array.sum(dtype=np.float64):g}; expected less than 2^63")
    own: Costs = array.astype(np.float64) if array.dtype.kind == "f" else array.astype(np.int64)
    own.flags.writeable = False
    return own


def _checked_budget(budget: Any, costs: Costs) -> float:
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.number):
        raise TypeError(f"budget must be a number, got {budget!r}")
    if not 0 < budget < np.inf:
        raise ValueError(f"budget must be positive and finite, got {budget}")
    number: float = budget.item() if isinstance(budget, np.number) else budget
    dear = np.flatnonzero(costs > number)
    if len(dear):
        row = int(dear[0])
        more = f", and so do {len(dear) - 1:,} more rows" if len(dear) > 1 else ""
        raise ValueError(
            f"row {row} costs {costs[row]}, more than the budget of {number}{more}: raise the budget, or leave such "
            "rows out of the dataset, as in ds.select(costs <= budget), and of the costs"
        )
    return number
