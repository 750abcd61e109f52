"""The bytes that an epoch over rows of a store fetches, by the order of its rows and the room of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memload import _core
from memload.columns.fields import AnyColumn, Field
from memload.formats.remote.remote_shards import origins_of
from memload.sampling.block_shuffle import BlockShuffle
from memload.sizes import format_size

_MOST_ROWS = 1 << 22  # whose blocks are found; of more rows, whole sets count
_SAMPLED = 1000  # rows of which the mean number of blocks is taken


@dataclass(frozen=True)
class Network:
    """What an epoch over all rows fetches from stores, on one machine.

    With a cache that holds the set, and in orders that use each block once, the bytes are those of the blocks. In
    other orders they are an upper bound: each row fetches its blocks, but for the share that the cache has room for.

    Attributes:
        rows: the rows of an epoch.
        cold_bytes: bytes that an epoch with an empty cache fetches, at most.
        warm_bytes: bytes that each later epoch fetches, at most.

    Example:
        >>> network = Network(rows=1000, cold_bytes=270_000_000, warm_bytes=0)
        >>> network.per_second(100)
        (27000000.0, 0.0)
    """

    rows: int
    cold_bytes: int
    warm_bytes: int

    def per_second(self, rows_per_second: float) -> tuple[float, float]:
        """Return the bytes in a second that a loop of so many rows in a second needs, in the first and later epochs."""
        share = rows_per_second / max(1, self.rows)
        return self.cold_bytes * share, self.warm_bytes * share

    def __str__(self) -> str:
        cold, warm = self.per_second(1000)
        return (
            f"network: a first epoch fetches {format_size(self.cold_bytes)} at most, a later one "
            f"{format_size(self.warm_bytes)}; 1,000 rows in a second need {format_size(round(cold))} and "
            f"{format_size(round(warm))} in a second."
        )

    @classmethod
    def of(cls, fields: Sequence[Field], rows: int, loader: dict[str, Any], *, kept: bool) -> Network | None:
        """Return what an epoch fetches; None if no row lies in a store.

        Args:
            fields: the fields that are read.
            rows: the rows of an epoch.
            loader: arguments of FastLoader.
            kept: whether rows are loaded once and stay in memory.
        """
        columns = [field.column for field in fields]
        caches = origins_of(columns)
        if not caches:
            return None
        once = sum(_block_bytes(columns, rows).values())
        room = sum({id(cache.room): cache.limit for cache in caches}.values())
        if kept or once <= room:
            return cls(rows, once, 0)
        if isinstance(loader.get("sampler"), BlockShuffle) or not (loader.get("shuffle") or loader.get("sampler")):
            return cls(rows, once, once)
        uses = _used_bytes(columns, rows)
        return cls(rows, uses, round(uses * (1 - room / once)))


def _block_bytes(columns: Sequence[AnyColumn], rows: int) -> dict[int, int]:
    """Return the bytes of all blocks of some columns, for each cache."""
    if rows > _MOST_ROWS:
        return {id(cache): cache.nbytes for cache in origins_of(columns)}
    return {id(one): one.bytes_of(blocks) for one, blocks in _core.BlocksOf(list(columns))(np.arange(rows))}


def _used_bytes(columns: Sequence[AnyColumn], rows: int) -> int:
    """Return the bytes of the blocks of each row, added up; from a sample, if there are many rows."""
    find, sample = _core.BlocksOf(list(columns)), np.unique(np.linspace(0, rows - 1, _SAMPLED).astype(np.int64))
    found = sum(cache.bytes_of(blocks) for row in sample for cache, blocks in find(np.array([row])))
    return int(found * rows / len(sample))
