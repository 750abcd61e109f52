"""Addresses of stores, as users write them: what would be lost of one, and what the environment adds."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

FILES = frozenset(
    [".npy", ".npz", ".safetensors", ".pt", ".pth", ".h5", ".hdf5", ".arrow", ".parquet", ".zip", ".json"]
)
"""Suffixes of what is no set of shards."""

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
    endpoints = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true") or any(
        endpoint.lower().startswith("http://") for endpoint in endpoints
    )


def described(store: Any) -> str:
    """Return the name of a store object's class, its bucket and its prefix, for messages."""
    prefix = str(getattr(store, "prefix", None) or "").strip("/")
    bucket = (getattr(store, "config", None) or {}).get("bucket", "")
    return "/".join(part for part in (f"{type(store).__name__}:{bucket}", prefix) if part)
