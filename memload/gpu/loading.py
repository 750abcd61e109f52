"""Rows into one tensor, wherever it lies, in chunks that native threads gather."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from memload import _core
from memload.batches.layout import Only
from memload.engine.cold import reads_blocks, reads_directly
from memload.engine.source import Source
from memload.fields import Field
from memload.gpu.frames import Numbers
from memload.memory.budget import local_threads
from memload.progress import Bar

CHUNK_BYTES = 64 << 20
"""Bytes of a chunk; three are in memory at a time, one of which is on its way."""


_AHEAD = 2  # chunks that are gathered while one is copied


def fill(table: torch.Tensor, field: Field, rows: Numbers | range, shown: Bar) -> None:
    """Copy some rows of a field into a table, in their order.

    Args:
        table: uint8 (rows, bytes of a row), contiguous, on any device.
        field: in files or arrays.
        rows: row numbers; rising ones are read fastest.
        shown: counts the bytes.

    Raises:
        ShardReadError: a file cannot be read any more.
        RuntimeError: the device has no memory left for a chunk, or a tensor's memory was moved away.
    """
    if not table.numel():
        return
    begin = 0
    for chunk in _chunks(field, rows):
        end = begin + len(chunk)
        table[begin:end].copy_(chunk.reshape(len(chunk), -1).view(torch.uint8))
        shown.update(chunk.nbytes)
        begin = end


def _chunks(field: Field, rows: Numbers | range) -> Iterator[torch.Tensor]:
    source = Source({0: field}, Only(), {})
    source.check_in_place()
    most = max(1, min(len(rows), CHUNK_BYTES // field.row_bytes))
    unpack = source.unpacker()
    pipeline = _core.Pipeline(
        source.pipeline_fields(),
        batch_rows=most,
        slot_rows=most,
        drop_last=False,
        depth=_AHEAD,
        threads=local_threads(),
        read_blocks=reads_blocks(source, len(rows)),
        direct=reads_directly(source, len(rows), None),
    )
    begins = range(0, len(rows), most)
    try:
        for number in range(len(begins) + _AHEAD):
            if number < len(begins):
                pipeline.push(np.asarray(rows[begins[number] : begins[number] + most], dtype=np.int64))
            if number >= _AHEAD:
                yield unpack(pipeline.next())
    finally:
        pipeline.close()
