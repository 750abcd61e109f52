"""Single rows on their way to a file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memload.ragged_rows.spec import RaggedSpec
from memload.ragged_rows.writing import AnyRows, RaggedRows, joined_rows
from memload.shards.index import AnySpec, FieldSpec
from memload.shards.rows import Rows

_BUFFER_BYTES = 2**22  # before they are written
_BUFFER_ROWS = 4096


class RowBuffer:
    """Single rows, copied, until there are enough of them to be worth a write."""

    def __init__(self, fields: Mapping[str, AnySpec]) -> None:
        row_bytes = sum(field.row_bytes for field in fields.values())
        self._capacity = min(_BUFFER_ROWS, max(1, _BUFFER_BYTES // max(1, row_bytes)))
        self._rows = {
            name: Rows(field.dtype, field.shape, np.empty((self._capacity, field.row_bytes), dtype=np.uint8))
            for name, field in fields.items()
            if isinstance(field, FieldSpec)
        }
        self._ragged: dict[str, list[RaggedRows]] = {
            name: [] for name, field in fields.items() if isinstance(field, RaggedSpec)
        }
        self._ragged_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Mapping[str, AnyRows]) -> bool:
        """Copy one row in; return whether the buffer is now full."""
        for name, part in row.items():
            if isinstance(part, RaggedRows):
                self._ragged[name].append(joined_rows([part]))
                self._ragged_bytes += part.nbytes
            else:
                self._rows[name].data[self._count] = part.data[0]
        self._count += 1
        return self._count == self._capacity or self._ragged_bytes >= _BUFFER_BYTES

    def take(self) -> dict[str, AnyRows]:
        """Return the rows, valid until the next `add`, and begin anew."""
        count, self._count, self._ragged_bytes = self._count, 0, 0
        taken: dict[str, AnyRows] = {name: rows.cut(0, count) for name, rows in self._rows.items()}
        for name, parts in self._ragged.items():
            taken[name], self._ragged[name] = joined_rows(parts), []
        return taken
