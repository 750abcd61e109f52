"""The bytes of functions of samples and batches, and of casts that move pixels, measured by calling them for two rows.

two rows -> transform_pipeline -> its result             bytes of the batch, for each slot
               `----> reused buffers                     further bytes while it works, for each thread
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
from memload.engine.on_cpu import into_slots
from memload.engine.settings import PassSettings, bytes_of_slot
from memload.engine.transforms.buffer_reuse import LEAST_REUSED, BufferReuse
from memload.engine.transforms.room import new_bytes, storages
from memload.engine.transforms.seeding import Drawing, PassSeed
from memload.engine.transforms.transform_pipeline import TransformPipeline
from memload.sampling.draws import Indices

_ROWS = 2  # of the measured batch; some functions do not treat one row as a batch
_HUGE_PAGE = 2 << 20

# Samples whose memory the C library keeps for each thread, measured with glibc 2.36. Torch allocates aligned memory;
# gaps between aligned blocks prevent their merging, so some 20 samples exist before memory is reused. Arrays of numpy
# are not aligned.
_KEPT_TENSORS, _KEPT_ARRAYS = 20, 4
_KEPT_OF_SMALL = 2 << 20  # bytes, including samples that wait to be collated
_MAPPED = 32 << 20  # bytes: the memory of larger samples goes back to the system


@dataclass(frozen=True)
class MadeBytes:
    """The bytes of a transform pipeline.

    Attributes:
        batch: bytes of its result for a batch, without gathered memory that it returns unchanged.
        work: further bytes while one thread makes a batch: reused buffers, and memory kept for samples.
    """

    batch: int = 0
    work: int = 0


def made_bytes(dataset: Any, settings: PassSettings, gathered_bytes: int) -> MadeBytes:
    """Return the bytes of the transform pipeline of a pass.

    Args:
        dataset: the dataset of the pass.
        settings: the settings of the pass.
        gathered_bytes: bytes of a full batch before its transform; a function of batches that fails for two rows is
            assumed to keep this size.
    """
    transform_pipeline = settings.transform_pipeline
    if transform_pipeline is None or not settings.source.rows:  # without a row, no function can be called
        return MadeBytes()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            batch, rows = _gathered(settings)
            ragged = holds_ragged(settings.source.fields)
            times = gathered_bytes / sum(storages(batch).values()) if ragged else settings.batch_rows / len(rows)
            return _measured(transform_pipeline, batch, rows, times)
        except Exception:  # the user's function may fail for two rows, or for zeros in place of data
            if not transform_pipeline.maps:
                return MadeBytes(gathered_bytes)
            sample = dataset[0]  # raises again if the function fails for this sample, too
            return MadeBytes(settings.batch_rows * sum(storages(sample).values()))


def _gathered(settings: PassSettings) -> tuple[Any, Indices]:
    """Return two rows of the dataset as a batch, before any function."""
    rows = np.arange(min(_ROWS, settings.source.rows), dtype=np.int64)
    count, slot = len(rows), bytes_of_slot(settings.fields, len(rows))
    few = replace(settings, batch_rows=count, slot_rows=count, slot_bytes=slot, planned_rows=count, depth=1, threads=1)
    batches = into_slots(replace(few, transform_pipeline=None, drop_last=False), None)
    try:
        batches.push(rows)
        batches.finish()
        batch = batches.next(0)
        return batch.result() if isinstance(batch, BatchResult) else batch, rows
    finally:
        batches.close(keep_slots=False)


def _measured(transform_pipeline: TransformPipeline, batch: Any, rows: Indices, times: float) -> MadeBytes:
    """Return the bytes of a transform pipeline for a full batch, `times` as large as this one."""
    before = storages(batch)
    first, last = replace(transform_pipeline, transform=None), replace(transform_pipeline, maps=(), casts={})
    work = kept = 0
    if first.maps or first.casts:
        lent = _CountedSlots()
        samples = _SampleMemory(before, lent)
        if first.maps:
            first = replace(first, maps=(*first.maps, Drawing(samples)))
        batch, work = _run(first, batch, rows, LEAST_REUSED, lent)  # samples keep their size; few exist at a time
        kept = samples.kept
    between = new_bytes(batch, before)
    if transform_pipeline.transform is not None:
        batch, of_batch = _run(last, batch, rows, max(1, math.floor(LEAST_REUSED / times)), _CountedSlots())
        work = max(work, math.ceil(times * (of_batch + between)))
    return MadeBytes(math.ceil(times * new_bytes(batch, before)), work + kept)


def _run(
    transform_pipeline: TransformPipeline, batch: Any, rows: Indices, least: int, lent: _CountedSlots
) -> tuple[Any, int]:
    """Return the result of a transform pipeline, and the most bytes of buffers beyond those of the result."""
    reuse = BufferReuse(lent, least)
    result = transform_pipeline.apply(batch, rows, PassSeed(0), reuse, lent)
    return result, lent.most - lent.bytes


class _SampleMemory:
    """Measures the memory of samples, as the last function of them; returns them unchanged.

    Args:
        gathered: the gathered memory, as address and bytes.
        lent: the buffers that are lent to functions.
    """

    def __init__(self, gathered: dict[int, int], lent: _CountedSlots) -> None:
        self._gathered, self._lent = gathered, lent
        self.kept = 0
        """Bytes that the C library keeps for samples as large as the largest, for each thread."""

    def __call__(self, sample: Any) -> Any:
        """Return the sample."""
        fresh = {place: nbytes for place, nbytes in storages(sample).items() if not self._is_known(place)}
        small = sum(nbytes for nbytes in fresh.values() if nbytes < _MAPPED)
        arrays = all(isinstance(part, np.ndarray) for part in _parts(sample))
        kept = small * (_KEPT_ARRAYS if arrays else _KEPT_TENSORS) + 2 * (sum(fresh.values()) - small)
        self.kept = max(self.kept, kept + _KEPT_OF_SMALL * bool(fresh))
        return sample

    def _is_known(self, place: int) -> bool:
        return place in self._lent.places or any(start <= place < start + n for start, n in self._gathered.items())


def _parts(sample: Any) -> Iterable[Any]:
    if isinstance(sample, dict):
        return sample.values()
    return sample if isinstance(sample, list | tuple) else [sample]


class _CountedSlots(FieldSlots):
    """Lends fresh memory, and counts the bytes that are lent at one time."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bytes = self.most = 0
        self.places: set[int] = set()
        """The addresses of lent memory."""

    def take(self, _: Hashable, nbytes: int) -> torch.Tensor:
        """Return a tensor of so many bytes."""
        memory = np.empty(nbytes, dtype=np.uint8)
        size = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE if nbytes >= LEAST_REUSED else nbytes
        self.bytes += size
        self.most = max(self.most, self.bytes)
        place = memory.ctypes.data
        self.places.add(place)
        weakref.finalize(memory, self._on_freed, place, size)
        return torch.from_numpy(memory)

    def _on_freed(self, place: int, size: int) -> None:
        self.bytes -= size
        self.places.discard(place)
