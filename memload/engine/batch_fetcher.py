"""The engine's batch fetcher: one batch at a time, for whoever asks a dataset for it, in slots that are used again.

Libraries that rebuild a stock DataLoader of a FastLoader keep its dataset. What they ask of it comes through here.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from memload import _core
from memload.casts.rule import Cast
from memload.columns.ragged_samples import Forms
from memload.engine.gather_spec import GatherSpec
from memload.engine.gathered import GatheredRows
from memload.engine.layout import DictOf
from memload.engine.settings import bytes_of_slot
from memload.engine.tiers.pressure import Pressure, caches_of
from memload.memory.budget import local_threads
from memload.stats import LoaderStats

# Slots are depth + 1, made when they are needed: one is filled while the loop has one, and another where the batch
# after next is asked for before the next is handed out, as accelerate does. The fourth is for whoever keeps one more.
_DEPTH = 3

# The slots of larger batches are given back with the batch: four of them might be more than anybody expects.
_MOST_KEPT = 512 << 20  # bytes of a batch


class BatchFetcher:
    """Gathers batches of a source on demand, by native threads, into slots that their tensors lease.

    The slots, at most four of the largest batch so far, live as long as the fetcher, and so do the threads. Several
    threads may gather, one at a time. A forked child starts afresh. A process that loads data for another gathers with
    one thread, as torch has it.

    Args:
        source: what is gathered.
        tensors: whether samples are tensors, rather than dicts or tuples of these.
        tag: the field of dict samples that is an int there, if any.
    """

    def __init__(self, source: GatherSpec, *, tensors: bool = False, tag: str | None = None) -> None:
        self.source = source
        self._tensors = tensors
        self._tag = tag
        self._unpack = source.unpacker()
        self._slots = _Slots(source)
        self._pressure = Pressure.on(caches_of(source.fields.values()))
        self._casting: dict[frozenset[tuple[Any, Cast]], BatchFetcher] = {}

    @property
    def gives_dicts(self) -> bool:
        """Whether samples are dicts."""
        return isinstance(self.source.layout, DictOf)

    @functools.cached_property
    def forms(self) -> Forms:
        """Of the fields of a batch, by key, whose rows differ in length."""
        return self.source.forms

    def with_casts(self, casts: Mapping[Any, Cast]) -> BatchFetcher:
        """Return a fetcher to the same rows that converts fields on the way; it counts for this one, too.

        Raises:
            KeyError, ValueError: as `GatherSpec.with_casts`.
        """
        key = frozenset(casts.items())
        if key not in self._casting:
            self._casting[key] = type(self)(self.source.with_casts(casts), tensors=self._tensors, tag=self._tag)
        return self._casting[key]

    def rows(self, rows: NDArray[np.int64]) -> GatheredRows[BatchFetcher]:
        """Return the list of the samples of these rows; they are gathered when somebody looks."""
        return GatheredRows(self, rows, tensors=self._tensors, tag=self._tag)

    def gather(self, rows: NDArray[np.int64]) -> Any:
        """Return the batch of these rows, as default_collate would shape it.

        Raises:
            ShardReadError: a file cannot be read any more.
            RuntimeError: a tensor's memory was moved away.
        """
        self.source.check_in_place()
        if self._pressure:
            self._pressure.look()
        if self.source.caches:
            from memload.engine.fetched_batches import held

            with held(self.source, rows):
                return self._unpack(self._here().gather(rows))
        return self._unpack(self._here().gather(rows))

    def stats(self) -> LoaderStats:
        """Return the counters of all batches that this process gathered here."""
        return sum((fetcher.stats() for fetcher in self._casting.values()), self._here().stats())

    def _here(self) -> _Slots:
        if self._slots.process != os.getpid():
            self._slots = _Slots(self.source)
        return self._slots


class _Slots:
    """The slots and counters of one process, and the pipeline that fills them."""

    def __init__(self, source: GatherSpec) -> None:
        self.process = os.getpid()
        self._source = source
        self._lock = threading.Lock()
        self._pipeline: _core.Pipeline | None = None
        self._slot_rows = self._slot_bytes = 0
        self._past = LoaderStats()
        self._seconds = 0.0

    def gather(self, rows: NDArray[np.int64]) -> list[Any]:
        with self._lock:
            started = time.perf_counter()
            if self._pipeline is None or len(rows) > self._slot_rows:
                self._renew(len(rows))
            try:
                capsules = self._take(rows)
            except BaseException:
                self._renew(self._slot_rows)  # what was planned and not taken would be taken for the next
                raise
            self._seconds += time.perf_counter() - started
            if self._slot_bytes > _MOST_KEPT:
                self._let_go()
            return capsules

    def stats(self) -> LoaderStats:
        with self._lock:
            now = LoaderStats() if self._pipeline is None else LoaderStats(**self._pipeline.stats())
            return self._past + now + LoaderStats(wall_seconds=self._seconds)

    def _take(self, rows: NDArray[np.int64]) -> list[Any]:
        assert self._pipeline is not None
        self._pipeline.push(rows)
        capsules: list[Any] = self._pipeline.next()
        return capsules

    def _let_go(self, *, keep_slots: bool = False) -> _core.Pipeline | None:
        former, self._pipeline = self._pipeline, None
        if former is not None:
            self._past += LoaderStats(**former.stats())
            former.close(keep_slots=keep_slots)
        return former

    def _renew(self, slot_rows: int) -> None:
        """Make a pipeline for batches of up to so many rows, on the slots of the one before."""
        former, fields = self._let_go(keep_slots=True), self._source.pipeline_fields()
        self._slot_rows = slot_rows
        self._slot_bytes = bytes_of_slot(fields, slot_rows)
        self._pipeline = _core.Pipeline(
            fields,
            batch_rows=slot_rows,
            slot_rows=slot_rows,
            drop_last=False,
            depth=_DEPTH,
            threads=1 if get_worker_info() is not None else local_threads(),
            reuse=former,
        )
