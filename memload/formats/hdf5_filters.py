"""The names that the native decoder has for HDF5's filters, by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memload.errors import FormatError

Filter = tuple[str, int, int]
"""The name of a native filter, the bytes of an element, and the elements of a block; 0 where it has no use for them."""

Pipeline = Sequence[tuple[int, tuple[int, ...], str]]
"""(number, client data, name) of each filter, in the order in which the writer applied them."""


def native_filters(where: str, pipeline: Pipeline, item_bytes: int, otherwise: str) -> list[Filter]:
    """Return the native filters of a pipeline; `otherwise` says what else to do in the message.

    Raises:
        FormatError: memload does not decode one of the filters; the message names it and says what to do.
    """
    for number, values, name in pipeline:
        if number not in _NATIVE:
            plugin = ", after import hdf5plugin" if number > _OF_HDF5 else ""
            raise FormatError(
                f"{where}: its chunks went through HDF5's filter {number} ({_KNOWN.get(number) or name or 'unknown'}), "
                f"which memload does not decode; rewrite it with one that it does ({_DECODED}): "
                f"h5repack -f GZIP=4 OLD NEW; or {otherwise}{plugin}"
            )
        unknown = _CODECS[number](values) if number in _CODECS else None
        if unknown is not None:
            raise FormatError(
                f"{where}: its chunks went through {unknown}, which memload does not decode; rewrite it with one that "
                f"it does ({_DECODED}): h5repack -f GZIP=4 OLD NEW; or {otherwise}, after import hdf5plugin"
            )
    return [_native(where, number, values, item_bytes) for number, values, _ in pipeline]


_OF_HDF5 = 255  # the library keeps the numbers up to this for filters of its own


def _native(where: str, number: int, values: tuple[int, ...], item_bytes: int) -> Filter:
    return _NATIVE[number](where, values, item_bytes)


def _bitshuffle(_where: str, values: tuple[int, ...], item_bytes: int) -> Filter:
    # major and minor version, bytes of an element, elements of a block, codec
    element = values[2] if len(values) > 2 else item_bytes
    block = values[3] if len(values) > 3 else 0
    codec = values[4] if len(values) > 4 else 0
    return _BITSHUFFLED[codec], element, block


_BITSHUFFLED = {0: "bitshuffle", 2: "bitshuffle_lz4", 3: "bitshuffle_zstd"}
_BLOSC = {0: "blosclz", 1: "lz4", 2: "lz4hc", 3: "snappy", 4: "zlib", 5: "zstd"}
_OF_BLOSC = (0, 1, 2, 4, 5)  # those that c-blosc2 has


def _codec_of_bitshuffle(values: tuple[int, ...]) -> str | None:
    """Return the name of the codec after bitshuffle if it is not decoded, else None."""
    codec = values[4] if len(values) > 4 else 0
    return None if codec in _BITSHUFFLED else f"bitshuffle with the codec {codec}"


def _codec_of_blosc(values: tuple[int, ...]) -> str | None:
    # version of the filter and of the format, bytes of an element and of a chunk, level, shuffle, codec
    codec = values[6] if len(values) > 6 else 0
    return None if codec in _OF_BLOSC else f"blosc with the codec {_BLOSC.get(codec, codec)}"


_CODECS: dict[int, Callable[[tuple[int, ...]], str | None]] = {32001: _codec_of_blosc, 32008: _codec_of_bitshuffle}


_NATIVE: dict[int, Callable[[str, tuple[int, ...], int], Filter]] = {
    1: lambda _where, _values, _item: ("deflate", 0, 0),
    2: lambda _where, values, item: ("shuffle", values[0] if values else item, 0),
    3: lambda _where, _values, _item: ("fletcher32", 0, 0),
    32000: lambda _where, _values, _item: ("lzf", 0, 0),
    32001: lambda _where, _values, _item: ("blosc", 0, 0),
    32004: lambda _where, _values, _item: ("lz4_blocks", 0, 0),
    32008: _bitshuffle,
    32015: lambda _where, _values, _item: ("zstd", 0, 0),
}
_DECODED = "deflate, shuffle, fletcher32, lzf, and of hdf5plugin blosc, bitshuffle, lz4 and zstd"
_KNOWN = {
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    307: "bzip2",
    32013: "zfp",
    32017: "sz",
    32018: "fcidecomp",
    32019: "jpeg",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}
