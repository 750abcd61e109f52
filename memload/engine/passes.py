"""One pass of the native engine, and what it is set to.

plan of row indices -> gather (+ cast), native threads -> slot -> batch
sampling/row_plan.py   _core.Pipeline                             the loop
"""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from memload import _core
from memload.batches.iterators import ClosingIterator, profiling, seconds_of, waiting
from memload.engine.by_the_dataset import answer
from memload.engine.changes import UpToDate
from memload.engine.cold import reads_blocks, reads_directly
from memload.engine.pipelined import PipelinedBatches
from memload.engine.slot_room import check_room
from memload.engine.source import Source
from memload.engine.watches import Watch
from memload.gpu.device_batches import Casts, DeviceBatches
from memload.gpu.landing import gathered_elsewhere
from memload.gpu.pinned_batches import pinned, pinned_by, pins_batches, whole_power
from memload.gpu.placing import Placer
from memload.gpu.shared_frames import index_bytes
from memload.memory.budget import local_threads
from memload.monitoring.loops import between_batches
from memload.sampling.batch_sizes import BatchSizes
from memload.sampling.planned_rows import PlannedRows
from memload.sampling.row_plan import Feed, PlanSink, feed
from memload.state import batches_of, given_generators
from memload.stats import LoaderStats
from memload.tiers.placing import caches_of
from memload.tiers.pressure import Pressure
from memload.transforms.pace import paced
from memload.transforms.recipe import Outcome, Recipe, attempted
from memload.transforms.seeding import PassSeed
from memload.transforms.threads import MOST_THREADS, Transforming

if TYPE_CHECKING:
    from memload.loader import FastLoader

# Batches gathered ahead: two measured as fast as six, one being filled while one waits. Batches of some 100 KB are
# gathered faster than a thread wakes up, so of these there are more, up to so many bytes in all.
_LEAST_DEPTH, _MOST_DEPTH, _AHEAD_BYTES = 2, 8, 2 << 20
_STOCK_PREFETCH_FACTOR = 2  # what torch sets where the user gives none

_MOST = 1024  # threads, or batches ahead

_FORKED = (
    "this iterator was made before the process was forked, and its threads stayed with the parent; "
    "call iter(loader) again in the child"
)


@dataclass(frozen=True)
class EngineOptions:
    """Settings of the native engine that are rarely needed; batches never depend on them. Defaults were measured.

    Attributes:
        threads: threads that gather; None: the CPUs that this process may use, divided by the processes of its node.
        depth: how many batches are gathered ahead of the one in the loop; each takes the memory of one batch.
        transform_threads: threads that run ``map`` functions and ``batch_transform``; each adds one batch to those
            ahead. None: as many as gather, at most 8; how many of them work at once is found by trying.
        isa: instruction set, one of ``memload._core.isas()``; None: the best.
        streaming: whether batches are written past the processor's cache; None: if slots exceed 1.5 times its size.
        direct: whether rows of more than 64 KB that are not in the page cache are read past it (``O_DIRECT``), by at
            least 8 threads with a buffer of 2 MB each. True: up to twice as fast as through the page cache, but later
            passes find nothing there. False: never. None: directly while rows are read for the first time, and always
            if the files exceed half of the free memory; through the page cache once half of a pass's bytes were read
            so before, or if a pass reads more than 1.5 times what its files hold. Files that this user neither owns
            nor may write are read directly with True alone, since the kernel does not tell what of them is in the
            page cache.
        pinned_bytes: with ``device=``, the most bytes of slots that are pinned; None: as many as the driver grants.
            Slots beyond it are pageable, and copied to the device several times slower.
    """

    threads: int | None = None
    depth: int | None = None
    isa: str | None = None
    streaming: bool | None = None
    direct: bool | None = None
    transform_threads: int | None = None
    pinned_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("threads", "depth", "transform_threads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST):
                raise ValueError(
                    f"{name} must be an int from 1 to {_MOST}, or None to let memload choose; got {value!r}"
                )
        if not (self.direct is None or isinstance(self.direct, bool)):
            raise ValueError(f"direct must be True, False, or None to let memload choose; got {self.direct!r}")
        if self.pinned_bytes is not None and (not isinstance(self.pinned_bytes, int) or self.pinned_bytes < 0):
            raise ValueError(f"pinned_bytes must be a number of bytes, or None for no limit; got {self.pinned_bytes!r}")
        if self.isa is not None and self.isa not in _core.isas():
            raise ValueError(f"isa must be one of {_core.isas()} on this machine, got {self.isa!r}")


def chosen_options(options: EngineOptions | None, threads: int | None, depth: int | None) -> EngineOptions:
    """Return the options that a loader was given, which are either `options` or the other two.

    Raises:
        TypeError: `options` is something else.
        ValueError: both were given, or one is out of range.
    """
    if options is None:
        return EngineOptions(threads=threads, depth=depth)
    if not isinstance(options, EngineOptions):
        raise TypeError(f"options= takes memload.EngineOptions(threads=..., ...); got a {type(options).__name__}")
    if threads is not None or depth is not None:
        raise ValueError("give threads= and depth= inside options=EngineOptions(...), or without options=")
    return options


@dataclass(frozen=True)
class PassSettings:
    """What one pass is set to, worked out once from the loader's arguments.

    Attributes:
        source: the dataset as the engine reads it.
        batch_rows: rows of a full batch.
        slot_rows: rows that a slot is made for: those of the largest batch as far as it is known beforehand. A batch
            sampler of an unknown kind may give larger ones; slots then grow to the largest seen.
        planned_rows: rows of the pass, 0 if its sampler does not say.
        drop_last: whether a last batch of fewer rows is left out.
        depth: batches gathered ahead, those that threads transform included.
        threads: threads that gather.
        recipe: the transforms and late casts of a gathered batch; None: the loop gets it as it is.
        transform_threads: threads that apply them, 0 if there are none.
        pins: whether batches are gathered into pinned memory of torch's allocator.
        joined: whether it is that of one source of several, whose room is judged together.
    """

    source: Source
    batch_rows: int
    slot_rows: int
    planned_rows: int
    drop_last: bool
    depth: int
    threads: int
    recipe: Recipe | None
    transform_threads: int
    pins: bool = False
    joined: bool = False

    @classmethod
    def of(cls, loader: FastLoader[Any], source: Source) -> PassSettings:
        """Work the settings out."""
        sampler = batches_of(loader)
        sizes = BatchSizes.of(sampler, source)
        batch_rows, slot_rows, planned = sizes.batch_rows, sizes.slot_rows, sizes.planned_rows
        slot = _core.Pipeline.ring_bytes(source.pipeline_fields(), slot_rows, depth=1) // 2
        drop_last = bool(getattr(sampler, "drop_last", False))
        transform = loader.batch_transform if loader._target is None else None  # on a device it comes last
        threads, recipe = _threads(loader), None if source.raw else Recipe.of(source, transform)
        transforming = (loader._engine.transform_threads or min(threads, MOST_THREADS)) if recipe else 0
        depth = min(_depth(loader, slot), loader._most_ahead or _MOST) + transforming
        pins = recipe is None and pins_batches(loader)
        return cls(source, batch_rows, slot_rows, planned, drop_last, depth, threads, recipe, transforming, pins)

    @property
    def ring_bytes(self) -> int:
        """Bytes of the slots, one per batch ahead and one for the loop, of their row numbers, and to decode in."""
        slots = _core.Pipeline.ring_bytes(self.source.pipeline_fields(), self.slot_rows, self.depth, self.threads)
        if self.pins:
            slots = (self.depth + 1) * whole_power(slots // (self.depth + 1))
        late = 0 if self.source.raw else self.source.late_row_bytes
        return slots + (self.depth + 1) * self.slot_rows * (8 + late) + index_bytes(self.source)

    def pipeline(self, loader: FastLoader[Any], reuse: _core.Pipeline | None, **where: Any) -> _core.Pipeline:
        """Return a pipeline for one pass, on the slots of an earlier one if given; `where`: its further arguments."""
        options = loader._engine
        if reuse is None and not self.pins and not self.joined:
            check_room(self.source, self.slot_rows, self.depth, -(-self.planned_rows // self.batch_rows))
        return _core.Pipeline(
            self.source.pipeline_fields(),
            batch_rows=self.batch_rows,
            slot_rows=self.slot_rows,
            drop_last=self.drop_last,
            depth=self.depth,
            threads=self.threads,
            read_blocks=reads_blocks(self.source, self.planned_rows),
            direct=reads_directly(self.source, self.planned_rows, options.direct),
            isa=options.isa or "",
            streaming=options.streaming,
            reuse=reuse,
            **where,
        )

    def gatherer(self, loader: FastLoader[Any], reuse: Gatherer | None) -> Gatherer:
        """Return what gathers the batches of one pass, on the slots of an earlier one if given."""
        placer, before = loader._placer(), gathering(reuse)
        elsewhere = gathered_elsewhere(self, loader, placer, before)
        gatherer = elsewhere or WholeBatches(self, loader, before)
        return self.around(gatherer, loader, self.source.watches, placer, transforming(reuse))

    def around(
        self,
        gatherer: Gatherer,
        loader: FastLoader[Any],
        watches: Sequence[Watch],
        placer: Placer | None,
        before: Transforming | None,
    ) -> Gatherer:
        """Return the gatherer with what transforms its batches, notices changes of files, and hands out on a device."""
        if self.recipe is not None:
            ahead = PlannedRows(self.batch_rows, self.drop_last)
            gatherer = Transforming(gatherer, self.recipe, ahead, paced(loader, self.transform_threads), before)
        if watches:
            gatherer = UpToDate(gatherer, watches, loader, self.batch_rows, self.drop_last)
        if placer is None:
            return gatherer
        casts = Casts(self.source.late_casts or {} if self.source.raw else {}, list(self.source.fields))
        ahead = PlannedRows(self.batch_rows, self.drop_last)
        return DeviceBatches(gatherer, placer, casts, loader.batch_transform, ahead)


def gathering(kept: Gatherer | None) -> Gatherer | None:
    """Return the gatherer of an earlier pass, without the layers around it."""
    while isinstance(kept, UpToDate | Transforming | DeviceBatches):
        kept = kept.gatherer
    return kept


def transforming(kept: Gatherer | None) -> Transforming | None:
    """Return the layer that transformed the batches of an earlier pass; None if there was none."""
    while isinstance(kept, UpToDate | DeviceBatches):
        kept = kept.gatherer
    return kept if isinstance(kept, Transforming) else None


class Gatherer(PlanSink, Protocol):
    """Makes batches of a plan, in its order, ahead of the loop. For one consumer at a time."""

    rows: int
    """Rows of the dataset, to which the plan's row numbers refer."""
    depth: int
    """Batches gathered ahead."""

    def begin(self, seed: PassSeed) -> None:
        """Receive the seed of the random numbers of this pass; called once, before the first rows."""

    def next(self, timeout: float) -> Any:
        """Return the next batch or an `Outcome`, None at the end of the plan; waits ``timeout`` seconds, 0: for ever.

        Raises:
            TimeoutError: no batch was ready in time.
            ShardReadError, IndexError: a row of this batch cannot be read, or is not there.
        """

    def stats(self) -> LoaderStats:
        """Return the counters of this pass; the wall time is its owner's to know."""

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """Stop, and give memory and threads back, or keep the slots for a later pass.

        Args:
            keep_slots: whether a later pass will have them.
            at_once: whether a wait for a batch ran into the timeout, so that there is little to wait for.
        """


class WholeBatches(PipelinedBatches):
    """Gathers each batch as it is planned, into a slot."""

    def __init__(self, settings: PassSettings, loader: FastLoader[Any], reuse: Gatherer | None) -> None:
        settings.source.check_in_place()
        kept = reuse._pipeline if isinstance(reuse, WholeBatches) else None
        super().__init__(settings, settings.pipeline(loader, kept))
        self._pressure = Pressure.on(caches_of(settings.source.fields.values()))
        self._unpack = settings.source.unpacker()

    def next(self, timeout: float) -> Any:
        """Return the next batch, or an `Outcome`; None at the end."""
        if self._pressure:
            self._pressure.look()
        capsules = self._pipeline.next(timeout)
        return None if capsules is None else attempted(self._unpack, capsules)


def _depth(loader: FastLoader[Any], slot_bytes: int) -> int:
    if loader._engine.depth is not None:
        return loader._engine.depth
    if loader.prefetch_factor and (loader._depth_given or loader.prefetch_factor != _STOCK_PREFETCH_FACTOR):
        return min(operator.index(loader.prefetch_factor), _MOST)
    return min(max(_LEAST_DEPTH, _AHEAD_BYTES // slot_bytes), _MOST_DEPTH)


def _threads(loader: FastLoader[Any]) -> int:
    if loader._engine.threads is not None:
        return loader._engine.threads
    if loader.num_workers:
        return min(operator.index(loader.num_workers), _MOST)
    return local_threads()


class NativePass(ClosingIterator):
    """One pass of the native engine over a loader. Made by ``iter(loader)``.

    It draws from the generators what a stock iterator draws, when that draws it, and owns the pipeline: the end of the
    data, an exception, ``close()`` or the end of the iterator's life stop it. Several threads may call ``next()``.
    """

    _loader: FastLoader[Any] | None = None  # until it is wholly made, there is nothing to close
    _late = False  # whether the last wait for a batch ran into the timeout
    _workers: tuple[Any, ...] = ()  # processes, for whose end those wait who know stock iterators; here are none

    def __init__(self, loader: FastLoader[Any], gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._host = pinned_by(loader)
        self._timeout = seconds_of(loader.timeout)
        self._asked = 0
        self._turn = threading.Lock()  # several threads may call next(), but samplers may be generators: one at a time
        # A stock iterator pulls a batch of indices for each next(); with workers, so many more when it starts.
        self._lead = operator.index(loader.num_workers or 0) * operator.index(loader.prefetch_factor or 0)
        self._started = time.perf_counter()
        self._wall = 0.0
        self._process = os.getpid()
        self._given = 0
        ahead = loader._engine.depth is not None
        self.progress, given = loader._state.begin(loader), given_generators(loader)
        self._feed: Feed = feed(
            batches_of(loader),
            gatherer.rows,
            gatherer,
            self.progress,
            given=given,
            ahead=ahead,
            at_once=self._lead > 0,
            as_index=loader.batch_sampler is None,
        )
        self._loader = loader
        self._batch_sampler: Any = batches_of(loader)
        drawn = loader._state.draw_base_seed(loader, self.progress)
        self._seed = loader._state.seed(loader, self.progress)
        gatherer.begin(self._seed)
        if self._lead:
            self._start(loader, drawn)
        loader._state.begun()

    def _start(self, loader: FastLoader[Any], anew: bool) -> None:
        """Pull what stock workers are given when they start, or when they go on to another pass."""
        try:
            if anew:
                self._feed.start_again()  # a stock iterator that starts workers takes two iterators of its sampler
            self._feed.pull(self._lead, self._gatherer.depth)
        except Exception:
            if anew:
                loader._state.base_seed = None  # nor would workers that never came to be keep theirs
            raise

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> NativePass:
        return self

    def __next__(self) -> Any:
        between_batches()
        if not profiling():
            return self._in_turn()
        with waiting(self):
            return self._in_turn()

    def _wait_for_turn(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(_FORKED)
        if not self._turn.acquire(timeout=self._timeout or -1):
            raise RuntimeError(f"DataLoader timed out after {self._timeout:g} seconds")

    def _in_turn(self) -> Any:
        if not self._turn.acquire(blocking=False):
            self._wait_for_turn()
        try:
            if self._loader is None:
                raise StopIteration
            batch = self._next(self._loader)
        finally:
            self._turn.release()
        return pinned(batch, self._host) if self._host else batch

    def _next(self, loader: FastLoader[Any]) -> Any:
        if not self._lead:
            self._ask()
        unplanned = self._feed.unplanned(self._given)
        batch = self._gathered() if unplanned is None else None
        number, self._given = self.progress.delivered, self._given + 1
        self.progress.delivered += 1
        if self._lead:
            self._ask()
        # What the dataset itself raises ends no pass, as it ends no stock iterator: the next batch follows.
        try:
            if unplanned is not None:
                answered = answer(loader, unplanned, self._seed, number)
                gatherer = self._gatherer
                return gatherer.placed(answered, number) if isinstance(gatherer, DeviceBatches) else answered
            return batch.result() if isinstance(batch, Outcome) else batch
        finally:
            del unplanned, batch  # the traceback of an error holds this frame, which would hold the error

    def _gathered(self) -> Any:
        try:
            batch = self._gatherer.next(self._timeout)
            self._wall = time.perf_counter() - self._started
            if batch is None:
                self.progress.finished = True
                raise StopIteration
        except TimeoutError as error:  # which ends no pass: the loop may wait for this batch once more
            self._late = True
            self._asked -= not self._lead
            raise RuntimeError(f"DataLoader timed out after {self._timeout:g} seconds") from error
        except BaseException:
            self.close()
            raise
        self._late = False
        return batch

    def _ask(self) -> None:
        self._asked += 1
        self._feed.pull(self._lead + self._asked, self._gatherer.depth)

    def stats(self) -> LoaderStats:
        """Return the counters of this pass; of a pass that a parent process began, none."""
        if self._process != os.getpid():
            return LoaderStats()
        return replace(self._gatherer.stats(), wall_seconds=self._wall)

    def close(self) -> None:
        """End the pass: threads stop, memory goes back. Batches in the loop's hands stay valid. May be called twice."""
        loader, self._loader = self._loader, None
        if loader is None:
            return
        loader._passes.discard(self)
        if self._process != os.getpid():
            return  # its threads and their memory are the parent's
        loader._finished += self.stats()
        self._gatherer.close(bool(loader.persistent_workers), self._late)
        loader._kept = self._gatherer if loader.persistent_workers else None

    def _shutdown_workers(self) -> None:
        # What loaders that were written for torch's call at their end, where they look for `_workers`.
        self.close()
