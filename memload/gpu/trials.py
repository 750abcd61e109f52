"""Data in pinned RAM: whether the device gathers it or the ring brings it, found out by a few batches of each."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memload.engine.source import Source
from memload.gpu.pinned_memory import near_fields
from memload.gpu.ways import TRIED, Pace, choose, paced
from memload.groups.batches import settings_of
from memload.groups.source import GroupedSource
from memload.memory.budget import local_threads
from memload.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.loader import FastLoader


def nearest(loader: FastLoader[Any], source: Source | GroupedSource) -> Source | GroupedSource:
    """Return the source as a pass of this loader is to read it.

    A source in RAM that is pinned for the loader's device is tried both ways, once for each loader; another is returned
    as it is.
    """
    gathered = _seen_by_device(loader, source)
    if gathered is None or not isinstance(source, Source):
        return source
    if loader._way is None:
        with contextlib.ExitStack() as trials:
            itself, ring = _tried(loader, gathered, trials), _tried(loader, source, trials)
        loader._way = choose(itself, ring, local_threads())
    return gathered if loader._way.gathers else source


def _seen_by_device(loader: FastLoader[Any], source: Source | GroupedSource) -> Source | None:
    if loader._target is None or not isinstance(source, Source) or source.maps or not source.rows:
        return None
    fields = near_fields(source.fields, loader._target.open().device)
    return None if fields is None else replace(source, fields=fields)


def _tried(loader: FastLoader[Any], source: Source, trials: contextlib.ExitStack) -> Pace:
    """How fast batches of random rows come of a source, without the user's own functions."""
    alone = copy.copy(loader)
    alone.batch_transform = None
    settings = settings_of(alone, source)
    drawn = np.random.default_rng(0)

    def begin() -> Callable[[], object]:
        gatherer = settings.gatherer(alone, None)
        trials.callback(gatherer.close, keep_slots=False)
        gatherer.begin(PassSeed(0))
        for _ in range(TRIED):
            gatherer.push(drawn.integers(0, source.rows, settings.slot_rows))
        gatherer.finish()
        return lambda: gatherer.next(0.0)

    return paced(begin, lambda: _finish(loader))


def _finish(loader: FastLoader[Any]) -> None:
    assert loader._target is not None
    interface = loader._target.open()
    interface.synchronise(interface.record(interface.current()))
