"""Objects of a store under one address, as they are read: whole, in parts, many at once, and in lists."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from memload.errors import ShardReadError
from memload.formats.remote.link import link
from memload.formats.remote.repeating import NO_BUCKET, Requests

_LISTED_AT_ONCE = 1000
MOST_AT_ONCE = 200
"""Requests for small objects and small parts that are under way at once."""

_MODIFIED = "modified "  # what stands for an ETag begins so, which an ETag cannot, since it has no blank outside quotes

T = TypeVar("T")
G = TypeVar("G")


class Part(NamedTuple):
    """A part of an object as it was received: its bytes, the object's ETag as of `etag_of`, and the object's size."""

    data: Any
    etag: str
    size: int


class Listed(NamedTuple):
    """What a listing says of an object: its bytes, and its ETag as of `etag_of`."""

    nbytes: int
    etag: str


class Objects:
    """The objects under one address.

    Args:
        store: of obstore, whose root is the address.
        url: the address, for messages.
        folder: the folder that is meant of it, with a slash at its end; "": all.
        patience: as in `Requests`.
        quick: makes a store of the same objects, which gives up after QUICK_SECONDS; None: there is none.

    Attributes:
        advice: what whoever finds an object replaced is told to do.
        host: the beginning of the address, up to the name of the host or the bucket.
    """

    advice = "open the set again"

    def __init__(
        self,
        store: Any,
        url: str,
        folder: str = "",
        patience: float = math.inf,
        *,
        quick: Callable[[], Any] | None = None,
    ) -> None:
        self.store, self.url, self.folder = store, f"{url}/{folder}".rstrip("/"), folder
        self._lists_without_quotes = type(store).__name__ == "AzureStore"
        scheme, mark, rest = url.rpartition("://")
        self.host = scheme + mark + rest.partition("/")[0]
        self._requests = Requests(self.url, patience)
        self._make_quick = quick
        self._quick_made: Any = None
        self._making = threading.Lock()

    @property
    def is_quick(self) -> bool:
        """Whether `part_quickly` may be called."""
        return self._make_quick is not None

    @property
    def _quick_store(self) -> Any:
        """The store that gives up soon; it is made once, by the first of the threads that need it at the same time."""
        if self._quick_made is None:
            assert self._make_quick is not None
            with self._making:
                if self._quick_made is None:
                    self._quick_made = self._make_quick()
        return self._quick_made

    def url_of(self, name: str) -> str:
        """Return the address of an object."""
        return self._requests.url_of(name)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object, all of them by default.

        Raises:
            FileNotFoundError: there is no such object, or no such bucket.
            PermissionError: the store refuses it.
            ShardReadError: the store failed again and again.
        """
        return bytes(link().submit(self.part(name, begin, end)).result().data)

    def read_all(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the bytes of many parts (name, begin, end), which are asked for in parallel; raises as `read`."""
        return [b"" if part is None else bytes(part.data) for part in self.parts(wanted)]

    def parts(self, wanted: Sequence[tuple[str, int, int]]) -> list[Part | None]:
        """Return many parts as `read_all` does, None for one of no bytes, which is not asked for."""

        async def one(name: str, begin: int, end: int) -> Part | None:
            if begin == end:
                return None
            return await link().carried(self.host, end - begin, lambda: self.part(name, begin, end))

        return _together(wanted, lambda part: one(*part)).result()

    def read_whole(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of small objects, asked for in parallel; None for one that is not there.

        Raises:
            FileNotFoundError: there is no such bucket.
            PermissionError, ShardReadError: as `read`.
        """

        return self.begin_reading(names).result()

    def begin_reading(self, names: Sequence[str]) -> Future[list[bytes | None]]:
        """Begin what `read_whole` returns."""

        async def one(name: str) -> bytes | None:
            try:
                return bytes((await self.part(name)).data)
            except FileNotFoundError as error:
                if NO_BUCKET in str(error):
                    raise
                return None

        return _together(names, one)

    def exists(self, name: str) -> bool:
        """Return whether there is an object; raises PermissionError and ShardReadError as `read`."""
        import obstore

        async def request() -> bool:
            try:
                await obstore.head_async(self.store, self.folder + name)
            except FileNotFoundError:
                return False
            except Exception as error:
                raise self._requests.named(name, error) from None
            return True

        return link().submit(self._requests.again(name, "ask for it", request)).result()

    def sizes(self, prefix: str = "", *, below: bool = True) -> dict[str, int]:
        """Return names and bytes of objects; arguments and errors are those of `listing`."""
        return {name: found.nbytes for name, found in self.listing(prefix, below=below).items()}

    def listing(self, prefix: str = "", *, below: bool = True) -> dict[str, Listed]:
        """Return the objects whose names begin with a prefix that is "" or ends at a slash, by name.

        Args:
            prefix: the beginning.
            below: whether those in folders count as well; else these folders are in the result, with a slash, as -1.

        Raises:
            FileNotFoundError, PermissionError, ShardReadError: as `read`.
        """
        return self.listings((prefix, below))[0]

    def listings(self, *wanted: tuple[str, bool]) -> list[dict[str, Listed]]:
        """Return what `listing` returns for each prefix and `below`, asked for in parallel; raises as `listing`."""

        async def one(prefix: str, below: bool) -> dict[str, Listed]:
            return await self._requests.again(prefix, "list it", lambda: self._listed(prefix, below))

        return _together(wanted, lambda given: one(*given)).result()

    async def _listed(self, prefix: str, below: bool) -> dict[str, Listed]:
        import obstore

        whole, folders, found = self.folder + prefix, [], []
        try:
            if not below:
                answer = await obstore.list_with_delimiter_async(self.store, whole or None)
                folders, found = list(answer["common_prefixes"]), list(answer["objects"])
            else:
                async for chunk in obstore.list(self.store, whole or None, chunk_size=_LISTED_AT_ONCE):
                    found += chunk
        except Exception as error:
            raise self._requests.named(prefix, error) from None
        named = {f"{folder}/": Listed(-1, "") for folder in folders}
        named |= {str(one["path"]): Listed(int(one["size"]), self._listed_etag(one)) for one in found}
        return {name.removeprefix(self.folder): one for name, one in named.items()}

    def _listed_etag(self, listed: Any) -> str:
        """Return the ETag that a listing states as other answers state it: Azure lists it without its quotes."""
        etag = etag_of(listed)
        quoted = not self._lists_without_quotes or etag.startswith(_MODIFIED) or etag.endswith('"')
        return etag if quoted or not etag else f'"{etag}"'

    async def part(
        self,
        name: str,
        begin: int = 0,
        end: int | None = None,
        etag: str = "",
        *,
        failed: int = 0,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Part:
        """Return a part of an object.

        Args:
            name: of the object.
            begin: its first byte.
            end: behind its last byte; None: all bytes.
            etag: that the object has to have, as of `etag_of`; "": any.
            failed: how many attempts have failed just now.
            is_wanted: as in `Requests.again`.

        Raises:
            FileNotFoundError, PermissionError, ShardReadError: as `read`.
        """

        async def request() -> Part:
            return await self._once(name, begin, end, etag)

        doing = f"read {_range(begin, end)}"
        return await self._requests.again(name, doing, request, begin, failed=failed, is_wanted=is_wanted)

    def part_quickly(self, name: str, begin: int, end: int, etag: str = "") -> Part:
        """Return a part of an object, by one attempt on this thread that takes QUICK_SECONDS at most.

        Raises:
            FileNotFoundError, PermissionError, ShardReadError: as `read`.
            Exception: anything else, which `part` may cure.
        """
        import obstore

        try:
            answer = obstore.get(self._quick_store, self.folder + name, options=_conditions(begin, end, etag))
            data, meta = answer.bytes(), answer.meta
        except Exception as error:
            raise self._requests.named(name, error) from None
        return self._checked(name, begin, end, etag, data, meta)

    async def _once(self, name: str, begin: int, end: int | None, etag: str) -> Part:
        import obstore

        try:
            answer = await obstore.get_async(self.store, self.folder + name, options=_conditions(begin, end, etag))
            data = await answer.bytes_async()
        except obstore.exceptions.PreconditionError as error:
            raise await self._changed(name, begin, end) from error
        except Exception as error:
            raise self._requests.named(name, error) from None
        return self._checked(name, begin, end, etag, data, answer.meta)

    def _checked(self, name: str, begin: int, end: int | None, etag: str, data: Any, meta: Any) -> Part:
        """Return a part if it is what was asked for. Raises ShardReadError, and OSError if it was cut."""
        part = Part(data, etag_of(meta), meta["size"])
        if is_other(etag, meta) or part.size < (end or 0):
            raise self._replaced(name, begin, end, part.size)
        if end is not None and len(part.data) != end - begin:
            raise OSError(
                f"{len(part.data)} bytes came instead of {end - begin}: the body was cut, or the object is shorter"
            )
        return part

    async def _changed(self, name: str, begin: int, end: int | None) -> ShardReadError:
        """Return the error of an object whose ETag is another one now."""
        import obstore

        try:
            size = (await obstore.head_async(self.store, self.folder + name))["size"]
        except Exception:  # the error that is known already says more
            size = end or 0
        return self._replaced(name, begin, end, size)

    def _replaced(self, name: str, begin: int, end: int | None, size: int) -> ShardReadError:
        cut = size < (end or 0)
        what = (
            f"was cut to {size} bytes, and the set needs bytes {begin} to {end}"
            if cut
            else ("was replaced since it was first read, so its bytes are no longer those of this set")
        )
        return ShardReadError(
            f"{self.url_of(name)}: the object {what}; {self.advice}",
            file=self.url_of(name),
            offset=begin,
        )


def etag_of(meta: Any) -> str:
    """Return the ETag of an object; where none is stated the second when it was modified, or "" without that, too.

    Args:
        meta: what obstore says of the object.
    """
    return meta.get("e_tag") or _modified(meta)


def is_other(etag: str, meta: Any) -> bool:
    """Return whether an object is another one than that with an ETag, as of `etag_of`.

    An answer without an ETag is of the same one where one is expected, since the request stated it as a condition.
    """
    if etag.startswith(_MODIFIED):  # it may be of a listing that states less than other answers
        return _modified(meta) != etag
    return bool(etag) and (meta.get("e_tag") or etag) != etag


def _modified(meta: Any) -> str:
    """Return what stands for the ETag of an object without one; "" if the store does not say when it was modified."""
    seconds = int(meta["last_modified"].timestamp())  # 0: the answer has none
    return f"{_MODIFIED}{seconds}" if seconds else ""


async def all_of(requests: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Wait for all of some requests. The first error is raised, once the others were cancelled and have ended."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _together(given: Sequence[G], request: Callable[[G], Awaitable[T]]) -> Future[list[T]]:
    """Begin a request for each of many things, some hundred at once, and return what becomes the answers to all.

    The first error is raised, and ends the others.
    """
    answers: list[Any] = [None] * len(given)

    async def worker(left: Iterator[tuple[int, G]]) -> None:
        for number, one in left:
            answers[number] = await request(one)

    async def together() -> list[T]:
        left = iter(enumerate(given))
        await all_of(worker(left) for _ in range(min(len(given), MOST_AT_ONCE)))
        return answers

    return link().submit(together())


def _conditions(begin: int, end: int | None, etag: str) -> Any:
    """Return the options of a request for a part of an object with an ETag, as of `etag_of`; "": any."""
    options: dict[str, Any] = {} if end is None else {"range": (begin, end)}
    return options if not etag or etag.startswith(_MODIFIED) else options | {"if_match": etag}


def _range(begin: int, end: int | None) -> str:
    return "it" if end is None else f"bytes {begin} to {end}"
