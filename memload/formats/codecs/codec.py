"""The codec of a field in shards: the compressor, its level, and the number of rows that it compresses at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from memload._core import Chain
from memload.errors import ShardFormatError
from memload.sizes import counted

LARGEST_BLOCK = 2**30  # bytes that are decoded at once
_SHUFFLES = ("none", "byte", "bit")
_LEVELS = {"lz4": range(1, 13), "zstd": range(-7, 23), "blosc2": range(10)}
_USUAL_LEVELS = {"lz4": 1, "zstd": 3, "blosc2": 5}
_LARGE_ROW = 4096  # bytes from which on a row is a block of its own by default
_USUAL_BLOCK = 2**14  # bytes of a block of smaller rows


@dataclass(frozen=True)
class Codec:
    """How to compress the rows of a field: `memload.write(..., codec={"stim": Codec("zstd", level=9)})`.

    Rows that are compressed are decoded by the loader's threads. A batch pays for whole blocks, so blocks of several
    rows suit rows that are small, or read in order.

    Args:
        name: "lz4" decodes fastest and compresses least; "zstd" compresses best; "blosc2" is Zstandard in blocks that
            fit the processor's caches, for rows of megabytes.
        level: 1 to 12 for lz4 (1 if not given), -7 to 22 for zstd (3), 0 to 9 for blosc2 (5). Higher levels write more
            slowly for fewer bytes, and decode about as fast.
        shuffle: "byte" brings the first bytes of all elements together, then the second ones; "bit" does so with bits.
            Both help for numbers whose upper bytes or bits vary little. "none": neither. If not given: "byte" where an
            element has several bytes.
        rows: rows that are compressed as one block; in ragged fields items, across rows. If not given: 1 for those of
            4096 bytes or more, and as many as fit into 16 KiB for smaller ones. In a codec for all fields it does not
            apply to ragged ones.

    Raises:
        ValueError: the name, level or shuffle is invalid, or `rows` is less than one.

    Example:
        >>> import memload, tempfile, torch
        >>> betas = torch.randint(-300, 300, (100, 5000), dtype=torch.int16)
        >>> codec = memload.Codec("zstd", shuffle="bit")
        >>> ds = memload.write(tempfile.mkdtemp() + "/shards", {"betas": betas}, codec={"betas": codec})
        >>> torch.equal(ds[7]["betas"], betas[7])
        True
    """

    name: str
    level: int | None = None
    shuffle: str | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.name not in _LEVELS:
            raise ValueError(f"no codec is called {self.name!r}; there are {', '.join(_LEVELS)}")
        levels = _LEVELS[self.name]
        if self.level is None:
            object.__setattr__(self, "level", _USUAL_LEVELS[self.name])
        if type(self.level) is not int or self.level not in levels:
            raise ValueError(f"{self.name} has the levels {levels[0]} to {levels[-1]}, not {self.level!r}")
        if self.shuffle is not None and self.shuffle not in _SHUFFLES:
            raise ValueError(f"shuffle is one of {', '.join(_SHUFFLES)}, not {self.shuffle!r}")
        if self.rows is not None and (type(self.rows) is not int or self.rows < 1):
            raise ValueError(f"rows, of a block, must be at least 1, not {self.rows!r}")

    @staticmethod
    def parse(text: str) -> Codec:
        """Return the codec of a text such as "zstd", "lz4:9" or "zstd:level=9,shuffle=bit,rows=8".

        Raises:
            ValueError: the text is no valid codec; the message lists the valid ones.

        Example:
            >>> import memload
            >>> memload.Codec.parse("zstd:9,shuffle=bit")
            Codec(name='zstd', level=9, shuffle='bit', rows=None)
        """
        name, _, options = text.partition(":")
        chosen: dict[str, str] = {}
        for option in filter(None, options.split(",")):
            key, equals, value = option.partition("=")
            chosen[key if equals else "level"] = value if equals else key
        unknown = chosen.keys() - {"level", "shuffle", "rows"}
        if unknown:
            raise ValueError(f"codec {text!r}: {sorted(unknown)[0]!r} is none of level, shuffle and rows")
        try:
            level, rows = (int(chosen[key]) if key in chosen else None for key in ("level", "rows"))
            return Codec(name, level, chosen.get("shuffle"), rows)
        except ValueError as error:
            raise ValueError(f"codec {text!r}: {error}") from None

    def __str__(self) -> str:
        """Return the text from which `parse` makes this codec."""
        options = [f"level={self.level}"]
        options += [f"{key}={value}" for key, value in (("shuffle", self.shuffle), ("rows", self.rows)) if value]
        return f"{self.name}:{','.join(options)}"

    def of(self, dtype: torch.dtype, shape: Iterable[int]) -> Codec:
        """Return this codec with all defaults resolved for such rows.

        Raises:
            ValueError: a block would have more than 1 GiB.
        """
        row_bytes = max(1, dtype.itemsize * math.prod(shape))
        rows = self.rows or (1 if row_bytes >= _LARGE_ROW else _USUAL_BLOCK // row_bytes)
        if rows * row_bytes > LARGEST_BLOCK:
            raise ValueError(f"a block of {rows:,} rows of {row_bytes:,} bytes has more than 1 GiB: give fewer rows")
        return replace(self, rows=rows, shuffle=self.shuffle or ("byte" if dtype.itemsize > 1 else "none"))

    def chain(self, element: int) -> Chain:
        """Return the chain of filters for blocks of elements of `element` bytes."""
        if self.name == "blosc2":
            return Chain([("blosc", element, 0)])
        shuffles = {"byte": [("shuffle", element, 0)], "bit": [("bitshuffle", element, 0)]}
        return Chain([*shuffles.get(self.shuffle or "none", []), (self.name, 0, 0)])

    def encode(self, chain: Chain, block: bytes | memoryview) -> bytes:
        """Return a block encoded with a chain that `chain` returned. It runs without the GIL."""
        return chain.encode(block, self.level or 0, "zstd", self.shuffle or "none")


def parse_codec_entry(where: str, entry: object, unit_bytes: int, block_rows: int) -> Codec:
    """Return the codec in an index. Raises ShardFormatError, naming `where`.

    Args:
        where: the field, for messages.
        entry: the value of "codec".
        unit_bytes: the bytes of one row, or of one item of a ragged field.
        block_rows: the rows or items under one checksum.
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
            f"{where}: codec: blocks of {counted(rows, 'row')} of {unit_bytes} bytes do not fit checksums of "
            f"{counted(block_rows, 'row')}"
        )
    return codec
