"""The layout of a Zarr array, version 2 or 3: its chunks, filters and keys, from the metadata of the zarr package."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload._core import Chain
from memload.errors import FormatError

Filter = tuple[str, int, int]  # name, bytes of an element, elements in a block
ABSENT = 2**64 - 1
"""The entry in a shard's index for a chunk that was never written."""


@dataclass(frozen=True)
class ZarrShardIndex:
    """The table at one end of a shard with the offset and bytes of each of its chunks.

    Attributes:
        chunks: the number of chunks.
        at_end: whether it is at the end of the shard, rather than at the start.
        little: whether its byte order is little-endian.
        checked: whether a checksum (CRC-32C) follows it.
    """

    chunks: int
    at_end: bool
    little: bool
    checked: bool

    @property
    def nbytes(self) -> int:
        """The bytes of the table and its checksum."""
        return 16 * self.chunks + 4 * self.checked

    def parse(self, stored: bytes) -> NDArray[np.uint64]:
        """Return the table (chunks, 2): offset and bytes, both ABSENT for a missing chunk.

        Raises:
            FormatError: the table is cut short, or its checksum differs.
        """
        if len(stored) != self.nbytes:
            raise FormatError(f"the index of its chunks has {self.nbytes} bytes, but {len(stored)} are there")
        if self.checked:
            try:
                stored = Chain([("crc32c", 0, 0)]).decode(stored, 16 * self.chunks)
            except Exception as error:
                raise FormatError(f"the index of its chunks is damaged: {error}") from None
        return np.frombuffer(stored, "<u8" if self.little else ">u8").reshape(-1, 2).astype(np.uint64)


@dataclass(frozen=True)
class ZarrLayout:
    """The layout of an array.

    Attributes:
        dtype: the dtype of the elements, in this machine's byte order.
        shape: the shape of the array.
        file_shape: the shape of the data under one key: a chunk, or a shard of several chunks.
        tile_shape: the shape of a chunk.
        filters: the filters of a chunk, in the order in which the writer applied them.
        order: the axes of a chunk from the slowest to the fastest; empty for the usual order.
        fill: the bytes of one element of chunks that were never written.
        separator: the text between coordinates in a key; `prefix`: the text before them.
        shard: the table of a shard's chunks; None if keys have chunks.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    file_shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    filters: tuple[Filter, ...]
    order: tuple[int, ...]
    fill: bytes
    separator: str
    prefix: str
    shard: ZarrShardIndex | None = None

    @functools.cached_property
    def files(self) -> tuple[int, ...]:
        """The number of chunks or shards along each axis."""
        return _grid(self.shape, self.file_shape)

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return _grid(self.shape, self.tile_shape)

    def coordinates(self, key: str) -> tuple[int, ...] | None:
        """Return the coordinates of a key; None if it is not a key of this array."""
        numbers = key.removeprefix(self.prefix).split(self.separator)
        if len(numbers) != len(self.shape) or not all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers):
            return None
        found = tuple(map(int, numbers))
        inside = all(n < count for n, count in zip(found, self.files, strict=True))
        return found if inside and self.prefix + self.separator.join(map(str, found)) == key else None


def read_layout(array: Any) -> ZarrLayout:
    """Return the layout of a `zarr.Array`, which must have an axis.

    Raises:
        FormatError: a codec, or the dtype, is not supported; the message names it.
    """
    metadata = array.metadata
    dtype = np.dtype(array.dtype)
    native = dtype.newbyteorder("=")
    fill = np.zeros((), native) if array.fill_value is None else np.asarray(array.fill_value, native)
    stated = metadata.to_dict()
    shape = tuple(array.shape)
    if metadata.zarr_format == 2:
        chunk = tuple(stated["chunks"])
        filters = [_named(codec["id"], codec) for codec in (stated["filters"] or ())]
        filters += [] if stated["compressor"] is None else [_named(stated["compressor"]["id"], stated["compressor"])]
        order = tuple(reversed(range(len(shape)))) if stated["order"] == "F" and len(shape) > 1 else ()
        chain = (*_swapped(native, not dtype.isnative), *filters)
        separator = str(stated["dimension_separator"])
        return ZarrLayout(native, shape, chunk, chunk, chain, order, fill.tobytes(), separator, "")
    files = tuple(stated["chunk_grid"]["configuration"]["chunk_shape"])
    codecs = list(stated["codecs"])
    encoding = stated["chunk_key_encoding"]
    separator = str(encoding["configuration"]["separator"])
    prefix = "c" + separator if encoding["name"] == "default" else ""
    tile, shard = files, None
    if codecs and codecs[0]["name"] == "sharding_indexed":
        tile, codecs, shard = _shard(files, codecs)
    chain, order = _chain(native, codecs)
    return ZarrLayout(native, shape, files, tile, chain, order, fill.tobytes(), separator, prefix, shard)


def _shard(
    files: tuple[int, ...], codecs: Sequence[Mapping[str, Any]]
) -> tuple[tuple[int, ...], list[Any], ZarrShardIndex]:
    if len(codecs) > 1:
        raise FormatError(f"its shards are stored behind other codecs: {[codec['name'] for codec in codecs]}")
    stated = codecs[0]["configuration"]
    tile = tuple(stated["chunk_shape"])
    if len(tile) != len(files) or any(side < 1 or whole % side for side, whole in zip(tile, files, strict=True)):
        raise FormatError(f"its shards of {files} are no whole number of chunks of {tile}")
    names = [codec["name"] for codec in stated["index_codecs"]]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise FormatError(f"the index of its shards has the codecs {names}; bytes and crc32c are known")
    little = stated["index_codecs"][0].get("configuration", {}).get("endian", "little") == "little"
    count = int(np.prod([whole // side for side, whole in zip(tile, files, strict=True)], dtype=object))
    index = ZarrShardIndex(count, stated["index_location"] == "end", little, len(names) == 2)
    return tile, list(stated["codecs"]), index


def _chain(native: np.dtype[Any], codecs: Sequence[Mapping[str, Any]]) -> tuple[tuple[Filter, ...], tuple[int, ...]]:
    """Return the filters of a chunk, and the order of its axes."""
    rest, order = list(codecs), ()
    if rest and rest[0]["name"] == "transpose":
        order = tuple(rest.pop(0)["configuration"]["order"])
    if not rest or rest[0]["name"] != "bytes":
        names = [codec["name"] for codec in codecs]
        raise FormatError(f"its codecs are {names}; known are transpose, bytes, and then compressors")
    endian = rest.pop(0).get("configuration", {}).get("endian", "little")
    filters = [_named(str(codec["name"]).removeprefix("numcodecs."), codec.get("configuration", {})) for codec in rest]
    return (*_swapped(native, endian == "big"), *filters), () if order == tuple(range(len(order))) else order


def _swapped(native: np.dtype[Any], swapped: bool) -> tuple[Filter, ...]:
    number = native.itemsize // 2 if native.kind == "c" else native.itemsize
    return (("byteswap", number, 0),) if swapped and number > 1 else ()


_PLAIN = {"blosc": "blosc", "zstd": "zstd", "gzip": "deflate", "zlib": "deflate", "lz4": "lz4", "crc32c": "crc32c"}


def _named(name: str, options: Mapping[str, Any]) -> Filter:
    if name == "shuffle":
        return ("shuffle", int(options["elementsize"]), 0)
    if name == "crc32c" and "location" in options:  # numcodecs' own, at the beginning by default
        raise FormatError("its checksum is the one of numcodecs, which memload does not read")
    if name not in _PLAIN:
        raise FormatError(
            f"its codec {name!r} is not one that memload reads ({', '.join(sorted((*_PLAIN, 'shuffle')))}); let zarr "
            "read it once: memload.write(DIRECTORY, {NAME: zarr.open_array(PATH)})"
        )
    return (_PLAIN[name], 0, 0)


def _grid(shape: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-whole // side) for whole, side in zip(shape, chunk, strict=True))
