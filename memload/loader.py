"""FastLoader: torch's DataLoader, with an engine of its own where it can read the dataset natively.

sampler -> plan of row indices -> gather (+ cast), native threads -> slot -> batch
           sampling/row_plan.py   engine/passes.py, _core.Pipeline           the loop
"""

from __future__ import annotations

import copy
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from memload.casts.batches import CastBatches, checked_casts, draws_of
from memload.casts.rule import Cast
from memload.dataset import Dataset
from memload.engine.collate_function import NO_BATCH, collated
from memload.engine.passes import EngineOptions, Gatherer, NativePass, chosen_options
from memload.engine.readers import resolve
from memload.engine.source import NotNative, Source
from memload.frameworks.carried import CarryingCollate, plain_collate, plainly, unpacked
from memload.gpu.device_batches import Casts, MovedBatches
from memload.gpu.interface import HostMemory, Interface
from memload.gpu.landing import device_bytes, handed_bytes, how_they_go
from memload.gpu.near_batches import NearSettings, lies_near
from memload.gpu.placing import Placer
from memload.gpu.static_buffers import StaticBatches, checked_buffers
from memload.gpu.target import checked_target
from memload.gpu.torch_interface import TorchHostMemory
from memload.gpu.trials import nearest
from memload.gpu.ways import Way
from memload.groups.batches import GroupSettings, settings_of
from memload.groups.datasets import GroupedDataset, group_collate
from memload.groups.source import GroupedSource, resolve_groups
from memload.monitoring.loops import pass_begins
from memload.ragged_rows.option import in_form
from memload.sampling.row_plan import plan_bytes
from memload.state import LoaderState, batches_of
from memload.stats import LoaderStats
from memload.stock.arguments import asks_for_stock, without_worker_init_fn
from memload.stock.passes import IndexSampler, stock_pass
from memload.transforms.pace import Pace
from memload.transforms.recipe import TransformedBatches, checked_transform
from memload.transforms.seeding import peeked_seed

T = TypeVar("T")

_FIXED = ("threads", "depth", "cast", "options", "ragged", "device", "static_buffers")


class _Begun(threading.local):
    """Whether this thread is making torch's iterator for a pass that has begun."""

    now = False

    def around(self, make: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        """Return `make` as a function within which that is so."""

        def making() -> Iterator[Any]:
            self.now = True
            try:
                return make()
            finally:
                self.now = False

        return making


class FastLoader(DataLoader[T]):
    """Yields the batches that ``torch.utils.data.DataLoader`` yields with the same arguments, faster.

    All arguments of ``DataLoader`` keep their meaning, order, defaults and errors. There are two engines:

    - "native": with the default collation, native threads gather batches into reused memory. For memload's datasets,
      TensorDataset, StackDataset, Subset, ConcatDataset, TensorDict, nestings of these, ``Float32View``, and any
      dataset with a method ``__memload__()`` that returns a memload dataset.
    - "torch", the stock machinery: torch's own DataLoader code, with equal results. For everything else.

    ``engine`` says which of them a loader uses, and ``why`` the reason. docs/dataloader-arguments.md has the meaning of
    each argument on either engine. On the native one ``num_workers`` is a number of threads (0: memload chooses), and
    ``prefetch_factor``, where given, is the depth.

    A sampler of a class that is not torch's or memload's is iterated when a stock loader iterates it: once for each
    batch, and with ``num_workers`` that many times ``prefetch_factor`` batches ahead. Without workers its batches are
    gathered ahead only if ``depth`` is given, which also allows iterating the sampler ahead.

    Args:
        dataset: any dataset.
        batch_size, shuffle, sampler, ...: as in ``DataLoader``.
        threads: native threads; default: the CPUs that this process may use (affinity and cgroup quota), divided by the
            environment's LOCAL_WORLD_SIZE. More threads than CPUs only compete with each other.
        depth: how many batches are gathered ahead of the loop; default 2, and up to 8 where batches are smaller than
            700 KB. A pass takes the memory of ``depth + 1`` batches; see ``nbytes``.
        cast: a ``Cast`` for each field that is to be converted, applied while gathering, such as
            ``{"stim": Cast(torch.bfloat16, norm_removed=True)}``. Keys are field names, or positions for a
            TensorDataset. On the stock machinery the same cast is applied after the collation. See docs/cast.md for
            scales, means by channel, layouts, crops and flips.
        batch_transform: a function of one batch, such as a torchvision v2 transform, an ``nn.Module`` or a compiled
            pipeline; the loop gets what it returns. It follows the cast, runs ahead of the loop in background threads
            under ``torch.no_grad()``, and draws random numbers that follow from (base seed, epoch, rows of the batch).
            On the stock machinery it runs inside ``next()``. ``ds.map(fn)`` is the same for single samples.
        ragged: how batches hold fields whose rows differ in length: "offsets", "padded", ("padded", -100) to pad with
            another number than 0, or "jagged"; or a dict of these by field. The loader's ``dataset`` is then
            ``dataset.with_ragged(ragged)``.
        device: the device on which batches arrive, such as "cuda" (the device that is current when a pass begins) or
            ``torch.device("cuda", 1)``; on either engine. Batches are copied as they are stored, through pinned memory
            and ahead of the loop, and are cast and transformed on the device; the loop's current stream waits for
            them, the CPU does not. ``nbytes`` is then pinned memory, and ``device_nbytes`` memory of the device.
        static_buffers: how many sets of tensors at fixed addresses there are, into which batches are copied in turn,
            as CUDA graphs need them; see docs/gpu.md. With k sets, the k-th ``next()`` after a batch overwrites it.
            All batches must be of one size: give ``drop_last=True`` where the last would be smaller.
        options: an ``EngineOptions`` with further, rarely needed settings; excludes ``threads`` and ``depth``.

    Raises:
        ValueError: an argument is out of range, or two exclude each other.
        TypeError: ``dataset`` is a path, ``cast`` holds something else than a ``Cast``, or ``batch_transform`` cannot
            be called.
        KeyError: ``cast`` names a field that the dataset does not have.
        RuntimeError: ``device`` is a GPU, and torch finds none.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(stim=torch.zeros(100, 8, 8, dtype=torch.uint8))
        >>> loader = memload.FastLoader(ds, batch_size=32, shuffle=True, cast={"stim": memload.Cast(torch.float32)})
        >>> next(iter(loader))["stim"].shape
        torch.Size([32, 8, 8])
    """

    threads: int | None
    depth: int | None
    cast: Mapping[Any, Cast] | None
    options: EngineOptions | None
    ragged: str | tuple[str, Any] | Mapping[str, Any] | None
    device: str | int | torch.device | Interface | None
    static_buffers: int | None
    _kept: Gatherer | None = None  # of the latest pass that ended, where workers persist

    def __init__(
        self: FastLoader[Any],  # a type checker asks nobody to say what batches are
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
        batch_transform: Callable[..., Any] | None = None,
        ragged: str | tuple[str, Any] | Mapping[str, Any] | None = None,
        device: str | int | torch.device | Interface | None = None,
        static_buffers: int | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        if isinstance(dataset, str | os.PathLike):
            raise TypeError(f"{str(dataset)!r} is a path, not a dataset: give memload.open({str(dataset)!r})")
        if ragged is not None:
            dataset = in_form(dataset, ragged)
        target = checked_target(device)
        collate_fn, cast, batch_transform = unpacked(collate_fn, cast, batch_transform)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory or (target is not None and target.on_cuda),  # torch's thread pins what its workers make
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
        # Not by setattr: a subclass may have something of its own of one of these names, which no stock loader has.
        fixed = threads, depth, cast, options, ragged, device, static_buffers
        extras = dict(zip(_FIXED, fixed, strict=True))
        self._extras_given = {name for name, value in extras.items() if value is not None}
        self.__dict__.update(
            {name: extras[name] for name in _FIXED if name in self._extras_given or name not in vars(self)}
        )
        self._target, self._buffers = target, checked_buffers(static_buffers, self)
        self._engine = chosen_options(options, threads, depth)
        self._casts = checked_casts(cast)
        self.batch_transform = checked_transform(batch_transform)
        self._state = LoaderState()
        self._start_afresh()
        self._depth_given = prefetch_factor is not None
        if self._casts or self.batch_transform:
            self.collate_fn = self._carrying()
        source = self._resolved() if self._casts else None
        if isinstance(source, Source | GroupedSource):
            source.with_casts(self._casts)  # a cast of a field that is not there fails here, not in the first pass

    def _start_afresh(self) -> None:
        """Set what belongs to this process's passes, which a copy in another process does not take along."""
        self._finished = LoaderStats()
        self._passes: weakref.WeakSet[NativePass] = weakref.WeakSet()
        self._begun = _Begun()
        self._pace: Pace | None = None
        self._way: Way | None = None
        self._most_ahead: int | None = None  # batches gathered ahead, once memory has become short
        self._index_batches: IndexSampler | None = None
        self._inner: Any = None

    @property
    def engine(self) -> str:
        """ "native" if memload's engine reads the dataset, "torch" if the stock machinery does."""
        return "torch" if isinstance(self._resolved(), str) else "native"

    @property
    def why(self) -> str:
        """One sentence: why this loader runs on the engine it runs on."""
        resolved = self._resolved()
        if isinstance(resolved, str):
            return resolved
        reads = f"The native engine reads {type(self.dataset).__name__}"
        if without_worker_init_fn(self):
            reads += ", without worker processes to call worker_init_fn in"
        if self._way is not None:
            return f"{reads}; its rows lie in pinned RAM: {self._way.reason}."
        return f"{reads}." if self._target is None else f"{reads}; {how_they_go(resolved, self._target)}."

    @property
    def nbytes(self) -> int:
        """Bytes that a pass of the native engine takes: slots, plan and row selections; 0 on the stock machinery.

        Where a batch sampler of an unknown kind does not say how many rows its batches have, slots count as one row
        each here and grow to the largest batch. What a sampler takes for itself while it draws is not counted, nor the
        buffers of 2 MB, eight as a rule, that a pass over a cold disk has while it reads past the page cache.
        """
        source = self._resolved()
        if isinstance(source, str):
            return 0
        settings = settings_of(self, source.with_casts(self._casts))
        selections = 0 if isinstance(self.dataset, Dataset | GroupedDataset) else source.selection_bytes
        ahead = (settings.depth + 1) * settings.slot_rows
        return settings.ring_bytes + plan_bytes(getattr(batches_of(self), "sampler", None), ahead) + selections

    @property
    def device_nbytes(self) -> int:
        """The most bytes of the device's memory that a pass takes for batches and for ``static_buffers``.

        Batches are those being copied, those ready ahead of the loop, and the one in the loop. Batches that the loop
        keeps, and what ``batch_transform`` allocates, come on top.

        Only ``static_buffers`` are counted without ``device=``, for rows that lie on the device already, and on the
        stock machinery, which does not know its batches in advance. There, and with ``batch_transform``, the size of
        the buffers is known from the first batch on.
        """
        source = self._resolved()
        buffers = 0 if self._buffers is None else self._buffers.nbytes
        if isinstance(source, str):
            return 0 if self._target is None else buffers
        settings, count = settings_of(self, source.with_casts(self._casts)), self.static_buffers or 0
        if isinstance(settings, NearSettings):
            return buffers or count * settings.batch_bytes
        if self._target is None:
            return 0
        each = settings.each if isinstance(settings, GroupSettings) else [settings]
        return sum(map(device_bytes, each)) + (buffers or count * sum(map(handed_bytes, each)))

    def stats(self) -> LoaderStats:
        """Return counters of the native passes so far; printed, they say where time went and what the bottleneck is."""
        return sum((live.stats() for live in list(self._passes)), self._finished)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loop, as plain data that json or ``torch.save`` can store; at any moment.

        It counts the batches that the loop has received, not those that were prefetched. Generators that were given to
        the loader or its sampler are part of it; torch's global generator is not, see docs/checkpointing.md.

        Raises:
            RuntimeError: an iterable dataset has its state in worker processes, and torchdata is not installed.

        Example:
            >>> import memload, torch
            >>> ds = memload.from_arrays(x=torch.arange(6)).only("x")
            >>> loader = memload.FastLoader(ds, batch_size=2)
            >>> first = next(iter(loader))
            >>> stopped = loader.state_dict()
            >>> loader = memload.FastLoader(ds, batch_size=2)
            >>> loader.load_state_dict(stopped)
            >>> list(loader)
            [tensor([2, 3]), tensor([4, 5])]
        """
        return self._state.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next ``iter()`` resume where ``state_dict()`` was called; passes after that are whole epochs.

        The number of threads, the depth and, for ``DistributedSampler``, the number of ranks may have changed since.

        Args:
            state_dict: what ``state_dict()`` returned; an empty dict starts a new epoch.

        Raises:
            ValueError: it is of another dataset, batch size, sampler or format version; the message names what differs.
            TypeError: it is no dict.
        """
        self._state.load(self, state_dict)

    def __iter__(self) -> Any:
        pass_begins(self)
        batches = self._batches()
        return batches if self._buffers is None else StaticBatches(batches, self._buffers)

    def _batches(self) -> Any:
        source = self._resolved()
        if isinstance(source, str):
            return self._stock_batches(source, super().__iter__)
        hooked = type(self)._get_iterator is not FastLoader._get_iterator
        return self._get_iterator() if hooked else self._native_pass(source)

    def _stock_batches(self, why: str, make: Callable[[], Iterator[Any]]) -> Any:
        if why == NO_BATCH:
            raise TypeError(why)
        draws = self.batch_transform is not None or draws_of(self._casts)
        peeked = peeked_seed(self.generator) if draws else None
        placer = self._placer()
        batches: Any = stock_pass(self, self._begun.around(make))
        seed, number = self._state.seed(self, batches.progress, peeked) if draws else None, batches.progress.delivered
        names, grouped = self._field_names(), plain_collate(self) is group_collate
        if placer is not None:
            casts = Casts(self._casts, names, grouped)
            return MovedBatches(batches, placer, casts, self.batch_transform, seed, number)
        if self._casts:
            batches = CastBatches(batches, self._casts, names, grouped, seed=seed, number=number)
        if self.batch_transform is None or seed is None:
            return batches
        pin = self.pin_memory and torch.accelerator.is_available()
        return TransformedBatches(batches, self.batch_transform, seed, number, pin=pin)

    def _get_iterator(self) -> Any:
        # Torch's own hook, for those who call it instead of iter(), and for subclasses that override it.
        source = self._resolved()
        if not isinstance(source, str):
            return self._native_pass(source)
        if not self._begun.now:
            return self._stock_batches(source, functools.partial(FastLoader._get_iterator, self))
        with plainly(self):
            return super()._get_iterator()

    def _native_pass(self, source: Source | GroupedSource) -> NativePass:
        self.check_worker_number_rationality()
        settings = settings_of(self, nearest(self, source.with_casts(self._casts)))
        kept = self.__dict__.pop("_kept", None)  # at once: another thread may begin a pass, too
        one = NativePass(self, settings.gatherer(self, kept))
        self._passes.add(one)
        return one

    def _placer(self) -> Placer | None:
        """What puts the batches of a pass that begins now onto the device; None: they stay on the CPU."""
        return None if self._target is None else Placer(self._target.open())

    def _transforms_last(self) -> bool:
        """Whether batches are transformed where they are handed out, since they are moved to a device before."""
        source = self._resolved()
        return self._target is not None and not (isinstance(source, Source) and lies_near(source))

    def _host_memory(self) -> HostMemory | None:
        """What ``pin_memory=True`` pins by; None: there is no accelerator."""
        return TorchHostMemory() if torch.accelerator.is_available() else None

    @property
    def _index_sampler(self) -> Any:
        # What stock iterators iterate: torch's own hook, and the one place where a stopped pass can be taken up.
        return super()._index_sampler if isinstance(self.dataset, IterableDataset) else self._own_indices()

    def _own_indices(self) -> IndexSampler:
        own, held = super()._index_sampler, self._index_batches
        if held is None or held.sampler is not own:
            held = self._index_batches = IndexSampler(own)
        return held

    def __setattr__(self, name: str, value: Any) -> None:
        # As torch has it for batch_size and others: what was worked out of these at construction would not follow.
        fixed = name in _FIXED and "_engine" in self.__dict__
        if fixed and (type(self) is FastLoader or name in self._extras_given):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        fresh = object.__new__(FastLoader)
        fresh._start_afresh()
        return {**self.__dict__, "_state": copy.copy(self._state), **dict.fromkeys((*vars(fresh), "_buffers", "_kept"))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_afresh()
        self._buffers = checked_buffers(self.static_buffers, self)

    def _carrying(self) -> CarryingCollate:
        grouped = self.collate_fn is group_collate
        return CarryingCollate(
            self.collate_fn, self._casts, self._field_names(), grouped=grouped, transform=self.batch_transform
        )

    def _field_names(self) -> list[str]:
        return list(self.dataset.fields) if isinstance(self.dataset, Dataset) else []

    def _resolved(self) -> Source | GroupedSource | str:
        """The source, or the first thing that keeps the loader from being native."""
        if isinstance(self.dataset, IterableDataset):
            return "An IterableDataset has no rows to plan: use a map-style dataset."
        if type(self)._index_sampler is not FastLoader._index_sampler:
            return f"{type(self).__name__} overrides _index_sampler: give its batches as batch_sampler= instead."
        if (reason := asks_for_stock(self)) is not None:
            return reason
        try:
            if plain_collate(self) is group_collate and self.batch_sampler is not None:
                return resolve_groups(self.dataset)
            return collated(resolve(self.dataset), self)
        except NotNative as answer:
            return str(answer)
