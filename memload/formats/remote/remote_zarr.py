"""Zarr arrays and groups in a store: chunks are fetched as blocks, and decoded as those of a local directory.

The zarr package reads the metadata, by its own store over obstore's. Chunks are found by one listing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memload._core import Storage
from memload.columns.fields import Field
from memload.errors import FormatError, first_line
from memload.formats.members import Key
from memload.formats.remote.addresses import Address
from memload.formats.remote.block_cache import BlockCache, Keeping
from memload.formats.remote.cache_folder import LEAST_BLOCK, RemoteFile
from memload.formats.remote.objects import Listed, Objects
from memload.formats.remote.packed_objects import PackedObjects
from memload.formats.remote.remote_shards import shared_cache
from memload.formats.zarr_store import ChunkLocation, array_field, arrays_in, chosen_arrays, zarr_package

METADATA = ("zarr.json", ".zarray", ".zgroup")
"""Objects of which a Zarr array or group has one."""
_FILE = "chunks"  # the name of the mirror file


def open_remote_zarr(address: Address, keeping: Keeping, key: Key, name: str | None) -> dict[str, Field]:
    """Return the array, or the arrays of the group, at an address, as fields.

    Args:
        address: where it lies.
        keeping: where blocks are kept.
        key: as in `open_zarr`.
        name: as in `open_zarr`.

    Raises:
        FormatError, KeyError, TypeError, ImportError: as `open_zarr`.
        FileNotFoundError, PermissionError, ShardReadError: as `Objects.listing`.
        ValueError: as `open_zarr`; or it is the address of a web server.
    """
    refuse_web_server(address.objects())
    zarr = zarr_package(address.url)
    store = zarr.storage.ObjectStore(address.objects(repeating=True).store, read_only=True)
    try:
        arrays = arrays_in(zarr, store)
    except Exception as error:  # what zarr raises depends on what is wrong with the metadata
        raise FormatError(f"{address.url}: zarr cannot read it: {first_line(error)}") from error
    chosen = chosen_arrays(address.url, arrays, key, name)
    chunks = ChunksInStore.at(ZarrAddress(address, keeping, listed_chunks(address.objects())))
    return {name: array_field(address.url, name, array, chunks) for name, array in chosen.items()}


def refuse_web_server(objects: Objects) -> None:
    """Raise ValueError for a web server."""
    if type(objects.store).__name__ == "HTTPStore":
        raise ValueError(
            f"{objects.url}: a web server does not list its files, so the chunks of an array cannot be found; give "
            "the address of the store behind it, or write the array as shards, which have an index"
        )


def listed_chunks(objects: Objects) -> dict[str, Listed]:
    """Return the chunks and shards of all arrays, in the order of their coordinates; raises as `Objects.listing`."""
    found = objects.listing()
    return {name: found[name] for name in sorted(found, key=_order) if not _is_metadata(name)}


@dataclass(frozen=True)
class ZarrAddress:
    """By what another process finds the blocks of the arrays.

    It carries the listing that the tables of chunks follow: what is written beside the arrays later has no place in it.

    Attributes:
        address: where they lie.
        keeping: where blocks are kept.
        listed: the chunks when the arrays were opened, by name.
    """

    address: Address
    keeping: Keeping
    listed: Mapping[str, Listed] = field(compare=False, repr=False)

    def storage(self, _number: int) -> Storage:
        """Return the mirror file of all chunks, mapped in this process."""
        return ChunksInStore.at(self).cache.storage(0)


@dataclass(frozen=True)
class ChunksInStore:
    """The chunks and shards of all arrays at an address.

    Attributes:
        objects: what reads them.
        listed: their names and sizes.
        cache: their blocks, in one file.
        packed: their places in that file.
    """

    objects: Objects
    listed: Mapping[str, Listed]
    cache: BlockCache
    packed: PackedObjects

    @classmethod
    def at(cls, where: ZarrAddress) -> ChunksInStore:
        """Return the chunks that an address lists."""
        objects = where.address.objects()
        content = json.dumps(list(where.listed.items())).encode()

        def make() -> BlockCache:
            packed = PackedObjects(objects, where.listed, LEAST_BLOCK)
            return BlockCache(packed, content, [RemoteFile(_FILE, packed.nbytes)], LEAST_BLOCK, where.keeping, where)

        cache = shared_cache(where, content, make)
        assert isinstance(cache.objects, PackedObjects)
        return cls(objects, where.listed, cache, cache.objects)

    def below(self, folder: str, _depth: int) -> dict[str, ChunkLocation]:
        """Return the places of all keys below a folder, by keys relative to it."""
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        inside = {name: one for name, one in self.listed.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): self._place(name, one) for name, one in inside.items()}

    def storages(self, ends: Mapping[str, int]) -> list[Storage]:
        """Return the mirror file, which all chunks lie in."""
        return [self.cache.storage(0) for _ in ends]

    def read_all(self, wanted: Sequence[tuple[ChunkLocation, int, int]]) -> list[bytes]:
        """Return parts of chunks: of each (place, begin within it, bytes). Raises as `Objects.read`."""
        prefix = len(self.objects.url) + 1
        return self.objects.read_all([(place.name[prefix:], at, at + nbytes) for place, at, nbytes in wanted])

    def _place(self, name: str, listed: Listed) -> ChunkLocation:
        return ChunkLocation(_FILE, self.packed.begin_of[name], listed.nbytes, self.objects.url_of(name))


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] in (*METADATA, ".zattrs", ".zmetadata")


def _order(name: str) -> list[tuple[int, str]]:
    """Return a key by which chunks lie in the order of their coordinates."""
    parts = name.replace(".", "/").split("/")
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]
