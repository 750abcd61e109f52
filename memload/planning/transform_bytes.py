"""What functions of samples and batches, and casts that move pixels, take: found by calling them for two rows.

two rows -> recipe -> what it returns             bytes that the loop gets: so many for each slot
               `----> memory that is lent to it   bytes beside these while it works: so many for each thread
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from memload.batches.collating import FieldSlots
from memload.engine.passes import PassSettings, WholeBatches
from memload.loader import FastLoader
from memload.ragged_rows.fields import RaggedField
from memload.sampling.draws import Indices
from memload.transforms.recipe import Outcome, Recipe
from memload.transforms.seeding import PassSeed
from memload.transforms.used_again import LARGE, MemoryUsedAgain

_ROWS = 2  # of a batch for the trial: one row looks to many a function like no batch
_HUGE_PAGE = 2 << 20


@dataclass(frozen=True)
class MadeBytes:
    """What a recipe takes, in bytes.

    Attributes:
        batch: of what it makes of a batch; what it hands on of the gathered memory is left out.
        work: beside that while one thread makes a batch, as far as the memory is ours.
    """

    batch: int = 0
    work: int = 0


def made_bytes(loader: FastLoader[Any], settings: PassSettings, gathered_bytes: int) -> MadeBytes:
    """Return what the recipe of a pass takes.

    Args:
        loader: whose pass it is.
        settings: of the pass.
        gathered_bytes: of a full batch before its transform, which keeps the size where it cannot be called for two
            rows.
    """
    recipe = settings.recipe
    if recipe is None:
        return MadeBytes()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            batch, rows = _gathered(loader, settings)
            ragged = any(isinstance(field, RaggedField) for field in settings.source.fields.values())
            times = gathered_bytes / sum(_storages(batch).values()) if ragged else settings.batch_rows / len(rows)
            return _tried(recipe, batch, rows, times)
        except Exception:  # what the user's function raises for two rows of this data, which may be without content
            if not recipe.maps:
                return MadeBytes(gathered_bytes)
            sample = loader.dataset[0]  # where one is enough for it, it is raised again
            return MadeBytes(settings.batch_rows * sum(_storages(sample).values()))


def _gathered(loader: FastLoader[Any], settings: PassSettings) -> tuple[Any, Indices]:
    """Two rows of the dataset as a batch, before any function."""
    rows = np.arange(min(_ROWS, settings.source.rows), dtype=np.int64)
    few = replace(settings, batch_rows=len(rows), slot_rows=len(rows), planned_rows=len(rows), depth=1, threads=1)
    batches = WholeBatches(replace(few, recipe=None, drop_last=False), loader, None)
    try:
        batches.push(rows)
        batches.finish()
        batch = batches.next(0)
        return batch.result() if isinstance(batch, Outcome) else batch, rows
    finally:
        batches.close(keep_slots=False)


def _tried(recipe: Recipe, batch: Any, rows: Indices, times: float) -> MadeBytes:
    """What a recipe takes of a full batch, so many times as large as this one."""
    before = _storages(batch)
    first, last = replace(recipe, transform=None), replace(recipe, maps=(), casts={})
    work = 0
    if first.maps or first.casts:
        batch, work = _run(first, batch, rows, LARGE)  # samples are as large as ever, and few at a time
    between = _new_bytes(batch, before)
    if recipe.transform is not None:
        batch, of_batch = _run(last, batch, rows, max(1, math.floor(LARGE / times)))
        work = max(work, math.ceil(times * (of_batch + between)))
    return MadeBytes(math.ceil(times * _new_bytes(batch, before)), work)


def _run(recipe: Recipe, batch: Any, rows: Indices, least: int) -> tuple[Any, int]:
    """What a recipe makes, and the most bytes that were lent to it beside what it returned."""
    lent = _Counted()
    random = MemoryUsedAgain(lent, least)
    made = recipe.apply(batch, rows, PassSeed(0), random, lent)
    return made, lent.most - lent.bytes


class _Counted(FieldSlots):
    """Lends fresh memory, and counts what is lent at one time."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bytes = self.most = 0

    def take(self, _: Hashable, nbytes: int) -> torch.Tensor:
        """Return so many bytes."""
        memory = np.empty(nbytes, dtype=np.uint8)
        size = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE if nbytes >= LARGE else nbytes
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(memory, self._gone, size)
        return torch.from_numpy(memory)

    def _gone(self, size: int) -> None:
        self.bytes -= size


def _new_bytes(batch: Any, before: dict[int, int]) -> int:
    return sum(nbytes for place, nbytes in _storages(batch).items() if place not in before)


def _storages(batch: Any) -> dict[int, int]:
    """The bytes of each memory on the CPU that the arrays of a batch lie on, by its place."""
    if isinstance(batch, torch.Tensor) and batch.layout is torch.jagged:
        batch = batch.values()
    if isinstance(batch, torch.Tensor):
        if batch.device.type != "cpu" or batch.layout is not torch.strided:
            return {}
        storage = batch.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    if isinstance(batch, np.ndarray):
        return {batch.ctypes.data: batch.nbytes}
    if isinstance(batch, dict):
        batch = list(batch.values())
    parts = batch if isinstance(batch, list | tuple) else []
    return {place: nbytes for part in parts for place, nbytes in _storages(part).items()}
