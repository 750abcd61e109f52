"""Objects of a store under one address: they are read, in parts, and written, again where a request failed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from memload.errors import ShardReadError, ShardWriteError
from memload.formats.packages import package
from memload.formats.remote.addresses import FILES, described, is_without_tls, lost_of
from memload.formats.remote.link import link

_TIMEOUT, _CONNECT = "60s", "10s"
_WRITING_TIMEOUT = "180s"  # of a piece of an upload, of which _PIECES_AT_ONCE share the link
_WRITING_RETRIES = 6  # of each piece, by obstore, before the object is begun anew
_PIECE, _PIECES_AT_ONCE, _MOST_PIECES = 8 << 20, 4, 10_000  # bytes of one; S3's limit
_ATTEMPTS, _WRITING_ATTEMPTS = 8, 4
_WRITING_PATIENCE = 120.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before the second attempt, and before any other
_MOST_SAID = 300  # characters of what a store said
_NO_BUCKET = "there is no such bucket"
_NO_TRUST = "InvalidCertificate"  # in the text of an error of obstore's
_DELETED_AT_ONCE = 1000
MOST_AT_ONCE = 200
"""Requests for small objects and small parts that are under way at once."""

T = TypeVar("T")
G = TypeVar("G")


class Part(NamedTuple):
    """A part of an object as it was received: its bytes, the object's ETag, and the object's size."""

    data: Any
    etag: str
    size: int


class Listed(NamedTuple):
    """What a listing says of an object: its bytes, and its ETag, "" where the store states none."""

    nbytes: int
    etag: str


@dataclass(frozen=True)
class Address:
    """Where a set lies: an address such as ``s3://bucket/shards``, or a store object of obstore with it as its root.

    ``%23`` in an address is the character ``#`` of a name, and so on, as obstore has it. What obstore would drop from
    an address, or take for something else, is refused: two sets would be one.

    Raises:
        ValueError: the address has a fragment, a query that no web server gets, a folder ``.`` or ``..``, a backslash,
            or a control character; or it names a host where none is.
    """

    given: Any

    def __post_init__(self) -> None:
        if isinstance(self.given, str) and (why := lost_of(self.given)):
            raise ValueError(f"{self.given!r}: {why}")

    @property
    def local(self) -> Path | None:
        """The folder of this machine that a ``file://`` address names; None: the address is that of a store."""
        url = urlsplit(self.given) if isinstance(self.given, str) else None
        return Path(unquote(url.path)) if url is not None and url.scheme == "file" else None

    @property
    def url(self) -> str:
        """The address in messages, without a slash at its end."""
        if isinstance(self.given, str):
            return self.given.rstrip("/")
        return described(self.given)

    def objects(self, folder: str = "", *, writing: bool = False, repeating: bool = False) -> Objects:
        """Return the objects at this address.

        Args:
            folder: that of them which is meant, with a slash at its end; "": all.
            writing: whether they will be written: a piece of an upload is repeated by itself, and may take longer.
            repeating: whether the store is given to others, such as zarr, so that it repeats requests itself.

        Raises:
            ImportError: obstore is not installed.
            FileNotFoundError: the address is that of a single file.
            ValueError: the address is malformed; or it has the suffix of a file, and a set is to be written.
        """
        if isinstance(self.given, str) and (suffix := PurePosixPath(self.url).suffix.lower()) in FILES:
            if writing:
                raise ValueError(
                    f"{self.url}: a set is a folder of objects, and this is the name of a {suffix} file; write to an "
                    "address without this suffix"
                )
            raise FileNotFoundError(
                f"{self.url}: a URL, but of a {suffix} file, and only sets of shards and Zarr are read from stores: "
                "download it, or write it as shards first"
            )
        patience = _WRITING_PATIENCE if writing else math.inf
        stores = package("obstore.store", "remote", f"{self.url}: a store")
        if not isinstance(self.given, str):
            return Objects(self.given, self.url, folder, patience)
        options = {"timeout": _WRITING_TIMEOUT if writing else _TIMEOUT, "connect_timeout": _CONNECT}
        attempts = _WRITING_RETRIES if writing or repeating else 0
        retries: Any = {"max_retries": attempts, "retry_timeout": timedelta(minutes=3)}
        if self.url.lower().startswith("http://") or is_without_tls():
            options["allow_http"] = "true"
        try:
            store = stores.from_url(self.url, client_options=options, retry_config=retries)
        except Exception as error:
            if self.local is not None and not self.local.is_dir():
                raise FileNotFoundError(f"{self.url}: there is no such folder on this machine") from None
            raise ValueError(f"{self.url}: not an address that obstore can open ({_said(error)})") from error
        return Objects(store, self.url, folder, patience)


class Objects:
    """The objects under one address.

    Args:
        store: of obstore, whose root is the address.
        url: the address, for messages.
        folder: the folder that is meant of it, with a slash at its end; "": all.
        patience: after so many seconds a request that failed twice is given up, since the store itself repeats, too.

    Attributes:
        advice: what whoever finds an object replaced is told to do.
    """

    advice = "open the set again"

    def __init__(self, store: Any, url: str, folder: str = "", patience: float = math.inf) -> None:
        self._patience = patience
        self.store, self.url, self.folder = store, f"{url}/{folder}".rstrip("/"), folder

    def url_of(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self.url}/{name}"

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
            return await link().carried(end - begin, lambda: self.part(name, begin, end))

        return _together(wanted, lambda part: one(*part))

    def read_whole(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of small objects, asked for in parallel; None for one that is not there.

        Raises:
            FileNotFoundError: there is no such bucket.
            PermissionError, ShardReadError: as `read`.
        """

        async def one(name: str) -> bytes | None:
            try:
                return bytes((await self.part(name)).data)
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise
                return None

        return _together(names, one)

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
        import obstore

        async def request(mode: Any) -> None:
            try:
                await obstore.put_async(self.store, self.folder + name, data, mode=mode, use_multipart=False)
            except Exception as error:
                raise self._named(name, error) from None

        async def either() -> None:
            try:
                await request("create" if create else "overwrite")
            except obstore.exceptions.NotSupportedError:
                await request("overwrite")

        link().submit(self._again(name, "write it", either, writing=True)).result()

    def exists(self, name: str) -> bool:
        """Return whether there is an object; raises PermissionError and ShardReadError as `read`."""
        import obstore

        async def request() -> bool:
            try:
                await obstore.head_async(self.store, self.folder + name)
            except FileNotFoundError:
                return False
            except Exception as error:
                raise self._named(name, error) from None
            return True

        return link().submit(self._again(name, "ask for it", request)).result()

    async def upload(self, name: str, path: Path) -> None:
        """Write a file as an object, in pieces where it is large; raises as `put`, and OSError."""
        import obstore

        nbytes = path.stat().st_size
        piece = max(_PIECE, -(-nbytes // (_MOST_PIECES << 20)) << 20)  # whole MiB

        async def request() -> None:
            try:
                await obstore.put_async(
                    self.store, self.folder + name, path, chunk_size=piece, max_concurrency=_PIECES_AT_ONCE
                )
            except Exception as error:
                raise self._named(name, error) from None

        await self._again(name, f"write its {nbytes} bytes", request, writing=True)

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
        return link().submit(self._again(prefix, "list it", lambda: self._listed(prefix, below))).result()

    async def _listed(self, prefix: str, below: bool) -> dict[str, Listed]:
        import obstore

        whole, folders, found = self.folder + prefix, [], []
        try:
            if not below:
                answer = await obstore.list_with_delimiter_async(self.store, whole or None)
                folders, found = list(answer["common_prefixes"]), list(answer["objects"])
            else:
                async for chunk in obstore.list(self.store, whole or None, chunk_size=_DELETED_AT_ONCE):
                    found += chunk
        except Exception as error:
            raise self._named(prefix, error) from None
        named = {f"{folder}/": Listed(-1, "") for folder in folders}
        named |= {str(one["path"]): Listed(int(one["size"]), one["e_tag"] or "") for one in found}
        return {name.removeprefix(self.folder): one for name, one in named.items()}

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there count as removed.

        Raises:
            PermissionError: the store refuses it.
            ShardWriteError: the store failed again and again.
        """
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
                raise self._named(some[0], error) from None

        for first in range(0, len(listed), _DELETED_AT_ONCE):
            some = listed[first : first + _DELETED_AT_ONCE]
            link().submit(self._again(some[0], "remove it", partial(request, some), writing=True)).result()

    async def part(self, name: str, begin: int = 0, end: int | None = None, etag: str = "") -> Part:
        """Return a part of an object.

        Args:
            name: of the object.
            begin: its first byte.
            end: behind its last byte; None: all bytes.
            etag: that the object has to have; "": any.

        Raises:
            FileNotFoundError, PermissionError, ShardReadError: as `read`.
        """
        doing = f"read {_range(begin, end)}"
        return await self._again(name, doing, lambda: self._once(name, begin, end, etag), begin)

    async def _again(
        self, name: str, doing: str, request: Callable[[], Awaitable[T]], begin: int = 0, *, writing: bool = False
    ) -> T:
        """Return the answer to a request, which is repeated where it fails and that may pass by."""
        began, most = time.monotonic(), _WRITING_ATTEMPTS if writing else _ATTEMPTS
        for attempt in range(1, most + 1):
            try:
                return await request()
            except (FileNotFoundError, FileExistsError, PermissionError, ShardReadError):
                raise
            except Exception as error:
                took = time.monotonic() - began
                if attempt == most or _NO_TRUST in str(error) or (attempt > 1 and took >= self._patience):
                    tried = f"{attempt} attempts in {took:.1f} s to {doing}"
                    raise self._given_up(name, tried, error, begin, writing) from error
            pause = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
        raise AssertionError

    def _given_up(
        self, name: str, tried: str, error: Exception, begin: int, writing: bool
    ) -> ShardReadError | ShardWriteError:
        url = self.url_of(name)
        said = f"{url}: {tried} failed; the last: {_said(error)}. Check the network and the store"
        if writing:
            return ShardWriteError(f"{said}, and write again", file=url)
        return ShardReadError(f"{said}, and go on from the loader's state", file=url, offset=begin)

    async def _once(self, name: str, begin: int, end: int | None, etag: str) -> Part:
        import obstore

        options: Any = {} if end is None else {"range": (begin, end)}
        if etag:
            options["if_match"] = etag
        try:
            answer = await obstore.get_async(self.store, self.folder + name, options=options)
            data = await answer.bytes_async()
        except obstore.exceptions.PreconditionError as error:
            raise await self._changed(name, begin, end) from error
        except Exception as error:
            raise self._named(name, error) from None
        found = answer.meta
        if (etag and found.get("e_tag") not in (None, etag)) or found["size"] < (end or 0):
            raise self._replaced(name, begin, end, found["size"])
        if end is not None and len(data) != end - begin:
            raise OSError(
                f"{len(data)} bytes came instead of {end - begin}: the body was cut, or the object is shorter"
            )
        return Part(data, found.get("e_tag") or "", found["size"])

    def _named(self, name: str, error: Exception) -> Exception:
        """Return the error of a request as what cannot be cured by another one, or else unchanged."""
        import obstore

        refusals, url, text = obstore.exceptions, self.url_of(name), str(error)
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:  # listings have no error of their own
            missing = _NO_BUCKET if "NoSuchBucket" in text else "there is no such object"
            return FileNotFoundError(f"{url}: {missing}")
        refused = (refusals.PermissionDeniedError, refusals.UnauthenticatedError)
        if isinstance(error, refused) or "status code: 403" in text or "status code: 401" in text:
            return PermissionError(
                f"{url}: the store refuses it ({_said(error)}); check the credentials, which obstore takes from the "
                "environment or from its store object"
            )
        if isinstance(error, refusals.AlreadyExistsError):
            return FileExistsError(f"{url}: there is one already")
        return error

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


def _together(given: Sequence[G], request: Callable[[G], Awaitable[T]]) -> list[T]:
    """Return the answers to a request for each of many things, which are asked for in parallel, some hundred at once.

    The first error is raised, and ends the others.
    """
    answers: list[Any] = [None] * len(given)

    async def worker(left: Iterator[tuple[int, G]]) -> None:
        for number, one in left:
            answers[number] = await request(one)

    async def together() -> list[T]:
        left = iter(enumerate(given))
        workers = [asyncio.ensure_future(worker(left)) for _ in range(min(len(given), MOST_AT_ONCE))]
        try:
            await asyncio.gather(*workers)
        finally:
            for one in workers:
                one.cancel()
        return answers

    return link().submit(together()).result()


def _range(begin: int, end: int | None) -> str:
    return "it" if end is None else f"bytes {begin} to {end}"


def _said(error: BaseException) -> str:
    if _NO_TRUST in str(error):
        return "its certificate is not one that this machine trusts; SSL_CERT_FILE names a file of others that are"
    return " ".join(str(error).split())[:_MOST_SAID]
