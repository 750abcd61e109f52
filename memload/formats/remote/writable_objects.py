"""Objects of a store under one address, as they are written: small ones, files in pieces, and their removal."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

from memload.formats.remote.link import link
from memload.formats.remote.objects import Objects

_WHOLE = 16 << 20  # bytes of the largest file that goes in one request, which leaves no pieces where it fails
_PIECE, _PIECES_AT_ONCE, _MOST_PIECES = 8 << 20, 4, 10_000  # bytes of one; S3's limit
_DELETED_AT_ONCE = 1000
_PATIENCE = 120.0  # seconds
_RELEASING = 0.05  # seconds after which pages of a mapped file that were sent are given back


class WritableObjects(Objects):
    """The objects under one address, which are also written.

    Args:
        store: of obstore, whose root is the address.
        url: the address, for messages.
    """

    def __init__(self, store: Any, url: str) -> None:
        super().__init__(store, url, patience=_PATIENCE)

    def put(self, name: str, data: bytes, *, create: bool = False) -> None:
        """Write a small object.

        Args:
            name: of the object.
            data: its bytes.
            create: refuse an object that is there; a store without conditions replaces it.

        Raises:
            FileExistsError: with `create`, there is one already.
            FileNotFoundError: there is no such bucket.
            PermissionError: the store refuses it.
            ShardWriteError: the store failed again and again.
        """
        self.begin_put(name, data, create=create).result()

    def begin_put(self, name: str, data: bytes, *, create: bool = False) -> Future[None]:
        """Begin what `put` does."""
        import obstore

        async def request(mode: Any) -> None:
            try:
                await obstore.put_async(self.store, self.folder + name, data, mode=mode, use_multipart=False)
            except Exception as error:
                raise self._requests.named(name, error) from None

        async def either() -> None:
            try:
                await request("create" if create else "overwrite")
            except obstore.exceptions.NotSupportedError:
                await request("overwrite")

        return link().submit(self._requests.again(name, "write it", either, writing=True))

    def upload(self, name: str, content: Any) -> Future[None]:
        """Begin to write bytes as an object, in pieces where they are many; raises as `put`.

        Args:
            name: of the object.
            content: the bytes, as an array or a mapped file, which are sent from there and have to stay as they are. Of
                a file, hardly more is in the memory of this process than is being sent.
        """
        return link().submit(self._upload(name, content))

    async def _upload(self, name: str, content: Any) -> None:
        import obstore

        nbytes = len(content)
        piece = max(_PIECE, -(-nbytes // (_MOST_PIECES << 20)) << 20)  # whole MiB
        how: Any = {"use_multipart": nbytes > _WHOLE, "chunk_size": piece, "max_concurrency": _PIECES_AT_ONCE}

        async def request() -> None:
            try:
                await obstore.put_async(self.store, self.folder + name, content, **how)
            except Exception as error:
                raise self._requests.named(name, error) from None

        async with _released(content):
            await self._requests.again(name, f"write its {nbytes} bytes", request, writing=True)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there count as removed.

        Raises:
            PermissionError: the store refuses it.
            ShardWriteError: the store failed again and again.
        """
        self.begin_delete(names).result()

    def begin_delete(self, names: Iterable[str]) -> Future[None]:
        """Begin what `delete` does."""
        import obstore

        listed = list(names)

        async def request(some: list[str]) -> None:
            try:
                await obstore.delete_async(self.store, [self.folder + name for name in some])
            except FileNotFoundError:  # a folder has no such file
                if len(some) > 1:
                    for name in some:
                        await request([name])
            except Exception as error:
                raise self._requests.named(some[0], error) from None

        async def requests() -> None:
            for first in range(0, len(listed), _DELETED_AT_ONCE):
                some = listed[first : first + _DELETED_AT_ONCE]
                await self._requests.again(some[0], "remove it", partial(request, some), writing=True)

        return link().submit(requests())


@contextlib.asynccontextmanager
async def _released(content: Any) -> AsyncIterator[None]:
    """Give the pages of a mapped file back again and again while it is sent: the client does not say how far it is.

    Those that it still needs come back from the cache of the system.
    """

    async def release(file: mmap.mmap) -> None:
        while True:
            await asyncio.sleep(_RELEASING)
            file.madvise(mmap.MADV_DONTNEED)

    releasing = asyncio.ensure_future(release(content)) if isinstance(content, mmap.mmap) else None
    try:
        yield
    finally:
        if releasing is not None:
            releasing.cancel()
