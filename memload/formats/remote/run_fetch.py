"""The requests for claimed blocks, one for those that are neighbours in one file of a set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memload.errors import ShardReadError
from memload.formats.remote.cache_folder import PINNED
from memload.formats.remote.claims import Claim
from memload.formats.remote.link import link
from memload.formats.remote.objects import Part

if TYPE_CHECKING:
    from memload.formats.remote.block_cache import BlockCache


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

    Before it is sent, and after an attempt that failed, it is dropped if nobody has pinned one of the blocks any more,
    because the loop was left. Whoever pins them at that moment finds them absent, and asks anew. Where others bring
    some of the blocks by then, further requests ask for the rest.

    Args:
        cache: which has them.
        claim: the claim to them.
        attempts: how many attempts to fetch them failed before.
    """

    def __init__(self, cache: BlockCache, claim: Claim, attempts: int = 0) -> None:
        self._cache, self._claim, self._attempts = cache, claim, attempts
        self._first = claim.blocks.start
        self._number, self._begin, self.nbytes = cache.place(self._first, len(claim.blocks))
        self._name = cache.files[self._number].name
        self.host = cache.objects.host
        self.is_quick, self.has_come = cache.objects.is_quick and attempts == 0, False
        self._rest: list[Claim] | None = None

    def quickly(self) -> bool:
        """Ask once, and wait for at most QUICK_SECONDS; return False if it is to be asked again, by `patiently`."""
        if not self._is_wanted():
            self._leave()
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
            self._leave()
            return
        try:
            part = await self._cache.objects.part(
                self._name, *self._range, failed=self._attempts, is_wanted=self._is_wanted_again
            )
        except BaseException as error:
            if self._rest is None:
                self.fail(error)
            else:
                self._leave()
        else:
            self._keep(part)

    def _is_wanted_again(self) -> bool:
        self._attempts += 1
        return self._is_wanted()

    def _is_wanted(self) -> bool:
        """Whether all of the blocks are still to be asked for here; else `_leave` has to follow."""
        left = self._claim.standing()
        states = self._cache.table.states(self._first, len(self._claim.blocks))
        if not (states[left - self._first] & PINNED).any():
            self._rest = []
        elif len(left) < len(states):
            self._rest = [self._claim.part(*run) for run in runs_of(left, frozenset(), len(left))]
        return self._rest is None

    def _leave(self) -> None:
        """Ask for those of the blocks that others do not bring, or let all be absent, without an error."""
        for claim in self._rest or ():
            try:
                link().fetch(RunFetch(self._cache, claim, self._attempts))
            except RuntimeError as error:  # this process ends
                claim.end(error)
        if not self._rest:
            self._claim.end()

    def fail(self, error: BaseException) -> None:
        """Give up."""
        self._cache.give_up(self._claim, error)

    @property
    def _range(self) -> tuple[int, int, str]:
        return self._begin, self._begin + self.nbytes, self._cache.etag(self._number)

    def _keep(self, part: Part) -> None:
        try:
            self._cache.check([(self._number, self._begin, part)])
            self._claim.renew()
            self._cache.store(self._first, self._number, self._begin, part.data)
            self.has_come = True
        except BaseException as error:
            self.fail(error)
