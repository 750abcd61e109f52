"""One pass over rows that lie on a device: gathered there, in the loop's own stream, when the loop asks for them.

plan of row indices -> numbers, to the device -> gather (+ cast) there -> batch
sampling/row_plan.py   frames.py                 near.py                  the loop
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from memload.casts.batches import Casting
from memload.casts.rule import Cast
from memload.engine.source import Key, Source
from memload.gpu.casting import cast_on_device
from memload.gpu.devices import raise_in_words
from memload.gpu.near import near_device
from memload.gpu.near_rows import near_rows
from memload.gpu.nested import tensors_of
from memload.sampling.batch_sizes import BatchSizes
from memload.sampling.draws import Indices
from memload.sampling.planned_rows import PlannedRows
from memload.state import batches_of
from memload.stats import LoaderStats
from memload.transforms.recipe import Outcome, attempted, transformed_here
from memload.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.loader import FastLoader

_DEPTH = 2  # batches of row numbers that are planned ahead; nothing is gathered ahead


def lies_near(source: Source) -> bool:
    """Whether a source's rows lie on a device, or in memory that a device gathers from.

    Raises:
        ValueError: some of its fields lie there, and others elsewhere.
    """
    return near_device(source.fields) is not None


def batch_maker(source: Source) -> Callable[..., Any]:
    """Return the function that makes the batch of some rows, as default_collate would shape it.

    Its second argument is what the randomness of the pass follows from; without it, a number drawn from torch's default
    generator.
    """
    late = source.late_casts or {}
    fields = [(field, (source.casts.get(key), late.get(key))) for key, field in source.fields.items()]
    layout = source.layout

    def make(rows: NDArray[np.int64], seed: PassSeed | None = None) -> Any:
        casting = Casting(seed, rows)
        return layout.build(_made(field, rows, casts, casting) for field, casts in fields)

    return make


def _made(field: Any, rows: NDArray[np.int64], casts: tuple[Cast | None, ...], casting: Casting) -> torch.Tensor:
    """Rows of a field after its casts, the first of which is done while they are gathered."""
    wanted = [cast for cast in casts if cast is not None]
    if not wanted:
        return near_rows(field, rows)
    x = near_rows(field, rows, wanted[0], casting.seeds(wanted[0], len(rows)))
    for cast in wanted[1:]:
        x = cast_on_device(x, cast, seeds=casting.seeds(cast, len(x)))
    return x


@dataclass(frozen=True)
class NearSettings:
    """What a pass over rows on a device is set to.

    Attributes:
        source: the dataset as the engine reads it.
        sizes: of its batches.
        drop_last: whether a last batch of fewer rows is left out.
        depth: batches of row numbers planned ahead.
    """

    source: Source
    sizes: BatchSizes
    drop_last: bool
    depth: int = _DEPTH

    @classmethod
    def of(cls, loader: FastLoader[Any], source: Source) -> NearSettings:
        """Work the settings out.

        Raises:
            ValueError: the loader's batches are to lie elsewhere, or samples go through functions, which are called on
                the CPU.
        """
        _check_target(loader, source)
        if source.maps:
            raise ValueError(
                "ds.map(fn) calls a function for each sample, on the CPU, and these rows lie on "
                f"{near_device(source.fields)}: give batch_transform=, whose function gets whole batches there"
            )
        sampler = batches_of(loader)
        return cls(source, BatchSizes.of(sampler, source), bool(getattr(sampler, "drop_last", False)))

    @property
    def slot_rows(self) -> int:
        """Rows of the largest batch, as far as it is known beforehand."""
        return self.sizes.slot_rows

    @property
    def ring_bytes(self) -> int:
        """Bytes of this machine's memory that a pass takes: the numbers of the rows planned ahead."""
        return (self.depth + 1) * self.slot_rows * 8

    @property
    def batch_bytes(self) -> int:
        """Bytes of the largest batch, as far as it is known beforehand, as the loop gets it."""
        return self.slot_rows * sum(_made_bytes(self.source, key) for key in self.source.fields)

    def gatherer(self, loader: FastLoader[Any], reuse: object) -> NearBatches:  # noqa: ARG002 - there are no slots
        """Return what gathers the batches of one pass."""
        return NearBatches(self, loader.batch_transform)


def _made_bytes(source: Source, key: Key) -> int:
    """Bytes of a row of a field after its casts."""
    field, cast = source.fields[key], (source.late_casts or {}).get(key) or source.casts.get(key)
    return field.row_bytes if cast is None else math.prod(cast.row_shape(field.shape)) * cast.dtype.itemsize


def _check_target(loader: FastLoader[Any], source: Source) -> None:
    there = near_device(source.fields)
    wanted = None if loader._target is None else loader._target.wanted
    if isinstance(wanted, torch.device) and there is not None and wanted not in (there, torch.device(there.type)):
        raise ValueError(
            f"device={str(wanted)!r}, but the rows lie on {there}: leave device= out, or bring the dataset to {wanted} "
            "by memload.to_device"
        )


class NearBatches:
    """Gathers each batch where its rows lie, when it is asked for; a `Gatherer`.

    A kernel reads and writes a batch faster than any loop uses it up, and the loop's own work on the device waits for
    nobody: it is queued behind. So nothing is gathered ahead, and a batch costs the memory of itself.
    """

    def __init__(self, settings: NearSettings, transform: Callable[..., Any] | None) -> None:
        self.rows, self.depth = settings.source.rows, settings.depth
        self._plan = PlannedRows(settings.sizes.batch_rows, settings.drop_last)
        self._make = batch_maker(settings.source)
        self._row_bytes = sum(field.row_bytes for field in settings.source.fields.values())
        self._device = near_device(settings.source.fields) or torch.device("cpu")
        self._collate, self._transform = settings.source.collate, transform
        self._stats = LoaderStats()

    def begin(self, seed: PassSeed) -> None:
        """Receive the seed of the random numbers of this pass."""
        self._seed = seed

    def extend(self, rows: Indices) -> None:
        """Append rows to the plan; batches are cut from them in order."""
        self._plan.extend(rows)

    def push(self, rows: Indices) -> None:
        """Append the rows of one batch to the plan."""
        self._plan.push(rows)

    def finish(self) -> None:
        """Mark the end of the plan."""
        self._plan.finish()

    def next(self, timeout: float) -> Any:  # noqa: ARG002 - nothing is waited for
        """Return the next batch, or an `Outcome`; None at the end."""
        if not self._plan.ready:
            return None
        rows = self._plan.take()
        begun = time.perf_counter()
        try:
            batch = self._make(rows, self._seed)
        except RuntimeError as error:
            raise_in_words(error, "gathering a batch", self._device)
        self._count(len(rows), batch, time.perf_counter() - begun)
        return attempted(self._finished, batch, rows) if self._collate or self._transform else batch

    def _count(self, rows: int, batch: Any, seconds: float) -> None:
        read, written = rows * self._row_bytes, sum(tensor.nbytes for tensor in tensors_of(batch))
        self._stats += LoaderStats(
            batches=1, rows=rows, bytes_in=read, bytes_out=written, consumer_wait_seconds=seconds
        )

    def _finished(self, batch: Any, rows: Indices) -> Outcome:
        """What the user's own functions make of a batch."""
        begun = time.perf_counter()
        try:
            if self._collate is not None:
                batch = self._collate(batch)
            if self._transform is not None and not isinstance(batch, Outcome):
                batch = transformed_here(self._transform, batch, self._seed, rows)
            return batch if isinstance(batch, Outcome) else Outcome(batch)
        finally:
            self._stats += LoaderStats(transform_seconds=time.perf_counter() - begun)

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        return self._stats

    def close(self, keep_slots: bool, at_once: bool = False) -> None:  # noqa: ARG002 - there is nothing to keep
        """Drop the plan."""
        self._plan = PlannedRows(1, drop_last=False)
        self._plan.finish()
