"""Read rows in blocks where one element of many rows is stored together, so that reading single rows is expensive.

A field with such rows has `blocks`. Code that reads all rows, such as `memload.write`, reads them block by block. Each
block has a box of elements of all rows of a band:

            elements of a row
          +----+----+----+----+
    band  |  read one after   |    750 rows, say, that were stored in chunks of one element each
          +----+----+----+----+
    band  |    another        |
          +----+----+----+----+
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Box = tuple[slice, ...]
"""The elements of a row, as a slice with start and stop for each of its axes."""


class Block(NamedTuple):
    """Some elements of some rows of a band.

    Args:
        rows: the rows, counted from the band's first.
        box: the elements.
        values: (rows, *sides of the box), in this machine's byte order; valid until the next block.
    """

    rows: NDArray[np.int64] | slice
    box: Box
    values: NDArray[Any]


class Blocks(Protocol):
    """A reader of such rows; one thread at a time calls `read`."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    def bands(self) -> list[range]:
        """Return the runs of rows that are best read together, in order; they cover all rows."""

    def read(self, band: range, wanted: NDArray[np.bool_] | None, nbytes: int) -> Iterator[Block]:
        """Yield every wanted element of every row of a band once.

        Args:
            band: one of `bands`.
            wanted: bool, of the shape of a row; boxes without a true element may be left out. None: all elements.
            nbytes: the memory that may be in use, approximately; at least one block is.
        """


@dataclass(frozen=True)
class JoinedBlocks:
    """The rows of several members, one after the other."""

    members: tuple[Blocks, ...]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(member.rows for member in self.members)

    def bands(self) -> list[range]:
        """Return the bands of each member, numbered over all members."""
        return [
            range(first + band.start, first + band.stop)
            for first, member in zip(self._firsts(), self.members, strict=True)
            for band in member.bands()
        ]

    def read(self, band: range, wanted: NDArray[np.bool_] | None, nbytes: int) -> Iterator[Block]:
        """Yield the blocks of the one member that has this band."""
        for first, member in zip(self._firsts(), self.members, strict=True):
            if first <= band.start < first + member.rows:
                yield from member.read(range(band.start - first, band.stop - first), wanted, nbytes)

    def _firsts(self) -> list[int]:
        return list(itertools.accumulate((member.rows for member in self.members[:-1]), initial=0))


@dataclass(frozen=True)
class SelectedBlocks:
    """Selected rows of a member, in any order; rising rows keep the member's bands, others form one band."""

    member: Blocks
    numbers: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.numbers)

    def bands(self) -> list[range]:
        """Return the selected rows of each of the member's bands that has any, or one band of all rows."""
        if (self.numbers[1:] < self.numbers[:-1]).any():
            return [range(len(self.numbers))]
        stops = np.searchsorted(self.numbers, [band.stop for band in self.member.bands()]).tolist()
        return [range(start, stop) for start, stop in itertools.pairwise([0, *stops]) if stop > start]

    def read(self, band: range, wanted: NDArray[np.bool_] | None, nbytes: int) -> Iterator[Block]:
        """Yield the selected rows of the blocks of the member's bands."""
        numbers = self.numbers[band.start : band.stop]
        for theirs in self.member.bands():
            here = np.flatnonzero((numbers >= theirs.start) & (numbers < theirs.stop))
            for block in self.member.read(theirs, wanted, nbytes) if len(here) else ():
                places = np.full(len(theirs), -1)
                places[block.rows] = np.arange(len(block.values))
                wanted_places = places[numbers[here] - theirs.start]
                found = wanted_places >= 0
                yield Block(here[found], block.box, block.values[wanted_places[found]])


def join_blocks(members: Sequence[Blocks | None]) -> Blocks | None:
    """Return the rows of several members, one after the other; None if one member can be read row by row."""
    known = tuple(member for member in members if member is not None)
    return JoinedBlocks(known) if len(known) == len(members) else None


def select_blocks(blocks: Blocks | None, numbers: NDArray[np.int64]) -> Blocks | None:
    """Return these rows of `blocks`, in this order."""
    return None if blocks is None else SelectedBlocks(blocks, numbers)
