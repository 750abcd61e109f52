"""FastLoader: torch's DataLoader, with an engine of its own where it can read the dataset natively.

sampler -> plan of row indices -> gather (+ cast), native threads -> slot -> batch
plan.py                           _core.Pipeline                             the loop
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from memload import _core
from memload.cast import Cast
from memload.memory.budget import default_threads, memory
from memload.native import NotNative, Source, resolve
from memload.plan import Feed, feed, plan_bytes
from memload.stats import LoaderStats

T = TypeVar("T")

# Batches gathered ahead: two measured as fast as six, one being filled while one waits. Batches of some 100 KB are
# gathered faster than a thread wakes up, so of these there are more, up to so many bytes in all.
_LEAST_DEPTH, _MOST_DEPTH, _AHEAD_BYTES = 2, 8, 2 << 20
_SMALL_ROW, _SPARSE = 64 << 10, 0.1
_STOCK_PREFETCH_FACTOR = 2  # what torch sets where the user gives none


@dataclass(frozen=True)
class EngineOptions:
    """How the native engine works; the defaults are chosen by measurement, and results never depend on them.

    Attributes:
        threads: threads that gather; None: the CPUs that this process may use, divided by the processes of its node.
        depth: batches gathered ahead of the one in the loop; each costs the bytes of one batch.
        isa: instruction set, one of ``memload._core.isas()``; None: the best.
        streaming: whether batches are written past the cache; None: if the slots exceed twice the last level cache.
    """

    threads: int | None = None
    depth: int | None = None
    isa: str | None = None
    streaming: bool | None = None

    def __post_init__(self) -> None:
        for name in ("threads", "depth"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} must be an int of at least 1, or None to let memload choose; got {value!r}")
        if self.isa is not None and self.isa not in _core.isas():
            raise ValueError(f"isa must be one of {_core.isas()} on this machine, got {self.isa!r}")


class FastLoader(DataLoader[T]):
    """Yields the batches that ``torch.utils.data.DataLoader`` yields with the same arguments, faster.

    All arguments of ``DataLoader`` keep their meaning, order, defaults and errors. Datasets that memload reads natively
    (its own, TensorDataset, Subset, ConcatDataset and nestings, ``Float32View`` of these) with the default collation
    are gathered by native threads into reused memory; every other dataset runs on the stock machinery, with equal
    results. ``engine`` says which it is, and ``why``.

    On the native engine ``num_workers`` is the number of threads, 0 lets memload choose; ``prefetch_factor`` is the
    depth; ``persistent_workers`` keeps slots and threads between passes; ``worker_init_fn`` and
    ``multiprocessing_context`` have no worker processes to act on.

    Args:
        dataset: any dataset.
        batch_size, shuffle, sampler, ...: as in ``DataLoader``.
        threads: native threads; default: the CPUs that this process may use (affinity and cgroup quota), divided by the
            environment's LOCAL_WORLD_SIZE. More cost nothing but contention.
        depth: batches gathered ahead, default 2, and up to 8 where batches are smaller than 1 MB. Memory is
            ``(depth + 1)`` batches; see ``nbytes``.
        cast: for each named field a ``Cast``, done while gathering, such as
            ``{"stim": Cast(torch.bfloat16, norm_removed=True)}``. Keys are field names; for a TensorDataset positions.
            On the stock engine the same cast follows the collation.
        options: an ``EngineOptions`` for all that is rarely touched; excludes ``threads`` and ``depth``.

    Raises:
        ValueError: an argument is out of range, or two exclude each other.
        KeyError: ``cast`` names a field that the dataset does not have.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(stim=torch.zeros(100, 8, 8, dtype=torch.uint8))
        >>> loader = memload.FastLoader(ds, batch_size=32, shuffle=True, cast={"stim": memload.Cast(torch.float32)})
        >>> next(iter(loader))["stim"].shape
        torch.Size([32, 8, 8])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        threads: int | None = None,
        depth: int | None = None,
        cast: Mapping[Any, Cast] | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if options is not None and (threads is not None or depth is not None):
            raise ValueError("give threads= and depth= inside options=EngineOptions(...), or without options=")
        self.threads, self.depth, self.cast, self.options = threads, depth, cast, options
        self._engine = options or EngineOptions(threads=threads, depth=depth)
        self._casts = dict(cast or {})
        self._finished = LoaderStats()
        self._passes: weakref.WeakSet[NativePass] = weakref.WeakSet()
        self._kept: _core.Pipeline | None = None
        self._seeded = False
        if self._casts and isinstance(self._resolved(), Source):
            self._source()  # a cast of a field that is not there fails here, not in the first pass

    @property
    def engine(self) -> str:
        """ "native" if memload's engine reads the dataset, "torch" if the stock machinery does."""
        return "native" if isinstance(self._resolved(), Source) else "torch"

    @property
    def why(self) -> str:
        """One sentence: why this loader runs on the engine it runs on."""
        resolved = self._resolved()
        return f"The native engine reads {type(self.dataset).__name__}." if isinstance(resolved, Source) else resolved

    @property
    def nbytes(self) -> int:
        """Bytes that a pass of the native engine takes: its slots and its plan; 0 on the stock machinery."""
        if not isinstance(self._resolved(), Source):
            return 0
        ring = _core.Pipeline.ring_bytes(self._source().pipeline_fields(), self._batch_rows(), self._depth())
        return ring + plan_bytes(getattr(self.batch_sampler, "sampler", None))

    def stats(self) -> LoaderStats:
        """Return where the time of the native passes went so far; printing it says what limits."""
        return sum((live.stats() for live in list(self._passes)), self._finished)

    def __iter__(self) -> Any:
        if not isinstance(self._resolved(), Source):
            batches = super().__iter__()
            return _Casting(batches, self._casts) if self._casts else batches
        one = NativePass(self)
        self._passes.add(one)
        return one

    def __getstate__(self) -> dict[str, Any]:
        # What belongs to this process's passes stays here: a copy in another process starts afresh.
        fresh = {"_finished": LoaderStats(), "_passes": weakref.WeakSet(), "_kept": None}
        return {**self.__dict__, **fresh, "_passes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _passes=weakref.WeakSet())

    def _resolved(self) -> Source | str:
        """The source, or the first thing that keeps the loader from being native."""
        if isinstance(self.dataset, IterableDataset):
            return "An IterableDataset has no rows to plan: use a map-style dataset."
        if self.batch_sampler is None:
            return "batch_size=None switches batching off: give a batch_size."
        if self.collate_fn is not default_collate:
            return "A collate_fn of your own is called with lists of samples: leave collate_fn out."
        try:
            return resolve(self.dataset)
        except NotNative as reason:
            return str(reason)

    def _source(self) -> Source:
        source = self._resolved()
        if not isinstance(source, Source):
            raise RuntimeError(f"this loader cannot go on natively: {source}")
        return source.with_casts(self._casts)

    def _depth(self) -> int:
        if self._engine.depth is not None:
            return self._engine.depth
        if self.prefetch_factor not in (None, _STOCK_PREFETCH_FACTOR):
            return max(1, self.prefetch_factor)
        slot = _core.Pipeline.ring_bytes(self._source().pipeline_fields(), self._batch_rows(), depth=1) // 2
        return min(max(_LEAST_DEPTH, _AHEAD_BYTES // slot), _MOST_DEPTH)

    def _threads(self) -> int:
        if self._engine.threads is not None:
            return self._engine.threads
        return self.num_workers or default_threads(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    def _length(self) -> int:
        """Batches of a pass as far as they are known beforehand."""
        try:
            return len(self)
        except TypeError:  # a batch sampler may have no length
            return 0

    def _batch_rows(self) -> int:
        if type(self.batch_sampler) is BatchSampler:
            return self.batch_sampler.batch_size
        return getattr(self.batch_sampler, "batch_size", None) or 1


class NativePass(Iterator[Any]):
    """One pass of the native engine over a loader. Made by ``iter(loader)``.

    It draws from the generators what a stock iterator draws, when that draws it, and owns the pipeline: the end of the
    data, an exception, ``close()`` or the end of the iterator's life stop it.
    """

    def __init__(self, loader: FastLoader[Any]) -> None:
        source = loader._source()
        self._unpack = source.unpacker()
        self._pin = _pins(loader)
        self._timeout = float(loader.timeout)
        self._depth = loader._depth()
        self._delivered = 0
        self._feeding = threading.Lock()  # several threads may call next(); samplers are generators and may not be
        # A stock iterator pulls a batch of indices for each next(); with workers, so many more when it starts.
        self._lead = loader.num_workers * (loader.prefetch_factor or 0)
        self._started = time.perf_counter()
        self._wall = 0.0
        self._loader: FastLoader[Any] | None = loader
        self._length = loader._length()
        self._pipeline = _pipeline(loader, source)
        self._feed: Feed = feed(loader.batch_sampler, source.rows, self._pipeline)
        _draw_base_seed(loader)
        if self._lead:
            self._feed.pull(self._lead, self._depth)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> NativePass:
        return self

    def __next__(self) -> Any:
        if self._loader is None:
            raise StopIteration
        try:
            if not self._lead:
                with self._feeding:
                    self._feed.pull(self._delivered + 1, self._depth)
            capsules = self._pipeline.next(self._timeout)
            self._wall = time.perf_counter() - self._started
            if capsules is None:
                self._feed.raise_held()
                raise StopIteration
            self._delivered += 1
            if self._lead:
                with self._feeding:
                    self._feed.pull(self._lead + self._delivered, self._depth)
            batch = self._unpack(capsules)
            return _pinned(batch) if self._pin else batch
        except TimeoutError as error:
            self.close()
            raise RuntimeError(f"DataLoader timed out after {self._timeout:g} seconds") from error
        except BaseException:
            self.close()
            raise

    def stats(self) -> LoaderStats:
        """Return the counters of this pass."""
        return LoaderStats(**self._pipeline.stats(), wall_seconds=self._wall)

    def close(self) -> None:
        """End the pass: threads stop, memory goes back. Batches in the loop's hands stay valid. May be called twice."""
        loader, self._loader = self._loader, None
        if loader is None:
            return
        loader._finished += self.stats()
        loader._passes.discard(self)
        self._pipeline.close(keep_slots=loader.persistent_workers)
        loader._kept = self._pipeline if loader.persistent_workers else None

    def __del__(self) -> None:
        if getattr(self, "_loader", None) is not None:
            self.close()


def _pipeline(loader: FastLoader[Any], source: Source) -> _core.Pipeline:
    options = loader._engine
    kept, loader._kept = loader._kept, None
    return _core.Pipeline(
        source.pipeline_fields(),
        batch_rows=loader._batch_rows(),
        drop_last=loader.drop_last or getattr(loader.batch_sampler, "drop_last", False),
        depth=loader._depth(),
        threads=loader._threads(),
        read_around=_reads_around(source, loader._length() * loader._batch_rows()),
        isa=options.isa or "",
        streaming=options.streaming,
        reuse=kept,
    )


def _reads_around(source: Source, planned_rows: int) -> bool:
    """Whether rows that are not in the page cache are best read with what lies around them.

    A disk gives small random reads at a tenth of its rate for large ones. So where a pass reads more than about a tenth
    of its files in small rows, and the page cache can keep them, reading more at a time soon has all of them.
    """
    mapped = [f.column for f in source.fields.values() if any(s.mapped for s in f.column.storages)]
    if not mapped or max(column.row_bytes for column in mapped) > _SMALL_ROW:
        return False
    files = {storage.name: storage.nbytes for column in mapped for storage in column.storages}
    wanted = planned_rows * sum(column.row_bytes for column in mapped)
    return wanted >= _SPARSE * sum(files.values()) and sum(files.values()) <= memory().free // 2


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


class _Casting(Iterator[Any]):
    """Batches of the stock machinery with casts done afterwards."""

    def __init__(self, batches: Any, casts: Mapping[Any, Cast]) -> None:
        self._batches = batches
        self._casts = casts

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        batch = next(self._batches)
        for key, cast in self._casts.items():
            batch[key] = cast.apply(batch[key])
        return batch
