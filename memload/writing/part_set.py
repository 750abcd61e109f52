"""The shards of one part of a set while one writer makes them; see `memload.formats.shards.part_terms`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memload.formats.shards.index import ShardIndex, ShardRecord
from memload.formats.shards.part_terms import CompletePart, PartAttempt, PartNumber, Parts
from memload.formats.shards.row_fields import RowFields
from memload.formats.shards.sealing import check_agreement
from memload.formats.shards.staging import scratch_file


class PartSet:
    """The complete shards of one attempt to write a part.

    Args:
        folder: the parts of the set.
        number: which part.
        fields: the fields of its rows.
        options: as in `CompletePart`, as far as they are known before the first row.
        source: as in `CompletePart`.
        progress: whether to report what other writers of the same part did.

    Raises:
        FileExistsError, WriterBusyError, ValueError: as `Parts.attempt`.
    """

    def __init__(
        self,
        folder: Parts,
        number: PartNumber,
        fields: RowFields,
        options: Mapping[str, str],
        source: str | None,
        progress: bool | None,
    ) -> None:
        self._folder, self._number, self._fields = folder, number, fields
        self._options, self._source, self._progress = options, source, progress
        self._shards: list[ShardRecord] = []
        self._attempt: PartAttempt | None = folder.attempt(number)
        self._agrees = False  # with a complete part that has rows
        self.published: CompletePart | None = None

    @property
    def closed(self) -> bool:
        """Whether the part was published or discarded."""
        return self._attempt is None

    @property
    def disk(self) -> Path:
        """A path on the disk that shards are written to."""
        return self._open().disk

    @property
    def durable(self) -> bool:
        """Whether a shard has to be on that disk, beyond a failure of the machine, once it is complete."""
        return self._open().durable

    def most_on_disk(self, shard_bytes: int) -> int | None:
        """Return the most bytes that lie on that disk at once, for shards of a size; None: all of the part."""
        return self._open().most_on_disk(shard_bytes)

    @property
    def rows(self) -> int:
        """The rows of the complete shards."""
        return sum(shard.rows for shard in self._shards)

    def next_path(self) -> Path:
        """Return the path of the next shard. Raises ValueError if the fields differ from those of another part."""
        if not self._shards:
            self._check_others()
        return self._open().shard(len(self._shards))

    def memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return memory for the next shard, as `PartAttempt.memory`."""
        return self._open().memory(nbytes)

    def state(self, options: Mapping[str, str]) -> None:
        """Add options that the first row decided; call this before it is added."""
        self._options = {**self._options, **options}

    def add(self, shard: ShardRecord) -> None:
        """Record a complete shard."""
        self._open().add(shard)
        self._shards.append(shard)

    def scratch(self, nbytes: int) -> Path:
        """Return a file of `nbytes` bytes on the same disk, which belongs to the caller until the next call."""
        return scratch_file(self._open().scratch, nbytes)

    def check_process(self) -> None:
        """Raise ValueError if the part is closed, and RuntimeError in a forked child."""
        self._open().check_process()

    def publish(self) -> None:
        """Complete the part; `published` is what counts for the set. Raises as `PartAttempt.publish`."""
        self._check_others()
        self.published = self._open().publish(self.own, self._progress)
        self._attempt = None

    def discard(self) -> None:
        """Remove the files of this attempt. May be called again, also after `publish`."""
        if self._attempt is not None:
            self._attempt.discard()
            self._attempt = None

    leave = discard
    """A part is written as a whole: an interrupted attempt keeps nothing."""

    @property
    def own(self) -> CompletePart:
        """The part of the rows so far."""
        index = ShardIndex(self._fields.specs, tuple(self._shards))
        return CompletePart(self._number, index, self._options, self._source)

    def _check_others(self) -> None:
        """Compare with a complete part that has rows, so that what cannot be sealed is refused before it is written."""
        for other in () if self._agrees else self._open().others():
            self._check_other(other)
            self._agrees = bool(other.index.fields)
            if self._agrees:
                return

    def _check_other(self, other: CompletePart) -> None:
        try:
            check_agreement(self.own, other)
        except ValueError as error:
            target = self._folder.target
            raise ValueError(f"{target}: {error}; to write all parts anew, remove {target} first") from None

    def _open(self) -> PartAttempt:
        if self._attempt is None:
            raise ValueError(f"{self._folder.target}: this writer of {self._number} is closed")
        return self._attempt
