"""The codec of a field, as an index states it."""

from __future__ import annotations

from memload.codecs.codec import LARGEST_BLOCK, Codec
from memload.errors import ShardFormatError


def parse_codec_entry(where: str, entry: object, unit_bytes: int, block_rows: int) -> Codec:
    """Return the codec that an index states. Raises ShardFormatError, naming `where`.

    Args:
        where: which field it is of.
        entry: the value of "codec".
        unit_bytes: of what its `rows` counts: rows, or items of rows that differ in length.
        block_rows: how many of these share a checksum.
    """
    if not isinstance(entry, dict) or set(entry) != {"name", "level", "shuffle", "rows"} or None in entry.values():
        raise ShardFormatError(
            f"{where}: codec: expected an object of name, level, shuffle and rows, got {entry!r:.80}"
        )
    try:
        codec = Codec(**entry)
    except (TypeError, ValueError) as error:
        raise ShardFormatError(f"{where}: codec: {error}") from error
    rows = codec.rows or 1
    if unit_bytes == 0 or rows * unit_bytes > LARGEST_BLOCK or block_rows % rows:
        raise ShardFormatError(
            f"{where}: codec: blocks of {rows} rows of {unit_bytes} bytes cannot be, with checksums of {block_rows} "
            "rows"
        )
    return codec
