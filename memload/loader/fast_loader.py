"""FastLoader: torch's DataLoader, with an engine of its own where it can read the dataset natively.

sampler -> plan of row indices -> gather (+ cast), native threads -> slot -> batch
           sampling/row_plan.py   engine/settings.py, _core.Pipeline           the loop
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from memload.casts.rule import Cast, casts_by_field
from memload.dataset.dataset import Dataset
from memload.dataset.groups import GroupedDataset, group_collate
from memload.device import on_request
from memload.dtypes import DTypeLike
from memload.engine.carrying_collate import CarryingCollate, plainly
from memload.engine.cast_batches import draws_of
from memload.engine.collate_function import NO_BATCH
from memload.engine.observers import OBSERVERS, PASSES
from memload.engine.on_cpu import ON_CPU
from memload.engine.readers import check_dataset
from memload.engine.request import Destination, EngineOptions, PassRequest, chosen_options
from memload.engine.transforms.transform_pipeline import checked_transform
from memload.loader import composing
from memload.loader.arguments import asks_for_stock, in_form, without_worker_init_fn
from memload.loader.history import PassHistory
from memload.loader.state import LoaderState, checked_snapshots
from memload.sampling.torch_draws import peeked_seed
from memload.stats import LoaderStats

if TYPE_CHECKING:
    from memload.dataset.grouped_spec import GroupedSpec
    from memload.device.devices import Target
    from memload.device.interface import HostMemory, Interface
    from memload.device.static_buffers import StaticBuffers
    from memload.engine.gather_spec import GatherSpec
    from memload.loader.access import LoaderAccess

T = TypeVar("T")

_FIXED = ("threads", "depth", "cast", "options", "ragged", "device", "static_buffers")


class FastLoader(DataLoader[T]):
    """A loader that yields the same batches as ``torch.utils.data.DataLoader`` with the same arguments, but faster.

    All arguments of ``DataLoader`` keep their meaning, order, defaults and errors. There are two engines:

    - "native": with the default collation, native threads gather batches into reused memory. It reads memload's
      datasets, TensorDataset, StackDataset, Subset, ConcatDataset, TensorDict, nestings of these, ``Float32View``, and
      any dataset with a method ``__memload__()`` that returns a memload dataset.
    - "torch", the stock machinery: torch's own DataLoader code runs for everything else, with equal results.

    ``engine`` names the engine of a loader, and ``why`` gives the reason. docs/dataloader-arguments.md has the meaning
    of each argument on either engine. On the native one ``num_workers`` is a number of threads (0: memload chooses),
    and ``prefetch_factor``, if given, is the depth.

    A sampler of a class that is not torch's or memload's is iterated at the same times as in a stock loader: once for
    each batch, and with workers ``num_workers * prefetch_factor`` batches ahead. Without workers its batches are
    gathered ahead only if ``depth`` is given, which also allows iterating the sampler ahead.

    Args:
        dataset: any dataset.
        batch_size, shuffle, sampler, ...: as in ``DataLoader``.
        threads: native threads; default: the CPUs that this process may use (affinity and cgroup quota), divided by the
            environment's LOCAL_WORLD_SIZE. More threads than CPUs only compete with each other.
        snapshot_every_n_steps: the argument of torchdata's ``StatefulDataLoader``, accepted so that its scripts run. It
            has no effect: ``state_dict()`` is exact at every step, and nothing is copied before it is called.
        depth: how many batches are gathered ahead of the loop; default 2, and up to 8 if batches are smaller than
            700 KB. A pass takes the memory of ``depth + 1`` batches; see ``nbytes``.
        cast: a ``Cast`` for each field to convert, such as ``{"stim": Cast(torch.bfloat16, norm_removed=True)}``; a
            dtype or its name means the plain cast to it. Keys are field names, or positions for a TensorDataset. Native
            threads cast while they gather; the stock machinery applies the same cast after the collation. See
            docs/cast.md for scales, means by channel, layouts, crops and flips.
        batch_transform: a function of one batch, such as a torchvision v2 transform, an ``nn.Module`` or a compiled
            pipeline; the loop gets its result. It follows the cast, runs under ``torch.no_grad()``, and draws random
            numbers that follow from (base seed, epoch, rows of the batch). It runs ahead of the loop in background
            threads; with stock machinery inside ``next()``; and with ``device``, or rows that are on a device, inside
            ``next()`` in the loop's current stream. ``ds.map(fn)`` is for single samples, and runs in such threads.
        ragged: the form of fields whose rows differ in length: "offsets", "padded", ("padded", -100) to pad with
            another number than 0, or "jagged"; or a dict of these by field. The loader's ``dataset`` is then
            ``dataset.with_ragged(ragged)``.
        device: the device on which batches arrive, on either engine, such as "cuda" (the device that is current when a
            pass begins) or ``torch.device("cuda", 1)``. Batches are copied as they are stored, through pinned memory
            and ahead of the loop, and are cast on the device. The loop's current stream waits for them; the CPU does
            not. ``nbytes`` is then pinned memory, and ``device_nbytes`` memory of the device.
        static_buffers: the number of sets of tensors at fixed addresses, which CUDA graphs need; batches are copied
            into them in turn, see docs/gpu.md. With k sets, the k-th ``next()`` after a batch overwrites it. All
            batches must be of one size: give ``drop_last=True`` if the last would be smaller.
        options: an ``EngineOptions`` with further, rarely needed settings; excludes ``threads`` and ``depth``.

    Raises:
        ValueError: an argument is out of range, or two exclude each other.
        TypeError: ``dataset`` is a path, ``cast`` has a value that is neither a cast nor a dtype, or
            ``batch_transform`` is not callable.
        KeyError: ``cast`` names a field that the dataset does not have.
        RuntimeError: ``device`` is a GPU, and torch finds none.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(stim=torch.zeros(100, 8, 8, dtype=torch.uint8))
        >>> loader = memload.FastLoader(ds, batch_size=32, shuffle=True, cast={"stim": memload.Cast(torch.float32)})
        >>> next(iter(loader))["stim"].shape
        torch.Size([32, 8, 8])
    """

    snapshot_every_n_steps: int | None
    threads: int | None
    depth: int | None
    cast: Mapping[Any, Cast] | None
    options: EngineOptions | None
    ragged: str | tuple[str, Any] | Mapping[str, Any] | None
    device: str | int | torch.device | Interface | None
    static_buffers: int | None
    batch_transform: Callable[..., Any] | None
    _extras_given: set[str]
    _target: Target | None
    _to_device: Destination | None
    _buffers: StaticBuffers | None
    _engine: EngineOptions
    _casts: dict[Any, Cast]
    _state: LoaderState
    _history: PassHistory
    _depth_given: bool

    def __init__(
        self: FastLoader[Any],  # lets a type checker infer Any for batches
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
        snapshot_every_n_steps: int | None = 1,
        threads: int | None = None,
        depth: int | None = None,
        cast: Mapping[Any, Cast | DTypeLike] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        ragged: str | tuple[str, Any] | Mapping[str, Any] | None = None,
        device: str | int | torch.device | Interface | None = None,
        static_buffers: int | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        if isinstance(dataset, str | dict) or not hasattr(dataset, "__getitem__"):
            check_dataset(dataset, by_number=sampler is None and batch_sampler is None)
        if ragged is not None:
            dataset = in_form(dataset, ragged)
        target = None if device is None else on_request.target_of(device)
        casts = None if cast is None else casts_by_field(cast)
        if isinstance(collate_fn, CarryingCollate):
            collate_fn, casts, batch_transform = collate_fn.taken_apart(casts, batch_transform)
        super().__init__(
            dataset,
            int(batch_size) if isinstance(batch_size, np.integer) else batch_size,
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
        self._keep(threads, depth, casts, options, ragged, device, static_buffers)
        self.__dict__.update(  # not by setattr, which asks of each whether it may be set
            _target=target,
            _to_device=None if target is None else on_request.destination_of(target),
            _buffers=self._made_buffers(static_buffers, target),
            _engine=chosen_options(options, threads, depth),
            _casts=dict(casts or {}),
            batch_transform=None if batch_transform is None else checked_transform(batch_transform),
            snapshot_every_n_steps=checked_snapshots(snapshot_every_n_steps),
            _state=LoaderState(),
            _history=PassHistory(),
            _depth_given=prefetch_factor is not None,
        )
        if casts or self.batch_transform:
            self._show_casts()

    def _keep(self, *values: Any) -> None:
        """Keep the values of `_FIXED`; a subclass may have such names of its own: a stock loader has none."""
        extras = dict(zip(_FIXED, values, strict=True))
        given = {name for name, value in extras.items() if value is not None}
        kept = {name: value for name, value in extras.items() if name in given or name not in vars(self)}
        self.__dict__.update(kept, _extras_given=given)  # not by setattr, which refuses them

    def _show_casts(self) -> None:
        """Show others a collate function that casts and transforms; refuse a cast of a field that is not there."""
        plain, names = self.collate_fn, self._field_names()
        if self._casts:
            self._specification(self._request())
        grouped, transform = plain is group_collate, self.batch_transform
        self.collate_fn = CarryingCollate(plain, self._casts, names, grouped=grouped, transform=transform)

    def _made_buffers(self, count: Any, target: Target | None) -> StaticBuffers | None:
        pinned = self.pin_memory and target is None
        return None if count is None else on_request.buffers_of(count, self.batch_sampler, pinned=pinned)

    def _request(self) -> PassRequest:
        """Return the request of a pass that begins now."""
        collate = self.collate_fn.plain if isinstance(self.collate_fn, CarryingCollate) else self.collate_fn
        return PassRequest(
            dataset=self.dataset,
            batches=self.sampler if self.batch_sampler is None else self.batch_sampler,
            batched=self.batch_sampler is not None,
            collate=collate,
            grouped=collate is group_collate,
            generator=self.generator,
            casts=self._casts,
            transform=self.batch_transform,
            names=self._field_names(),
            options=self._engine,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            depth_given=self._depth_given,
            persistent_workers=self.persistent_workers,
            timeout=self.timeout,
            most_ahead=self._history.most_ahead,
            spares=None if self.persistent_workers else self._history.spares,
            destination=self._destination(),
        )

    def _destination(self) -> Destination:
        """Return the destination of batches for a pass that begins now."""
        if self._to_device is not None or not self.pin_memory:
            return self._to_device or ON_CPU
        warned = self.persistent_workers and self._state.base_seed is not None
        return on_request.pinned(self._host_memory(), self.pin_memory_device, warned=warned)

    @property
    def engine(self) -> str:
        """ "native" if memload's engine reads the dataset, "torch" if the stock machinery does."""
        return "torch" if isinstance(self._resolved(), str) else "native"

    @property
    def why(self) -> str:
        """One sentence that gives the reason for the engine of this loader."""
        resolved = self._resolved()
        if isinstance(resolved, str):
            return resolved
        reads = f"The native engine reads {type(self.dataset).__name__}"
        if without_worker_init_fn(self):
            reads += ", without worker processes to call worker_init_fn in"
        how = composing.how_they_go(self._request(), resolved, self._target)
        return f"{reads}; {how}." if how else f"{reads}."

    @property
    def nbytes(self) -> int:
        """Bytes that a pass of the native engine takes: slots, row order and selections; 0 on the stock machinery.

        If the number of rows in the batches of a batch sampler is unknown, each slot counts as one row here, and grows
        to the largest batch. Not counted: memory that a sampler allocates itself, and the buffers of 2 MB, usually 8,
        of a pass over a cold disk that reads past the page cache. At most as many bytes stay for 10 s after a pass.
        """
        request = self._request()
        source = self._specification(request)
        if isinstance(source, str):
            return 0
        selections = 0 if isinstance(self.dataset, Dataset | GroupedDataset) else source.selection_bytes
        return composing.slots_and_plan(request, source) + selections

    @property
    def device_nbytes(self) -> int:
        """The most bytes of the device's memory that a pass takes for batches and for ``static_buffers``.

        The batches are those being copied, those ready ahead of the loop, and the one in the loop. Batches that the
        loop keeps, and allocations of ``batch_transform``, are not counted. Only ``static_buffers`` are counted without
        ``device=``, for rows that are all on the device already, and on the stock machinery; there, and with
        ``batch_transform``, the size of the buffers is known from the first batch on. Of rows of which some lie in
        pinned RAM, those that arrive from there by the copy engine are counted, too.
        """
        return self._device_bytes(self._request(), 1.0)

    def _device_bytes(self, request: PassRequest, times: float) -> int:
        """Return the bytes of `device_nbytes` of a pass whose batches have so many times the rows of the loader's."""
        source = self._specification(request)
        buffers = 0 if self._buffers is None else math.ceil(times * self._buffers.nbytes)
        if isinstance(source, str):
            return 0 if self._target is None else buffers
        return composing.device_bytes(request, source, self._target, buffers, self.static_buffers or 0)

    def stats(self) -> LoaderStats:
        """Return counters of the native passes so far; ``print`` shows where time went and what the bottleneck is."""
        return self._history.stats()

    def close(self) -> None:
        """Free the memory and threads kept for the next pass; running passes go on. It may be called several times."""
        self._history.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loop, at any moment, as plain data that json or ``torch.save`` can store.

        It counts the batches that the loop has received, not those that were prefetched. It includes the states of
        generators that were given to the loader or its sampler, but not of torch's global generator; see
        docs/checkpointing.md.

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
        return self._state.state_dict(self._request(), self._resolved)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next ``iter()`` resume where ``state_dict()`` was called; passes after that are whole epochs.

        The number of threads, the depth and, for ``DistributedSampler``, the number of ranks may have changed since.

        Args:
            state_dict: the result of ``state_dict()``; an empty dict starts a new epoch.

        Raises:
            ValueError: the state is of another dataset, batch size, sampler or format version, which the message names.
            TypeError: the state is not a dict.
        """
        self._state.load(self._request(), self._resolved, state_dict)

    def __iter__(self) -> Any:
        PASSES[self] = number = PASSES.get(self, 0) + 1
        for observer in OBSERVERS.now:
            observer.pass_begins(self, number)
        batches = self._batches()
        return batches if self._buffers is None else on_request.in_buffers(batches, self._buffers)

    def _batches(self) -> Any:
        request = self._request()
        source = self._specification(request)
        if isinstance(source, str):
            return self._fallback_batches(request, source, super().__iter__)
        if type(self)._get_iterator is not FastLoader._get_iterator:
            return self._get_iterator()
        self.check_worker_number_rationality()
        return composing.native_pass(request, source, self._state, self._history, self)

    def _fallback_batches(self, request: PassRequest, why: str, make: Callable[[], Iterator[Any]]) -> Any:
        if why == NO_BATCH:
            raise TypeError(why)
        from memload.loader.fallback_passes import FallbackPass

        draws = request.transform is not None or draws_of(request.casts)
        peeked = peeked_seed(self.generator) if draws else None
        moved = request.destination.moving(request)
        kept = composing.fallback_history(self._history)
        kept.torchdata.length = self._IterableDataset_len_called
        stock = FallbackPass(self, request, self._state, kept, lambda: self._index_sampler)
        batches = stock.begin(kept.making.around(make))
        seed = self._state.seed(request, batches.progress, peeked) if draws else None
        return moved(batches, seed, batches.progress.delivered)

    def _get_iterator(self) -> Any:
        # Torch's own hook, for those who call it instead of iter(), and for subclasses that override it.
        request = self._request()
        source = self._specification(request)
        if not isinstance(source, str):
            self.check_worker_number_rationality()
            return composing.native_pass(request, source, self._state, self._history, self)
        if not composing.fallback_history(self._history).making.now:
            return self._fallback_batches(request, source, functools.partial(FastLoader._get_iterator, self))
        with plainly(self):
            return super()._get_iterator()

    def __memload_loader__(self) -> LoaderAccess:
        """Return the private interface of this loader for other parts of memload."""
        from memload.loader.access import LoaderAccess

        return LoaderAccess(self._request, self._resolved, self._device_bytes, self._state, self._history)

    def _host_memory(self) -> HostMemory | None:
        return on_request.host_memory()

    @property
    def _index_sampler(self) -> Any:
        # Stock iterators iterate over this: it is torch's own hook, and the only place to resume a stopped pass.
        own, iterable = super()._index_sampler, isinstance(self.dataset, IterableDataset)
        return own if iterable else composing.fallback_history(self._history).indices(own)

    def __setattr__(self, name: str, value: Any) -> None:
        # As torch does for batch_size and others: values derived from these at construction would not follow.
        fixed = name in _FIXED and "_engine" in self.__dict__
        if fixed and (type(self) is FastLoader or name in self._extras_given):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": copy.copy(self._state), "_history": None, "_buffers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._history = PassHistory()  # of this process's passes, which a copy in another process does not inherit
        self._buffers = self._made_buffers(self.static_buffers, self._target)

    def _field_names(self) -> list[str]:
        return list(self.dataset.fields) if isinstance(self.dataset, Dataset) else []

    def _obstacle(self) -> str | None:
        """Return a sentence about what of this loader keeps the native engine away, whatever the dataset is."""
        if isinstance(self.dataset, IterableDataset):
            return "An IterableDataset has no rows to plan: use a map-style dataset."
        if type(self)._index_sampler is not FastLoader._index_sampler:
            return f"{type(self).__name__} overrides _index_sampler: give its batches as batch_sampler= instead."
        return asks_for_stock(self) if self.num_workers else None

    def _resolved(self) -> GatherSpec | GroupedSpec | str:
        """Return the gather specification without casts, or a sentence about the first obstacle to the engine."""
        return self._obstacle() or composing.read(self._request())

    def _specification(self, request: PassRequest) -> GatherSpec | GroupedSpec | str:
        """Return the gather specification with casts, or a sentence about the first obstacle to the engine."""
        return self._obstacle() or composing.read_with_casts(request, self._history)
