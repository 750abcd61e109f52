"""What a loader asks of one pass: its arguments in the terms of the engine, and where batches are to go.

loader -> PassRequest -> PassSettings -> Arrival -> gatherer
                             source          where batches go
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils.data import BatchSampler, default_collate, default_convert

from memload import _core
from memload.casts.rule import Cast
from memload.columns.numbers import is_whole
from memload.engine.gatherer import Gatherer
from memload.engine.transforms.seeding import PassSeed

if TYPE_CHECKING:
    from memload.engine.gather_spec import GatherSpec
    from memload.engine.settings import PassSettings

MOST = 1024
"""The most threads, and the most batches ahead, that can be asked for."""


@dataclass(frozen=True)
class EngineOptions:
    """Settings of the native engine that are rarely needed; batches never depend on them. Defaults were measured.

    Attributes:
        threads: threads that gather; None: the CPUs that this process may use, divided by the processes of its node.
        depth: how many batches are gathered ahead of the one in the loop; each takes the memory of one batch.
        transform_threads: threads that run ``map`` functions and, without ``device=``, ``batch_transform``; each adds
            one batch to those ahead. None: as many as gather, at most 8; how many of them work at once is found by
            trying. None is one for functions that seed Python's or numpy's numbers of the process.
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
            if value is not None and not (is_whole(value) and 0 < value <= MOST):
                raise ValueError(f"{name} must be an int from 1 to {MOST}, got {value!r}; left out, memload chooses it")
            object.__setattr__(self, name, None if value is None else int(value))
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


class Arrival(Protocol):
    """Where the batches of one pass arrive."""

    finish: Callable[[Any], Any] | None
    """What the loop's thread does to each batch before it is handed out; None: nothing."""

    def gatherer(self, settings: PassSettings, kept: Gatherer | None) -> Gatherer:
        """Return what gathers batches for this place.

        Args:
            settings: of the pass.
            kept: what gathered for an earlier pass, and has kept its slots.
        """

    def around(self, gatherer: Gatherer, settings: PassSettings, request: PassRequest) -> Gatherer:
        """Return the gatherer with the layer that hands its batches out here."""


class Destination(Protocol):
    """Where the batches of a loader go: the CPU, pinned memory of the CPU, or a device. The loader chooses one."""

    @property
    def transforms(self) -> bool:
        """Whether batches are transformed where they arrive, rather than by the engine's threads."""

    @property
    def pins(self) -> bool:
        """Whether batches are gathered into pinned memory of torch's allocator."""

    @property
    def device(self) -> torch.device | None:
        """The device that batches were asked for on; None: the CPU, or a device that has no name in torch."""

    def bound(self, source: GatherSpec, request: PassRequest) -> GatherSpec:
        """Return a source as it is gathered for this place."""

    def slot_bytes(self, nbytes: int) -> int:
        """Return the bytes that a slot of so many bytes takes, where batches are gathered into pinned memory."""

    def open(self, kept: Arrival | None) -> Arrival:
        """Return where the batches of a native pass that begins now arrive.

        Args:
            kept: where those of an earlier pass arrived, which has ended and kept its slots.

        Raises:
            DeviceError: the device cannot be used in this process.
        """

    def moving(self, request: PassRequest) -> Moving:
        """Return the function that brings batches of the stock machinery here, for a pass that begins now.

        Raises:
            DeviceError: the device cannot be used in this process.
        """


Moving = Callable[[Iterator[Any], PassSeed | None, int], Iterator[Any]]
"""Returns the batches of an iterator cast, transformed, and where they go.

Its arguments are the iterator, which has a length; what the randomness of the pass follows from, None: nothing is
random; and the number of the first batch, counted from the beginning of the pass.
"""


class PassRequest(NamedTuple):
    """What a loader asks of a pass: its arguments as they are when the pass begins, in the terms of the engine.

    Attributes:
        dataset: whose rows are asked for.
        batches: gives the rows of each batch: a batch sampler, or a sampler where there is no automatic batching.
        batched: whether there is automatic batching.
        collate: the collate function.
        grouped: whether batches are lists with one part for each dataset.
        generator: the loader's own.
        casts: by field.
        transform: what is done to each batch at the end; None: nothing.
        names: of the dataset's fields, if it has any.
        options: of the engine.
        num_workers: how many threads were asked for in the words of the stock loader; 0: memload chooses.
        prefetch_factor: as the stock loader takes it.
        depth_given: whether the user gave it.
        persistent_workers: whether slots are kept from one pass to the next, and the base seed is drawn once.
        timeout: seconds to wait for a batch, as the stock loader takes them.
        most_ahead: the most batches to gather ahead, where memory has become short.
        spares: where memory and threads stay for a while when the pass ends; None: with persistent workers, and then
            the loader itself keeps them.
        destination: where batches go.
    """

    dataset: Any
    batches: Any
    batched: bool
    collate: Any
    grouped: bool
    generator: torch.Generator | None
    casts: Mapping[Any, Cast]
    transform: Callable[..., Any] | None
    names: Sequence[str]
    options: EngineOptions
    num_workers: int
    prefetch_factor: int | None
    depth_given: bool
    persistent_workers: bool
    timeout: Any
    most_ahead: int | None
    spares: _core.Spares | None
    destination: Destination

    @property
    def gives_batches(self) -> bool | None:
        """Whether what the loop gets has an axis that counts rows; None: a function of the user's decides."""
        if self.batched:
            return True if self.collate is default_collate else None
        known = type(self.batches).__module__.startswith("torch.utils.data") and self.collate is default_convert
        return type(self.batches) is BatchSampler if known else None
