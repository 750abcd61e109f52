"""A digest of rows by their bytes, for data that were read into memory and have no file that rows lie in."""

from __future__ import annotations

import numpy as np
import xxhash

from memload.columns.fields import Field, describe
from memload.formats.shards.ragged_input import RaggedRows, rows_of_field

_BLOCK_BYTES = 2**24  # of rows at once


def digest_of_rows(field: Field) -> str:
    """Return a short text that is equal for fields of equal rows in the same order; it reads all of them."""
    hasher = xxhash.xxh3_64(f"{describe(field.dtype, field.shape)} {field.rows}".encode())
    step = max(1, _BLOCK_BYTES * field.rows // max(1, field.nbytes))
    for start in range(0, field.rows, step):
        rows = rows_of_field(field, np.arange(start, min(start + step, field.rows)))
        if isinstance(rows, RaggedRows):
            hasher.update(rows.lengths.data)
            for plane in rows.planes:
                hasher.update(np.ascontiguousarray(plane).data)
        else:
            hasher.update(np.ascontiguousarray(rows.data).data)
    return hasher.hexdigest()
