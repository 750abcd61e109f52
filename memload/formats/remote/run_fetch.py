"""The requests for claimed blocks, one for those that are neighbours in one file of a set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memload._core import BlockTable
from memload.errors import ShardReadError
from memload.formats.remote.cache_folder import PINNED
from memload.formats.remote.objects import Part

if TYPE_CHECKING:
    from memload.formats.remote.block_cache import BlockCache


@contextlib.contextmanager
def claiming(table: BlockTable, claims: list[NDArray[np.int64]]) -> Iterator[None]:
    """What is left in a list of what was claimed is absent again where an interrupt or an error comes."""
    try:
        yield
    except BaseException:
        for claimed in claims:
            table.failed(claimed)
        raise


def runs_of(blocks: NDArray[np.int64], begins: frozenset[int], most: int) -> list[tuple[int, int]]:
    """Return rising numbers of blocks as runs (first, count) of neighbours in one file, none longer than `most`."""
    runs: list[tuple[int, int]] = []
    first = count = 0
    for block in blocks.tolist():
        if count and first + count == block and count < most and block not in begins:
            count += 1
            continue
        if count:
            runs.append((first, count))
        first, count = block, 1
    return [*runs, (first, count)] if count else runs


class RunFetch:
    """The request for claimed blocks that are neighbours, see `link.Fetch`.

    It is dropped before it is sent, and after an attempt that failed, if nobody has pinned one of the blocks any more,
    because the loop was left. Whoever pins them at that moment finds them absent, and asks anew.

    Args:
        cache: which has them.
        first: the first of them.
        count: how many.
    """

    def __init__(self, cache: BlockCache, first: int, count: int) -> None:
        self._cache, self._blocks = cache, range(first, first + count)
        self._number, self._begin, self.nbytes = cache.place(first, count)
        self._name = cache.files[self._number].name
        self.host = cache.objects.host
        self.is_quick, self.has_come = cache.objects.is_quick, False
        self._attempts = 0
        self._is_dropped = False

    def quickly(self) -> bool:
        """Ask once, and wait for at most QUICK_SECONDS; return False if it is to be asked again, by `patiently`."""
        if not self._is_wanted():
            self._drop()
            return True
        self._attempts += 1
        try:
            part = self._cache.objects.part_quickly(self._name, *self._range)
        except (FileNotFoundError, PermissionError, ShardReadError) as error:
            self.fail(error)
        except BaseException:  # which another attempt may cure; a client that panics raises no Exception
            return False
        else:
            self._keep(part)
        return True

    async def patiently(self) -> None:
        """Ask until the bytes have come, or cannot come."""
        if not self._is_wanted():
            self._drop()
            return
        try:
            part = await self._cache.objects.part(
                self._name, *self._range, failed=self._attempts, is_wanted=self._is_wanted
            )
        except BaseException as error:
            if self._is_dropped:
                self._drop()
            else:
                self.fail(error)
        else:
            self._keep(part)

    def _is_wanted(self) -> bool:
        states = self._cache.table.states(self._blocks.start, len(self._blocks))
        self._is_dropped = not (states & PINNED).any()
        return not self._is_dropped

    def _drop(self) -> None:
        """Let the blocks be absent, without an error."""
        self._cache.table.failed(np.arange(self._blocks.start, self._blocks.stop))

    def fail(self, error: BaseException) -> None:
        """Give up."""
        self._cache.give_up(self._blocks, error)

    @property
    def _range(self) -> tuple[int, int, str]:
        return self._begin, self._begin + self.nbytes, self._cache.etag(self._number)

    def _keep(self, part: Part) -> None:
        try:
            self._cache.check([(self._number, self._begin, part)])
            self._cache.store(self._blocks.start, self._number, self._begin, part.data)
            self.has_come = True
        except BaseException as error:
            self.fail(error)
