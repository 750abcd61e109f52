"""Many objects of a store as parts of one file, which nobody has: the blocks of it are blocks of the objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from memload.errors import ShardReadError
from memload.formats.remote.objects import MOST_AT_ONCE, Listed, Objects, Part, all_of


class PackedObjects:
    """The objects of a store in one file, each at a place of its own.

    An object begins where a block does, unless all of it fits into the rest of the block before: then small ones are
    fetched together, and large ones alone.

    Args:
        objects: what reads them.
        listed: the objects, in the order of the file.
        block_bytes: bytes of a block.
    """

    def __init__(self, objects: Objects, listed: Mapping[str, Listed], block_bytes: int) -> None:
        self.url, self.advice, self.host = objects.url, objects.advice, objects.host
        self._objects, self._listed = objects, list(listed.items())
        self._begins = np.asarray(_begins([one.nbytes for one in listed.values()], block_bytes), dtype=np.int64)
        self.begin_of = dict(zip(listed, self._begins.tolist(), strict=True))
        self.nbytes = int(self._begins[-1]) + self._listed[-1][1].nbytes if self._listed else 0
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    def url_of(self, _name: str) -> str:
        """Return the address of all of them."""
        return self.url

    is_quick = False
    """Since a part may be many objects, which are asked for at once."""

    def part_quickly(self, _name: str, begin: int, end: int, _etag: str = "") -> Part:
        """Not to be called."""
        raise NotImplementedError

    async def part(
        self,
        _name: str,
        begin: int,
        end: int,
        _etag: str = "",
        *,
        failed: int = 0,  # noqa: ARG002 - none of an object has
        is_wanted: Callable[[], bool] | None = None,
    ) -> Part:
        """Return a part of the file; between objects it is 0. Arguments and errors are those of `Objects.part`."""
        data = bytearray(end - begin)
        first = max(0, int(np.searchsorted(self._begins, begin, side="right")) - 1)
        last = int(np.searchsorted(self._begins, end, side="left"))
        await all_of(self._read(number, begin, data, is_wanted) for number in range(first, last))
        return Part(data, "", self.nbytes)

    async def _read(self, number: int, begin: int, data: bytearray, is_wanted: Callable[[], bool] | None) -> None:
        """Read the bytes of an object that lie in a part of the file which begins at `begin`."""
        (name, listed), at = self._listed[number], int(self._begins[number])
        low, high = max(begin - at, 0), min(begin + len(data) - at, listed.nbytes)
        if low >= high:
            return
        async with self._room:
            part = await self._objects.part(name, low, high, listed.etag, is_wanted=is_wanted)
        if part.size != listed.nbytes:
            url = self._objects.url_of(name)
            raise ShardReadError(
                f"{url}: the object was replaced: it has {part.size} bytes instead of {listed.nbytes}; {self.advice}",
                file=url,
                offset=low,
            )
        data[at + low - begin : at + high - begin] = part.data


def _begins(sizes: Sequence[int], block_bytes: int) -> list[int]:
    """Return where objects of these sizes begin."""
    begins, at = [], 0
    for nbytes in sizes:
        if at % block_bytes + nbytes > block_bytes:
            at = -(-at // block_bytes) * block_bytes
        begins.append(at)
        at += -(-nbytes // 64) * 64  # so that numbers of any size are aligned
    return begins
