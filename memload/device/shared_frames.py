"""Sends windows of streamed batches as frames: each frame crosses the bus once, and the device builds the windows.

rows of a batch -> frames of its windows, each once -> slot -> bus -> one kernel: windows (+ cast) -> batch
                   csrc/core/readers/shared_frames.h                          gathering.py
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

from memload._core import Windows
from memload.casts.rule import Cast
from memload.columns.fields import Field
from memload.device.casting import cast_on_device
from memload.device.frames import windows_of
from memload.device.gathering import expand_windows, gather_rows, steps_on
from memload.engine.gather_spec import GatherSpec, Key

_MOST_TAKEN = 0.7  # of the bytes of a batch's windows, as in csrc/core/readers/shared_frames.cpp
_PLACE_BYTES = 8


@dataclass(frozen=True)
class SharedFrames(Field):
    """A field of windows whose batches a device builds of their frames.

    Args:
        column: the windows.
        cast: their cast on the device; None: no cast.
        index_bytes: bytes of row numbers of this column beyond those of the field that it was made from.
    """

    column: Windows
    cast: Cast | None = None
    index_bytes: int = field(default=0, compare=False)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of a frame."""
        return self.shape[1:]

    @property
    def pipeline_column(self) -> Windows:
        """The column that gives frames, each once, and the places of windows among them."""
        return self.column.sharing()

    @property
    def built(self) -> torch.dtype:  # type: ignore[override]  # of other fields an attribute: it never changes
        """The dtype of the windows."""
        return self.dtype if self.cast is None else self.cast.dtype

    @functools.cached_property
    def _run(self) -> tuple[int, ...]:
        return _run(self.column)

    def assembled(self, values: torch.Tensor, more: Iterator[torch.Tensor]) -> torch.Tensor:
        """Return the windows of these frames on their device, queued in its current stream."""
        places, count = next(more), self.shape[0]
        if not len(places):  # few frames are shared, so these are the windows themselves
            windows = values.view(len(values) // count, *self.shape)
            return windows.clone() if self.cast is None else cast_on_device(windows, self.cast)
        if self._run:
            return expand_windows(values, places, steps_on(self._run, values.device), self.cast)
        windows = gather_rows(values, places).view(len(places) // count, *self.shape)
        return windows if self.cast is None else cast_on_device(windows, self.cast)


def with_shared_frames(source: GatherSpec, sampler: Any, batch_rows: int) -> GatherSpec:
    """Return a raw source with its fields of windows as `SharedFrames`, where that may reduce the bytes.

    Each batch decides for itself when it is planned, so slots and device memory are sized for windows that share
    nothing. Fields stay unchanged if rows are drawn at random from many more frames than a batch has.

    Args:
        source: a source with ``raw``.
        sampler: the sampler of the pass.
        batch_rows: rows of a batch.
    """
    drawn = batch_rows if _draws_anywhere(sampler) else 0
    found = {
        key: shared for key, one in source.fields.items() if (shared := _shared(one, source.casts.get(key), drawn))
    }
    casts: Mapping[Key, Cast] = {key: cast for key, cast in source.casts.items() if key not in found}
    return replace(source, fields={**source.fields, **found}, casts=casts) if found else source


def _shared(one: Field, cast: Cast | None, drawn: int) -> SharedFrames | None:
    """Return the field with shared frames; None if a batch with `drawn` random rows cannot gain by it."""
    windows = windows_of(one)
    if windows is None or len(windows.steps) < 2 or not one.row_bytes or one.built:
        return None
    places = _PLACE_BYTES * (1 if _run(windows) else len(windows.steps))
    if places > _MOST_TAKEN * one.row_bytes or _expected(windows, drawn) > _MOST_TAKEN:
        return None
    index_bytes = 0 if windows is one.column else windows.selection_bytes
    return SharedFrames(one.dtype, one.shape, windows, one.owners, one.digest, cast=cast, index_bytes=index_bytes)


def _expected(windows: Windows, drawn: int) -> float:
    """Return the expected share of distinct frames in `drawn` random windows; 0 for no windows."""
    per_frame = drawn * len(windows.steps) / max(1, min(windows.rows, windows.frames.rows))
    return -math.expm1(-per_frame) / per_frame if per_frame else 0.0


def _draws_anywhere(sampler: Any) -> bool:
    """Return whether a batch has random rows of the whole dataset."""
    rows = getattr(sampler, "sampler", sampler)
    return type(rows) is RandomSampler or (type(rows) is DistributedSampler and rows.shuffle)


def _run(windows: Windows) -> tuple[int, ...]:
    """Return the steps counted from the lowest one, if they have no gap; else an empty tuple."""
    steps = windows.steps
    lowest = min(steps)
    return tuple(step - lowest for step in steps) if len(set(steps)) == max(steps) - lowest + 1 else ()


def index_bytes(source: GatherSpec) -> int:
    """Return the bytes of row numbers for shared frames, beyond those of the dataset."""
    return sum(one.index_bytes for one in source.fields.values() if isinstance(one, SharedFrames))
