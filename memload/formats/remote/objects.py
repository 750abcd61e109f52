"""Objects of a store under one address: parts of them are read, again where a request failed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from memload.errors import ShardReadError
from memload.formats.packages import package
from memload.formats.remote.link import link

_TIMEOUT, _CONNECT = "60s", "10s"
_FILES = frozenset(
    [".npy", ".npz", ".safetensors", ".pt", ".pth", ".h5", ".hdf5", ".arrow", ".parquet", ".zip", ".zarr", ".json"]
)  # suffixes of what is no set of shards
_ATTEMPTS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before the second attempt, and before any other
_MOST_SAID = 300  # characters of what a store said


class Part(NamedTuple):
    """A part of an object as it was received: its bytes, the object's ETag, and the object's size."""

    data: Any
    etag: str
    size: int


@dataclass(frozen=True)
class Address:
    """Where a set lies: an address such as ``s3://bucket/shards``, or a store object of obstore with it as its root."""

    given: Any

    @property
    def url(self) -> str:
        """The address in messages, without a slash at its end."""
        if isinstance(self.given, str):
            return self.given.rstrip("/")
        return _described(self.given)

    def objects(self, folder: str = "") -> Objects:
        """Return the objects at this address.

        Args:
            folder: that of them which is meant, with a slash at its end; "": all.

        Raises:
            ImportError: obstore is not installed.
            FileNotFoundError: the address is that of a single file.
            ValueError: the address is malformed.
        """
        if isinstance(self.given, str) and (suffix := PurePosixPath(self.url).suffix.lower()) in _FILES:
            raise FileNotFoundError(
                f"{self.url}: a URL, but of a {suffix} file, and only sets of shards are read from stores: download "
                "it, or write it as shards first"
            )
        stores = package("obstore.store", "remote", f"{self.url}: a store")
        if not isinstance(self.given, str):
            return Objects(self.given, self.url, folder)
        options = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT}
        if self.url.lower().startswith("http://") or _without_tls():
            options["allow_http"] = "true"
        try:
            store = stores.from_url(self.url, client_options=options, retry_config={"max_retries": 0})
        except Exception as error:
            if (path := urlparse(self.url)).scheme.lower() == "file" and not Path(unquote(path.path)).is_dir():
                raise FileNotFoundError(f"{self.url}: there is no such folder on this machine") from None
            raise ValueError(f"{self.url}: not an address that obstore can open ({_said(error)})") from error
        return Objects(store, self.url, folder)


def _without_tls() -> bool:
    """Whether the environment names an endpoint without TLS: options that are given replace those found there."""
    endpoints = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true") or any(
        endpoint.lower().startswith("http://") for endpoint in endpoints
    )


def _described(store: Any) -> str:
    prefix = str(getattr(store, "prefix", None) or "").strip("/")
    bucket = (getattr(store, "config", None) or {}).get("bucket", "")
    return "/".join(part for part in (f"{type(store).__name__}:{bucket}", prefix) if part)


class Objects:
    """The objects under one address.

    Args:
        store: of obstore, whose root is the address.
        url: the address, for messages.
        folder: the folder that is meant of it, with a slash at its end; "": all.
    """

    def __init__(self, store: Any, url: str, folder: str = "") -> None:
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

        async def together() -> list[bytes]:
            carrier = link()

            async def one(name: str, begin: int, end: int) -> bytes:
                if begin == end:
                    return b""
                return bytes((await carrier.carried(end - begin, lambda: self.part(name, begin, end))).data)

            return await asyncio.gather(*(one(*part) for part in wanted))

        return link().submit(together()).result()

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
        began = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._once(name, begin, end, etag)
            except (FileNotFoundError, PermissionError, ShardReadError):
                raise
            except Exception as error:
                if attempt == _ATTEMPTS:
                    spent = time.monotonic() - began
                    raise ShardReadError(
                        f"{self.url_of(name)}: {attempt} attempts in {spent:.1f} s to read {_range(begin, end)} "
                        f"failed; the last: {_said(error)}. Check the network and the store, and go on from the "
                        "loader's state",
                        file=self.url_of(name),
                        offset=begin,
                    ) from error
            pause = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
        raise AssertionError

    async def _once(self, name: str, begin: int, end: int | None, etag: str) -> Part:
        import obstore

        refusals = obstore.exceptions
        options: Any = {} if end is None else {"range": (begin, end)}
        if etag:
            options["if_match"] = etag
        try:
            answer = await obstore.get_async(self.store, self.folder + name, options=options)
            data = await answer.bytes_async()
        except refusals.PreconditionError as error:
            raise await self._changed(name, begin, end) from error
        except FileNotFoundError as error:
            what = "there is no such bucket" if "NoSuchBucket" in str(error) else "there is no such object"
            raise FileNotFoundError(f"{self.url_of(name)}: {what}") from None
        except (refusals.PermissionDeniedError, refusals.UnauthenticatedError) as error:
            raise PermissionError(
                f"{self.url_of(name)}: the store refuses it ({_said(error)}); check the credentials, which obstore "
                "takes from the environment or from its store object"
            ) from None
        found = answer.meta
        if (etag and found.get("e_tag") not in (None, etag)) or found["size"] < (end or 0):
            raise self._replaced(name, begin, end, found["size"])
        if end is not None and len(data) != end - begin:
            raise OSError(
                f"{len(data)} bytes came instead of {end - begin}: the body was cut, or the object is shorter"
            )
        return Part(data, found.get("e_tag") or "", found["size"])

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
            f"{self.url_of(name)}: the object {what}; open the set again",
            file=self.url_of(name),
            offset=begin,
        )


def _range(begin: int, end: int | None) -> str:
    return "it" if end is None else f"bytes {begin} to {end}"


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:_MOST_SAID]
