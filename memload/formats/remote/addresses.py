"""Addresses of stores, as users write them: what would be lost of one, what the environment adds, and what is there."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from memload.formats.packages import package
from memload.formats.remote.link import QUICK_SECONDS
from memload.formats.remote.objects import Objects
from memload.formats.remote.repeating import said
from memload.formats.remote.writable_objects import WritableObjects

FILES = frozenset(
    [".npy", ".npz", ".safetensors", ".pt", ".pth", ".h5", ".hdf5", ".arrow", ".parquet", ".zip", ".json"]
)
"""Suffixes of what is no set of shards."""

_NO_ACCOUNT = "Account must be specified"  # in the text of an error of obstore's
_TIMEOUT, _CONNECT = "60s", "10s"
_WRITING_TIMEOUT = "180s"  # of a piece of an upload, of which several share the link
_RETRIES = 6  # of each request, by obstore, where it is told to repeat
_STORES = ("AWS", "AZURE", "GOOGLE")  # how names of variables begin
_ENDPOINTS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
)
_WEB, _BUCKETS = ("http", "https"), ("s3", "s3a", "gs")  # schemes with a query; those whose host is a bucket


def lost_of(address: str) -> str:
    """Return why an address would not be taken as it is written, and what to do; "" if it would be."""
    url = urlsplit(address)
    meant = next((one for one in "#?\\" if one in address and not (one == "?" and url.scheme in _WEB)), "")
    if meant:
        return f"{meant!r} is no part of a name in an address; write %{ord(meant):02X} for it, or another name"
    if address != address.strip(" ") or any(one < " " or one == "\x7f" for one in unquote(address)):
        return "it has a blank at an end, a line break, or another control character; write it without"
    if {".", ".."}.intersection(unquote(url.path).split("/")):
        return "a folder of a store has no '.' and '..'; write the names of the folders themselves"
    if url.scheme == "file" and url.netloc.lower() not in ("", "localhost"):
        return f"it names the host {url.netloc!r}; a folder of this machine has three slashes: file:///folder"
    if url.scheme in _BUCKETS and not {"@", ":"}.isdisjoint(url.netloc):
        return f"{url.netloc!r} is no name of a bucket; obstore takes keys and endpoints from the environment"
    return ""


def is_without_tls() -> bool:
    """Whether the environment names an endpoint without TLS: options that are given replace those found there."""
    allowed = any(os.environ.get(f"{store}_ALLOW_HTTP", "").lower() in ("1", "true") for store in _STORES)
    return allowed or any(os.environ.get(name, "").lower().startswith("http://") for name in _ENDPOINTS)


def described(store: Any) -> str:
    """Return the name of a store object's class, its bucket and its prefix, for messages."""
    prefix = str(getattr(store, "prefix", None) or "").strip("/")
    bucket = (getattr(store, "config", None) or {}).get("bucket", "")
    return "/".join(part for part in (f"{type(store).__name__}:{bucket}", prefix) if part)


@functools.lru_cache(maxsize=32)
def _made_store(
    stores: Any,
    url: str,
    options: frozenset[tuple[str, str]],
    retries: int,
    environment: tuple[int, frozenset[tuple[str, str]]],  # noqa: ARG001 - obstore reads it, so it is part of the key
) -> Any:
    """Return the store of obstore at an address, the same for the same environment of the same process.

    To make one reads all certificates that this machine trusts, and a new one has no connections.
    """
    repeats: Any = {"max_retries": retries, "retry_timeout": timedelta(minutes=3)}
    return stores.from_url(url, client_options=dict(options), retry_config=repeats)


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

    def objects(self, folder: str = "", *, repeating: bool = False) -> Objects:
        """Return the objects at this address, to be read.

        Args:
            folder: that of them which is meant, with a slash at its end; "": all.
            repeating: whether the store is given to others, such as zarr, so that it repeats requests itself.

        Raises:
            ImportError: obstore is not installed.
            FileNotFoundError: the address is that of a single file.
            ValueError: the address is malformed.
        """
        if suffix := self._suffix_of_file:
            raise FileNotFoundError(
                f"{self.url}: a URL, but of a {suffix} file, and only sets of shards and Zarr are read from stores: "
                "download it, or write it as shards first"
            )

        def quick() -> Any:
            return self._store(f"{QUICK_SECONDS}s", 0)

        may_hang = not isinstance(self.given, str) or self.local is not None  # for longer than memload can say
        store = self._store(_TIMEOUT, _RETRIES if repeating else 0)
        return Objects(store, self.url, folder, quick=None if may_hang else quick)

    def writable(self) -> WritableObjects:
        """Return the objects at this address, to be written; the store repeats a piece of an upload by itself.

        Raises:
            ImportError: obstore is not installed.
            ValueError: the address is malformed, or has the suffix of a file.
        """
        if suffix := self._suffix_of_file:
            raise ValueError(
                f"{self.url}: a set is a folder of objects, and this is the name of a {suffix} file; write to an "
                "address without this suffix"
            )
        return WritableObjects(self._store(_WRITING_TIMEOUT, _RETRIES), self.url)

    @property
    def _suffix_of_file(self) -> str:
        suffix = PurePosixPath(self.url).suffix.lower() if isinstance(self.given, str) else ""
        return suffix if suffix in FILES else ""

    def _store(self, timeout: str, retries: int) -> Any:
        """Return the store of obstore; one that was given has time-outs and retries of its own."""
        stores = package("obstore.store", "remote", f"{self.url}: a store")
        if not isinstance(self.given, str):
            return self.given
        options = {"timeout": timeout, "connect_timeout": _CONNECT}  # the first counts for the whole of a request
        if self.url.lower().startswith("http://") or is_without_tls():
            options["allow_http"] = "true"
        environment = os.getpid(), frozenset(os.environ.items())
        try:
            return _made_store(stores, self.url, frozenset(options.items()), retries, environment)
        except Exception as error:
            if self.local is not None and not self.local.is_dir():
                raise FileNotFoundError(f"{self.url}: there is no such folder on this machine") from None
            account = "; set AZURE_STORAGE_ACCOUNT_NAME" if _NO_ACCOUNT in str(error) else ""
            raise ValueError(f"{self.url}: not an address that obstore can open ({said(error)}){account}") from error
