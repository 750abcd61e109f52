"""Share the rows of a pass out over ranks.

    rows of the epoch, the same on all ranks -> turns, one row for each rank -> the rows of one rank

Ranks take turns, so after each step the rows of all ranks together are a prefix of the common order. One position
therefore describes all ranks, and any number of ranks can resume from it.
"""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np
import torch

from memload.sampling.draws import Indices, RowStream

_MOST = (1 << 63) - 1  # the largest seed that a torch generator accepts as a signed integer

MOST_RANKS = 1 << 20
"""The upper bound of the number of ranks in a state."""


class CommonRows(RowStream, Protocol):
    """The rows of all ranks in one pass, in an order that is the same on each of them."""

    def fill(self, count: int) -> Indices:
        """Draw `count` rows after the last, so that all ranks get equally many; called at most once, at the end."""


class Ranks:
    """The rank that a sampler draws for and the number of ranks, from the arguments or from torch.distributed.

    torch.distributed is asked at each access. So a sampler may be made before the process group exists, as with
    Lightning.
    """

    _given: tuple[int | None, int | None] = (None, None)

    def set_ranks(self, num_replicas: Any, rank: Any) -> None:
        """Draw for rank `rank` of `num_replicas`; None: the value of torch.distributed, or 1 and 0 without it.

        Raises:
            TypeError, ValueError: an argument is not an integer or out of range.
        """
        given_rank = None if rank is None else count("rank", rank, least=0)
        self._given = None if num_replicas is None else count("num_replicas", num_replicas), given_rank
        self.ranks  # noqa: B018 - the property checks the two together

    @property
    def ranks(self) -> tuple[int, int]:
        """The number of ranks, and the rank that this sampler draws for."""
        initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
        ranks, rank = self._given
        if ranks is None:
            ranks = torch.distributed.get_world_size() if initialized else 1
        if rank is None and not initialized and ranks > 1:
            raise ValueError(
                f"num_replicas={ranks} needs rank=, from 0 to {ranks - 1}: torch.distributed is not initialised, so "
                "the rank of this process is unknown"
            )
        if rank is None:
            rank = torch.distributed.get_rank() if initialized else 0
        if rank >= ranks:
            raise ValueError(f"rank must be below num_replicas, which is {ranks}; got {rank}")
        return ranks, rank

    @property
    def num_replicas(self) -> int:
        """The number of ranks that share the epoch."""
        return self.ranks[0]

    @property
    def rank(self) -> int:
        """The rank that this sampler draws for."""
        return self.ranks[1]

    @property
    def shares_by_itself(self) -> bool:
        """Whether the number of ranks comes from torch.distributed rather than from an argument."""
        return self._given[0] is None


class RankRows:
    """The rows of one rank, taken from the common rows; a `memload.sampling.draws.RowStream`.

    All ranks draw the common rows at the same step. So weights that change at a common step apply to the same draws
    on every rank.

    Args:
        rows: the rows of all ranks, from the start of the pass or from the position to resume at.
        ranks: the number of ranks.
        rank: the rank whose rows are returned.
        drop_last: whether an incomplete last turn is left out instead of filled.
    """

    paced = False

    def __init__(self, rows: CommonRows, ranks: int, rank: int, drop_last: bool) -> None:
        self._rows, self._ranks, self._rank, self._drop_last = rows, ranks, rank, drop_last
        self._part: Indices = np.empty(0, dtype=np.int64)  # the first rows of the next turn
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
            rows = np.concatenate([self._part, rows])
            whole_turns = len(rows) // self._ranks * self._ranks
            self._part = rows[whole_turns:].copy()
            if whole_turns:
                return rows[self._rank : whole_turns : self._ranks].copy()
        return None

    def position(self, seen: int) -> dict[str, Any]:
        """Return the common position of all ranks after each has seen `seen` rows."""
        return self._rows.position(min(seen, self.total) * self._ranks)  # the last batch may be short


def count(name: str, value: Any, least: int = 1) -> int:
    """Return an argument as an integer from `least` to 2**63 - 1.

    Raises:
        TypeError: the argument is not an integer; the message names it.
        ValueError: the integer is out of range, or a bool.
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
