"""One pass of the native engine, and what it is set to.

plan of row indices -> gather (+ cast), native threads -> slot -> batch
plan.py                _core.Pipeline                             the loop
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from memload import _core
from memload.cold import reads_blocks, reads_directly
from memload.memory.budget import default_threads
from memload.native import Source
from memload.plan import Feed, feed
from memload.stats import LoaderStats

if TYPE_CHECKING:
    from memload.loader import FastLoader

# Batches gathered ahead: two measured as fast as six, one being filled while one waits. Batches of some 100 KB are
# gathered faster than a thread wakes up, so of these there are more, up to so many bytes in all.
_LEAST_DEPTH, _MOST_DEPTH, _AHEAD_BYTES = 2, 8, 2 << 20
_STOCK_PREFETCH_FACTOR = 2  # what torch sets where the user gives none

_MOST = 1024  # threads, or batches ahead


@dataclass(frozen=True)
class EngineOptions:
    """How the native engine works; the defaults are chosen by measurement, and results never depend on them.

    Attributes:
        threads: threads that gather; None: the CPUs that this process may use, divided by the processes of its node.
        depth: batches gathered ahead of the one in the loop; each costs the bytes of one batch.
        isa: instruction set, one of ``memload._core.isas()``; None: the best.
        streaming: whether batches are written past the cache; None: if the slots exceed 1.5 times the last level cache.
        direct: whether rows of more than 64 KB that are not in the page cache are read past it (``O_DIRECT``), with at
            least 8 threads and 2 MB for each while that lasts. True: up to twice as fast as through the page cache, but
            the next pass finds nothing there. False: never. None: a pass reads directly unless half of what it wants
            was read so before and its files fit into half of the free memory; then it goes through the page cache, and
            later passes find the rows there. Files that this user neither owns nor may write are read directly with
            True alone, since the kernel does not tell what of them is in the page cache.
    """

    threads: int | None = None
    depth: int | None = None
    isa: str | None = None
    streaming: bool | None = None
    direct: bool | None = None

    def __post_init__(self) -> None:
        for name in ("threads", "depth"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST):
                raise ValueError(
                    f"{name} must be an int from 1 to {_MOST}, or None to let memload choose; got {value!r}"
                )
        if self.direct not in (True, False, None):
            raise ValueError(f"direct must be True, False, or None to let memload choose; got {self.direct!r}")
        if self.isa is not None and self.isa not in _core.isas():
            raise ValueError(f"isa must be one of {_core.isas()} on this machine, got {self.isa!r}")


@dataclass(frozen=True)
class PassSettings:
    """What one pass is set to, worked out once from the loader's arguments.

    Attributes:
        source: the dataset as the engine reads it.
        batch_rows: rows of a full batch.
        slot_rows: rows that a slot is made for: those of the largest batch as far as it is known beforehand. A batch
            sampler of an unknown kind may give larger ones; slots then grow to the largest seen.
        planned_rows: rows of the pass, 0 if its sampler does not say.
        depth: batches gathered ahead.
        threads: threads that gather.
    """

    source: Source
    batch_rows: int
    slot_rows: int
    planned_rows: int
    depth: int
    threads: int

    @classmethod
    def of(cls, loader: FastLoader[Any], source: Source) -> PassSettings:
        """Work the settings out."""
        sampler = loader.batch_sampler
        planned = _length(loader.sampler if type(sampler) is BatchSampler else None)
        batch_rows = slot_rows = _batch_rows(sampler)
        if type(sampler) is BatchSampler:
            slot_rows = max(1, min(batch_rows, planned or batch_rows))
        slot = _core.Pipeline.ring_bytes(source.pipeline_fields(), slot_rows, depth=1) // 2
        planned = planned or _length(sampler) * batch_rows
        return cls(source, batch_rows, slot_rows, planned, _depth(loader, slot), _threads(loader))

    @property
    def ring_bytes(self) -> int:
        """Bytes of the slots, one for each batch ahead and one for the loop's, and of the row numbers of each."""
        slots = _core.Pipeline.ring_bytes(self.source.pipeline_fields(), self.slot_rows, self.depth)
        return slots + (self.depth + 1) * self.slot_rows * 8

    def pipeline(self, loader: FastLoader[Any], reuse: _core.Pipeline | None) -> _core.Pipeline:
        """Return a pipeline for one pass, on the slots of an earlier one if given."""
        options = loader._engine
        return _core.Pipeline(
            self.source.pipeline_fields(),
            batch_rows=self.batch_rows,
            slot_rows=self.slot_rows,
            drop_last=bool(getattr(loader.batch_sampler, "drop_last", False)),
            depth=self.depth,
            threads=self.threads,
            read_blocks=reads_blocks(self.source, self.planned_rows),
            direct=reads_directly(self.source, self.planned_rows, options.direct),
            isa=options.isa or "",
            streaming=options.streaming,
            reuse=reuse,
        )


def _length(sized: Any) -> int:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):  # samplers need not have a length
        return 0


def _batch_rows(batch_sampler: Any) -> int:
    if isinstance(batch_sampler, list | tuple):
        return max(1, *map(_length, batch_sampler)) if batch_sampler else 1
    rows = getattr(batch_sampler, "batch_size", None)
    return rows if isinstance(rows, int) and rows > 0 else 1


def _depth(loader: FastLoader[Any], slot_bytes: int) -> int:
    if loader._engine.depth is not None:
        return loader._engine.depth
    if loader.prefetch_factor not in (None, _STOCK_PREFETCH_FACTOR):
        return max(1, int(loader.prefetch_factor or 1))
    return min(max(_LEAST_DEPTH, _AHEAD_BYTES // slot_bytes), _MOST_DEPTH)


def _threads(loader: FastLoader[Any]) -> int:
    if loader._engine.threads is not None:
        return loader._engine.threads
    if loader.num_workers:
        return loader.num_workers
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not processes.isdecimal() or int(processes) < 1:
        raise ValueError(
            f"the environment says LOCAL_WORLD_SIZE={processes!r}; it is the number of processes on this machine, as "
            "torchrun sets it: unset it, or give threads="
        )
    return default_threads(int(processes))


class NativePass(Iterator[Any]):
    """One pass of the native engine over a loader. Made by ``iter(loader)``.

    It draws from the generators what a stock iterator draws, when that draws it, and owns the pipeline: the end of the
    data, an exception, ``close()`` or the end of the iterator's life stop it. Several threads may call ``next()``.
    """

    _loader: FastLoader[Any] | None = None  # until it is wholly made, there is nothing to close

    def __init__(self, loader: FastLoader[Any], source: Source) -> None:
        for field in source.fields.values():
            field.check_in_place()
        settings = PassSettings.of(loader, source)
        self._unpack = source.unpacker()
        self._pin = _pins(loader)
        self._timeout = float(loader.timeout)
        self._depth = settings.depth
        self._asked = 0
        self._turn = threading.Lock()  # several threads may call next(), but samplers may be generators: one at a time
        # A stock iterator pulls a batch of indices for each next(); with workers, so many more when it starts.
        self._lead = loader.num_workers * (loader.prefetch_factor or 0)
        self._started = time.perf_counter()
        self._wall = 0.0
        self._process = os.getpid()
        self._length = _length(loader.batch_sampler)
        kept, loader._kept = loader._kept, None
        self._pipeline = settings.pipeline(loader, kept)
        self._feed: Feed = feed(loader.batch_sampler, source.rows, self._pipeline)
        self._loader = loader
        _draw_base_seed(loader)
        if self._lead:
            self._feed.pull(self._lead, self._depth)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> NativePass:
        return self

    def __next__(self) -> Any:
        with self._turn:
            if self._loader is None:
                raise StopIteration
            try:
                batch = self._unpack(self._capsules())
            except TimeoutError as error:
                self.close()
                raise RuntimeError(f"DataLoader timed out after {self._timeout:g} seconds") from error
            except BaseException:
                self.close()
                raise
        return _pinned(batch) if self._pin else batch

    def _capsules(self) -> list[Any]:
        if not self._lead:
            self._ask()
        capsules: list[Any] | None = self._pipeline.next(self._timeout)
        self._wall = time.perf_counter() - self._started
        if capsules is None:
            self._feed.raise_held()
            raise StopIteration
        if self._lead:
            self._ask()
        return capsules

    def _ask(self) -> None:
        self._asked += 1
        self._feed.pull(self._lead + self._asked, self._depth)

    def stats(self) -> LoaderStats:
        """Return the counters of this pass; of a pass that a parent process began, none."""
        if self._process != os.getpid():
            return LoaderStats()
        return LoaderStats(**self._pipeline.stats(), wall_seconds=self._wall)

    def close(self) -> None:
        """End the pass: threads stop, memory goes back. Batches in the loop's hands stay valid. May be called twice."""
        loader, self._loader = self._loader, None
        if loader is None:
            return
        loader._passes.discard(self)
        if self._process != os.getpid():
            return  # its threads and their memory are the parent's
        loader._finished += self.stats()
        self._pipeline.close(keep_slots=loader.persistent_workers)
        loader._kept = self._pipeline if loader.persistent_workers else None

    def __del__(self) -> None:
        self.close()


def _draw_base_seed(loader: FastLoader[Any]) -> None:
    """Draw the number with which a stock iterator seeds its workers, so that generators go on as they would."""
    if loader._seeded and loader.persistent_workers:
        return  # persistent workers are seeded once
    loader._seeded = True
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def _pins(loader: FastLoader[Any]) -> bool:
    if not loader.pin_memory:
        return False
    if torch.accelerator.is_available():
        return True
    warnings.warn(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
        stacklevel=4,
    )
    return False


def _pinned(batch: Any) -> Any:
    """Copy a batch into memory of torch's pinned allocator, since only that knows which copies are in flight."""
    if isinstance(batch, torch.Tensor):
        return batch.pin_memory()
    if isinstance(batch, dict):
        return {key: value.pin_memory() for key, value in batch.items()}
    return [value.pin_memory() for value in batch]
