"""Open what lies at the address of a store: a set of shards, or a Zarr array or group."""

from __future__ import annotations

import contextlib
from typing import Any

from memload.columns.fields import Field
from memload.formats.formats import Stated
from memload.formats.paths import PathLike
from memload.formats.remote.addresses import Address
from memload.formats.remote.block_cache import Keeping
from memload.formats.remote.objects import Objects
from memload.formats.remote.remote_shards import keeping_of, open_remote, why_no_set
from memload.formats.remote.remote_zarr import METADATA, open_remote_zarr, refuse_web_server


def opened_remote(path: Any, stated: Stated, cache: PathLike | None, cache_bytes: int | str | None) -> dict[str, Field]:
    """Return the fields of the set or of the arrays at `path`; arguments are those of `memload.open`.

    Raises:
        FileNotFoundError, PermissionError: nothing of that kind is there, or the store refuses it.
        ShardReadError: the store failed again and again.
        FormatError: what is there is malformed, or not supported.
        TypeError: `key` or `field` is given for a set of shards.
        Others: as `keeping_of`, `open_remote` and `open_remote_zarr`.
    """
    address, keeping = Address(path), keeping_of(cache, cache_bytes)
    try:
        return _opened(address, keeping, stated)
    except PermissionError:  # which stores of web addresses give for what is not there, too
        if any(_is_readable(address.objects(), name) for name in METADATA):
            refuse_web_server(address.objects())
        raise


def _opened(address: Address, keeping: Keeping, stated: Stated) -> dict[str, Field]:
    fields = open_remote(address, keeping)
    if fields is not None:
        stated.refuse_all_but(address.url, ())
        return fields
    objects = address.objects()
    if all(found is None for found in objects.read_whole(METADATA)):
        raise FileNotFoundError(f"{address.url}: {why_no_set(objects)}")
    return open_remote_zarr(address, keeping, stated.key, stated.field)


def _is_readable(objects: Objects, name: str) -> bool:
    with contextlib.suppress(OSError):
        objects.read(name)
        return True
    return False
