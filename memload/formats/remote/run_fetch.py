"""The request for blocks that are neighbours in one file of a set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memload.errors import ShardReadError
from memload.formats.remote.objects import Part

if TYPE_CHECKING:
    from memload.formats.remote.block_cache import BlockCache


class RunFetch:
    """The request for claimed blocks that are neighbours, see `link.Fetch`.

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

    def quickly(self) -> bool:
        """Ask once, and wait for at most QUICK_SECONDS; return False if it is to be asked again, by `patiently`."""
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
        try:
            part = await self._cache.objects.part(self._name, *self._range, failed=self._attempts)
        except BaseException as error:
            self.fail(error)
        else:
            self._keep(part)

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
