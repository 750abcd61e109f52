"""How the rows of a pass are shared out over ranks: which rank a sampler draws for, and what is its own.

    rows of the epoch, the same on all ranks -> turns, one row for each rank -> the rows of one rank

Ranks take turns, so after a common step all of them together have had a prefix of the common order: one position tells
where all of them stand, and any number of ranks can go on from it.
"""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np
import torch

from memload.sampling.draws import Indices, RowStream

_MOST = (1 << 63) - 1  # that a torch generator takes for a seed of either sign


MOST_RANKS = 1 << 20
"""No run has more."""


class CommonRows(RowStream, Protocol):
    """The rows of all ranks in one pass, in an order that is the same on each of them."""

    def fill(self, count: int) -> Indices:
        """Draw so many rows beyond the last, so that each rank gets equally many; called at most once, at the end."""


class Ranks:
    """The rank that a sampler draws for, and of how many: as it was given, or as torch.distributed says when asked.

    So a sampler may be made before the processes of a run know each other, as under Lightning.
    """

    _given: tuple[int | None, int | None] = (None, None)

    def set_ranks(self, num_replicas: Any, rank: Any) -> None:
        """Draw for one rank of so many; None: as torch.distributed says, and 1 and 0 without it.

        Raises:
            TypeError, ValueError: these are no such numbers.
        """
        own = None if rank is None else count("rank", rank, least=0)
        self._given = None if num_replicas is None else count("num_replicas", num_replicas), own
        self.ranks  # noqa: B018 - whether the two go together

    @property
    def ranks(self) -> tuple[int, int]:
        """The number of ranks, and which of them this one is."""
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        ranks, own = self._given
        if ranks is None:
            ranks = torch.distributed.get_world_size() if together else 1
        if own is None and not together and ranks > 1:
            raise ValueError(
                f"num_replicas={ranks} needs rank=, from 0 to {ranks - 1}: torch.distributed is not initialised, so "
                "it cannot tell which of them this process is"
            )
        if own is None:
            own = torch.distributed.get_rank() if together else 0
        if own >= ranks:
            raise ValueError(f"rank must be below num_replicas, which is {ranks}; got {own}")
        return ranks, own

    @property
    def num_replicas(self) -> int:
        """How many ranks share the epoch."""
        return self.ranks[0]

    @property
    def rank(self) -> int:
        """Which of them this sampler draws for."""
        return self.ranks[1]

    @property
    def shares_by_itself(self) -> bool:
        """Whether the number of ranks was left to torch.distributed."""
        return self._given[0] is None


class RankRows:
    """What one rank gets of the rows of all; a `memload.sampling.draws.RowStream`.

    Common rows are drawn by whole turns: on all ranks at the same step, so that weights which change at a common step
    hold for the same draws on each.

    Args:
        rows: of all ranks, from the beginning of a pass or from where it is resumed.
        ranks: how many there are.
        rank: which of them this is.
        drop_last: whether a last turn without a row for each rank is left out, instead of filled.
    """

    paced = False

    def __init__(self, rows: CommonRows, ranks: int, rank: int, drop_last: bool) -> None:
        self._rows, self._ranks, self._rank, self._drop_last = rows, ranks, rank, drop_last
        self._part: Indices = np.empty(0, dtype=np.int64)  # of the next turn
        self._ended = False
        self.values, self.lookahead = rows.values, rows.lookahead // ranks
        self.total = rows.total // ranks if drop_last else -(-rows.total // ranks)

    def next(self, seen: int) -> Indices | None:
        """Draw the next rows of this rank; None after the last."""
        while not self._ended:
            rows = self._rows.next(seen * self._ranks)
            if rows is None:
                self._ended = True
                lacking = -len(self._part) % self._ranks
                if not lacking or self._drop_last:
                    return None
                rows = self._rows.fill(lacking)
            known = np.concatenate([self._part, rows])
            whole = len(known) // self._ranks * self._ranks
            self._part = known[whole:].copy()
            if whole:
                return known[self._rank : whole : self._ranks].copy()
        return None

    def position(self, seen: int) -> dict[str, Any]:
        """Return where all ranks stand together when each has seen so many rows."""
        return self._rows.position(min(seen, self.total) * self._ranks)  # a last batch may be short


def count(name: str, value: Any, least: int = 1) -> int:
    """Return an argument that is a number from `least` on.

    Raises:
        TypeError, ValueError: it is none; the message names the argument.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name} must be an integer from {least} on, got {value!r}")
    if number > _MOST:
        raise ValueError(f"{name} must be an integer from {least} to {_MOST}, got {value!r}")
    return number
