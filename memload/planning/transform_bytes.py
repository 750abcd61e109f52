"""What functions of samples and batches, and casts that move pixels, take: found by calling them for two rows.

two rows -> transform_pipeline -> what it returns             bytes that the loop gets: so many for each slot
               `----> memory that is lent to it   bytes beside these while it works: so many for each thread
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from memload.columns.ragged_fields import holds_ragged
from memload.engine.collating import FieldSlots
from memload.engine.gatherer import BatchResult
from memload.engine.on_cpu import WholeBatches
from memload.engine.settings import PassSettings
from memload.engine.transforms.buffer_reuse import LEAST_REUSED, BufferReuse
from memload.engine.transforms.room import new_bytes, storages
from memload.engine.transforms.seeding import Drawing, PassSeed
from memload.engine.transforms.transform_pipeline import TransformPipeline
from memload.sampling.draws import Indices

_ROWS = 2  # of a batch for the trial: one row looks to many a function like no batch
_HUGE_PAGE = 2 << 20

# What the C library keeps of samples that a function makes in its memory, for each thread: measured, with glibc 2.36.
# Torch asks it for aligned memory, and what lies between two of its blocks keeps them from becoming one again: so a
# sample seldom lies where one died before, until some 20 have lived. Arrays of numpy are not aligned.
_KEPT_TENSORS, _KEPT_ARRAYS = 20, 4
_KEPT_OF_SMALL = 2 << 20  # bytes, with those samples that are made before they are put into the batch
_MAPPED = 32 << 20  # bytes of a sample from which on its memory goes back to the system


@dataclass(frozen=True)
class MadeBytes:
    """What a transform_pipeline takes, in bytes.

    Attributes:
        batch: of what it makes of a batch; what it hands on of the gathered memory is left out.
        work: beside that while one thread makes a batch: memory that is lent to it, and what is kept for its samples.
    """

    batch: int = 0
    work: int = 0


def made_bytes(dataset: Any, settings: PassSettings, gathered_bytes: int) -> MadeBytes:
    """Return what the transform_pipeline of a pass takes.

    Args:
        dataset: whose pass it is.
        settings: of the pass.
        gathered_bytes: of a full batch before its transform, which keeps the size where it cannot be called for two
            rows.
    """
    transform_pipeline = settings.transform_pipeline
    if transform_pipeline is None or not settings.source.rows:  # of no row a function can be called
        return MadeBytes()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            batch, rows = _gathered(settings)
            ragged = holds_ragged(settings.source.fields)
            times = gathered_bytes / sum(storages(batch).values()) if ragged else settings.batch_rows / len(rows)
            return _tried(transform_pipeline, batch, rows, times)
        except Exception:  # what the user's function raises for two rows of this data, which may be without content
            if not transform_pipeline.maps:
                return MadeBytes(gathered_bytes)
            sample = dataset[0]  # where one is enough for it, it is raised again
            return MadeBytes(settings.batch_rows * sum(storages(sample).values()))


def _gathered(settings: PassSettings) -> tuple[Any, Indices]:
    """Return two rows of the dataset as a batch, before any function."""
    rows = np.arange(min(_ROWS, settings.source.rows), dtype=np.int64)
    few = replace(settings, batch_rows=len(rows), slot_rows=len(rows), planned_rows=len(rows), depth=1, threads=1)
    batches = WholeBatches(replace(few, transform_pipeline=None, drop_last=False), None)
    try:
        batches.push(rows)
        batches.finish()
        batch = batches.next(0)
        return batch.result() if isinstance(batch, BatchResult) else batch, rows
    finally:
        batches.close(keep_slots=False)


def _tried(transform_pipeline: TransformPipeline, batch: Any, rows: Indices, times: float) -> MadeBytes:
    """Return what a transform_pipeline takes of a full batch, so many times as large as this one."""
    before = storages(batch)
    first, last = replace(transform_pipeline, transform=None), replace(transform_pipeline, maps=(), casts={})
    work = kept = 0
    if first.maps or first.casts:
        lent = _Counted()
        samples = _SampleMemory(before, lent)
        if first.maps:
            first = replace(first, maps=(*first.maps, Drawing(samples)))
        batch, work = _run(first, batch, rows, LEAST_REUSED, lent)  # samples keep their size; few exist at a time
        kept = samples.kept
    between = new_bytes(batch, before)
    if transform_pipeline.transform is not None:
        batch, of_batch = _run(last, batch, rows, max(1, math.floor(LEAST_REUSED / times)), _Counted())
        work = max(work, math.ceil(times * (of_batch + between)))
    return MadeBytes(math.ceil(times * new_bytes(batch, before)), work + kept)


def _run(
    transform_pipeline: TransformPipeline, batch: Any, rows: Indices, least: int, lent: _Counted
) -> tuple[Any, int]:
    """Return what a transform_pipeline makes, and the most bytes that were lent to it beside what it returned."""
    random = BufferReuse(lent, least)
    made = transform_pipeline.apply(batch, rows, PassSeed(0), random, lent)
    return made, lent.most - lent.bytes


class _SampleMemory:
    """Looks, as the last function of samples, at what they lie on; hands them on.

    Args:
        gathered: memory that they were cut from.
        lent: lends them ours.
    """

    def __init__(self, gathered: dict[int, int], lent: _Counted) -> None:
        self._gathered, self._lent = gathered, lent
        self.kept = 0
        """Bytes that the C library keeps for samples like the largest, for each thread."""

    def __call__(self, sample: Any) -> Any:
        """Return the sample."""
        made = {place: nbytes for place, nbytes in storages(sample).items() if not self._is_ours(place)}
        small = sum(nbytes for nbytes in made.values() if nbytes < _MAPPED)
        arrays = all(isinstance(part, np.ndarray) for part in _parts(sample))
        kept = small * (_KEPT_ARRAYS if arrays else _KEPT_TENSORS) + 2 * (sum(made.values()) - small)
        self.kept = max(self.kept, kept + _KEPT_OF_SMALL * bool(made))
        return sample

    def _is_ours(self, place: int) -> bool:
        return place in self._lent.places or any(start <= place < start + n for start, n in self._gathered.items())


def _parts(sample: Any) -> Iterable[Any]:
    if isinstance(sample, dict):
        return sample.values()
    return sample if isinstance(sample, list | tuple) else [sample]


class _Counted(FieldSlots):
    """Lends fresh memory, and counts what is lent at one time."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bytes = self.most = 0
        self.places: set[int] = set()
        """Where what is lent begins."""

    def take(self, _: Hashable, nbytes: int) -> torch.Tensor:
        """Return so many bytes."""
        memory = np.empty(nbytes, dtype=np.uint8)
        size = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE if nbytes >= LEAST_REUSED else nbytes
        self.bytes += size
        self.most = max(self.most, self.bytes)
        place = memory.ctypes.data
        self.places.add(place)
        weakref.finalize(memory, self._gone, place, size)
        return torch.from_numpy(memory)

    def _gone(self, place: int, size: int) -> None:
        self.bytes -= size
        self.places.discard(place)
