"""The offsets of rows and of encoded blocks, as an index states them: then nobody reads them from each shard.

A tensor of offsets is int64 and ascends from 0. The index has the differences of its elements, as bytes of "<i8" that
are compressed by zlib and written in base64.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from memload.errors import ShardFormatError

_MOST_RAW, _MOST_STATED = 1 << 20, 1 << 14  # bytes of a tensor, and characters that an index has of it


def stated_offsets(tensors: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return what an index states of tensors of offsets: of those that are small then.

    Args:
        tensors: the name of each, and its bytes.
    """
    small = ((name, raw) for name, raw in tensors if len(raw) <= _MOST_RAW)
    return {name: text for name, raw in small if len(text := stated(raw)) <= _MOST_STATED}


def stated(raw: Any) -> str:
    """Return the text of a tensor's bytes."""
    differences = np.diff(np.frombuffer(raw, dtype="<i8")).astype("<i8")
    return base64.b64encode(zlib.compress(differences.tobytes())).decode()


def raw_offsets(text: str, nbytes: int) -> bytes:
    """Return the bytes of a tensor, of which there are `nbytes`, from its text. Raises ShardFormatError."""
    unpacking = zlib.decompressobj()
    try:
        differences = unpacking.decompress(base64.b64decode(text, validate=True), max(1, nbytes))
    except (zlib.error, binascii.Error, ValueError) as error:
        raise ShardFormatError(f"offsets must be base64 of zlib ({error}); restore the index") from None
    if len(differences) + 8 != nbytes or not unpacking.eof:
        raise ShardFormatError(f"offsets of {nbytes} bytes are stated with other lengths; restore the index")
    return b"\0" * 8 + np.cumsum(np.frombuffer(differences, dtype="<i8")).astype("<i8").tobytes()
