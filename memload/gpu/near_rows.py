"""Rows of a field on a device, gathered there, and cast by the same kernel where there is one.

rows -> numbers of frames, to the device -> one kernel: gather + cast -> (rows, *shape)
        frames.py                           gathering.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memload.casts.rule import Cast
from memload.gpu.casting import cast_on_device
from memload.gpu.frames import Numbers
from memload.gpu.gathering import expand_windows, gather_rows, steps_on
from memload.gpu.near import NearField, on_device

_FUSED = (torch.uint8, torch.int8, torch.int16, torch.float16, torch.float32)


def near_rows(
    field: NearField, rows: Numbers, cast: Cast | None = None, seeds: Sequence[int] | None = None
) -> torch.Tensor:
    """Return a fresh tensor (len(rows), *shape) of these rows on their device, after the cast.

    Args:
        field: where they lie.
        rows: int64.
        cast: what becomes of them; None: nothing.
        seeds: where the cast draws, one for each row.

    Raises:
        IndexError: a row is not there.
    """
    made = None
    if cast is not None and type(cast) is Cast and field.dtype in _FUSED and len(rows) and field.row_bytes:
        made = _by_one_kernel(field, rows, cast, seeds)
    if made is not None:
        field.column.was_read()
        return made
    made = field.gather(rows)
    return made if cast is None else cast_on_device(made, cast, seeds=seeds)


def _by_one_kernel(field: NearField, rows: Numbers, cast: Cast, seeds: Sequence[int] | None) -> torch.Tensor | None:
    table, index = field.column.table, field.column.index
    stored = table.view(field.dtype)
    if index.steps is None:
        numbers = on_device(index.numbers(rows), table.device)
        return gather_rows(stored.view(-1, *field.shape), numbers, cast, seeds=seeds)
    if index.places is not None or cast.places:
        return None
    begins, steps = on_device(index.begin(rows), table.device), steps_on(index.steps, table.device)
    return expand_windows(stored.view(-1, *field.shape[1:]), begins, steps, cast)
