"""Records the allocations of torch code one by one: on the CPU, on a GPU, and on "meta".

    an operation -> its tensors -> a new storage -> an allocation, until the last tensor over the storage is freed

A dispatch mode sees every operation of torch, forward and backward, in the order in which it runs. It does not see
memory that an operation frees before it returns, but for that of LSTM layers and convolutions
(`memload.planning.library_bytes`). This module also recognises
errors that report exhausted memory, and frees memory after them.
"""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from memload.device.memory import OperationPeaks
from memload.nested import leaves
from memload.planning.library_bytes import RECURRENT, Blocks, library_bytes
from memload.sizes import format_size

Bytes = NDArray[np.int64]
Told = Callable[[], object]

HEAP = 2.0
"""How many times a tensor counts that glibc's heap keeps when it is freed: see `Timeline.peak_in_heap` and `Each.peak`.

It is the bound for tensors of one size, of which the hole of a freed one takes no other
(`memload.planning.heap_surplus`): where no hole has room for one more, and neighbouring holes join, a hole that is
smaller than two lies between two that are in use.

Steps of 72, 108, 239 and 837 MB of a CNN took 127, 191, 366 and 847 MB, with a loader one of 109 MB over 240. Of 62,
205 and 615 MB of an LSTM 64, 213 and 639 MB were taken. A GRU with 67 MB of tensors below 256 KB took 77 MB more than
all its tensors where these were in the heap, and 51 MB less where they were not."""

LEAST_IN_HEAP = 16 << 20
"""Bytes in glibc's heap that plans of training on the CPU count apart from on, `HEAP` included. What is left out below
is at most half of it: 8 MiB, which is 2.5 % of the least run of training that docs/memory-truth.md has (334 MB), where
15 % are allowed. Most models have less: apart from recurrent ones, tensors below 262,144 bytes are norms' and
losses'."""

_LIFT_FRESH = torch.ops.aten.lift_fresh.default  # the end of torch.tensor(): its argument is new, too


@dataclass(frozen=True)
class Timeline:
    """Allocations in the order in which they were made.

    Attributes:
        operations: the operation of each allocation.
        nbytes: int64 (n,), the bytes of each.
        freed: int64 (n,), the number of allocations before each was freed; n + 1 if it was not freed.
        gradient: bool (n,), whether each holds the gradient of a parameter.
        asked: int64 (n,), the bytes of the block that the C library was asked for, which tell whether its heap keeps
            the block. A library's workspace is larger than what is written of it.
    """

    operations: tuple[str, ...]
    nbytes: Bytes
    freed: Bytes
    gradient: NDArray[np.bool_]
    asked: Bytes

    def live(self, *, gradients: bool = True) -> Bytes:
        """Return the bytes alive after each allocation, int64 (n,), those of gradients included or not."""
        counted = self.nbytes if gradients else np.where(self.gradient, 0, self.nbytes)
        freed = np.zeros(len(counted) + 2, dtype=np.int64)
        np.add.at(freed, self.freed, counted)
        return np.cumsum(counted) - np.cumsum(freed)[: len(counted)]

    def accumulating(self) -> Timeline:
        """Return the timeline of a step whose gradients exist already: each new gradient is added to the old and freed.

        It is freed before the allocation after next, since autograd accumulates a gradient as soon as it is made.
        """
        soon = np.minimum(self.freed, np.arange(len(self.nbytes)) + 2)
        return replace(self, freed=np.where(self.gradient, soon, self.freed))

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each allocation is a block that an operation freed before it returned, bool (n,)."""
        return np.array([name.endswith(", inside") for name in self.operations], dtype=np.bool_)

    @property
    def of_recurrent_layers(self) -> NDArray[np.bool_]:
        """Whether each allocation is one of a recurrent layer that a library computes as a whole, bool (n,)."""
        return np.array([name.startswith(RECURRENT) for name in self.operations], dtype=np.bool_)

    @property
    def peak(self) -> int:
        """The most bytes that were alive at one time."""
        return int(self.live().max(initial=0))

    def highest(self, nbytes: Bytes) -> int:
        """Return the most bytes alive at one time, if the allocations were of these bytes, int64 (n,)."""
        return int(replace(self, nbytes=nbytes).live().max(initial=0))

    def peak_in_heap(self, threshold: int) -> int:
        """Return the most bytes alive at one time, where the C library's heap keeps what is below a threshold.

        The heap does not shrink, so its bytes are those of its own highest moment. What stays below `LEAST_IN_HEAP`
        bytes counts as all else does.
        """
        is_kept = self.asked < threshold
        small, rest = np.where(is_kept, self.nbytes, 0), np.where(is_kept, 0, self.nbytes)
        in_heap = math.ceil(HEAP * self.highest(small))
        return self.peak if in_heap < LEAST_IN_HEAP else in_heap + self.highest(rest)

    @property
    def kept(self) -> int:
        """Bytes that were alive at the end."""
        return int(self.nbytes[self.freed > len(self.nbytes)].sum())

    def largest(self) -> tuple[int, str]:
        """Return the bytes of the largest allocation that was alive at the peak, and the operation that made it."""
        if not len(self.nbytes):
            return 0, ""
        at = int(self.live().argmax())
        alive = np.where((np.arange(len(self.nbytes)) <= at) & (self.freed > at), self.nbytes, -1)
        number = int(alive.argmax())
        return int(self.nbytes[number]), self.operations[number]


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the allocations inside its ``with`` block.

    Earlier storages and their views do not count. A storage counts once, however many tensors use it.

    Args:
        limit: the most bytes that may be alive at one time; the operation that needs more raises
            ``torch.OutOfMemoryError``, as on a GPU.
        on_cpu: whether what tensors on the CPU show will run on a CPU, so that copies inside convolutions count.
        peaks: tells what an operation takes beside its results, where a GPU's allocator knows it; None: it is computed
            for the operations of `memload.planning.library_bytes`.
        told: is called after each operation, for a progress bar.
    """

    def __init__(
        self,
        limit: int | None = None,
        *,
        on_cpu: bool = False,
        peaks: OperationPeaks | None = None,
        told: Told | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self._peaks, self._told = peaks, told
        self._on_cpu = on_cpu
        self.live = self.peak = 0
        self.freed_earlier = 0
        """Bytes of known earlier storages that were freed inside the block."""
        self._operations: list[str] = []
        self._nbytes: list[int] = []
        self._asked: list[int] = []
        self._freed: list[int] = []
        # The size and the allocations of each storage, by the id of its Python object, which lives as long.
        self._sizes: dict[int, int] = {}
        self._numbers: dict[int, list[int]] = {}
        self._before: dict[int, int] = {}
        self._workspaces: set[int] = set()
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in () if func is _LIFT_FRESH else tensors_in((args, kwargs)):
            for storage in storages(tensor):
                self._know(storage)
        if self._peaks:
            self._peaks.begin()
        out = func(*args, **kwargs)
        scratch = self._peaks.scratch() if self._peaks else None
        library = library_bytes(func, args, out, on_cpu=self._on_cpu)
        if library.workspace is not None and out[-1] is not None:
            self._record(out[-1].untyped_storage(), str(func), library.workspace)
        for tensor in tensors_in(out):
            for storage in storages(tensor):
                self._record(storage, str(func))
        blocks = library.scratch if scratch is None else ((scratch, scratch),)
        if blocks:  # that of a GPU in any case: steps of all sizes have it in common
            self._record_scratch(blocks, f"{func}, inside")
        if self._told:
            self._told()
        return out

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Register tensors as earlier ones, whether an operation uses them or not."""
        for tensor in tensors:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # tensors without memory
                for storage in storages(tensor):
                    self._know(storage)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in memory that was allocated inside the block."""
        return any(id(storage) in self._numbers for storage in storages(tensor))

    def size_of(self, storage: torch.UntypedStorage) -> int:
        """Return the bytes of a storage; of a workspace of a library those that are written."""
        return self._sizes.get(id(storage), storage.nbytes())

    def timeline(self, gradients: Iterable[torch.Tensor] = ()) -> Timeline:
        """Return the allocations so far; `gradients` are tensors whose allocations count as gradients."""
        is_gradient = np.zeros(len(self._nbytes), dtype=np.bool_)
        for tensor in gradients:
            for storage in storages(tensor):
                is_gradient[self._numbers.get(id(storage), [])] = True
        never = len(self._nbytes) + 1
        freed = np.array([never if at < 0 else at for at in self._freed], dtype=np.int64)
        nbytes, asked = (np.array(column, dtype=np.int64) for column in (self._nbytes, self._asked))
        return Timeline(tuple(self._operations), nbytes, freed, is_gradient, asked)

    def _know(self, storage: torch.UntypedStorage) -> None:
        if id(storage) not in self._sizes:
            self._follow(storage, storage.nbytes())
            self._before[id(storage)] = storage.nbytes()

    def _record(self, storage: torch.UntypedStorage, operation: str, workspace: tuple[int, int] | None = None) -> None:
        """Record a storage, or what it has grown by; of a workspace its written bytes, and those asked for."""
        key = id(storage)
        if key in self._workspaces:
            return
        size, asked = workspace or (storage.nbytes(), storage.nbytes())
        before = self._sizes.get(key)
        if before is None:
            self._follow(storage, 0)
            before = 0
        if workspace is not None:
            self._workspaces.add(key)
        if size <= before:
            return
        self._sizes[key] = size
        self._numbers.setdefault(key, []).append(self._allocated(size - before, operation, asked - before))
        self._check_limit(size - before, operation)

    def _record_scratch(self, blocks: Blocks, operation: str) -> None:
        """Record blocks that an operation has while it runs, beside its results."""
        numbers = [self._allocated(nbytes, operation, asked) for nbytes, asked in blocks]
        try:
            self._check_limit(sum(nbytes for nbytes, _ in blocks), operation)
        finally:
            for number in numbers:
                self._free(number)

    def _allocated(self, nbytes: int, operation: str, asked: int) -> int:
        """Record so many bytes of a block of those `asked` for, and return the number of the allocation."""
        self._operations.append(operation)
        self._nbytes.append(nbytes)
        self._asked.append(asked)
        self._freed.append(-1)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        return len(self._nbytes) - 1

    def _check_limit(self, nbytes: int, operation: str) -> None:
        """Raise torch.OutOfMemoryError if more is alive than is allowed."""
        if self.limit is not None and self.live > self.limit:
            raise torch.OutOfMemoryError(
                f"out of the {format_size(self.limit)} that were allowed: {operation} asked for "
                f"{format_size(nbytes)} where {format_size(self.limit - self.live + nbytes)} were left"
            )

    def _free(self, number: int) -> None:
        self._freed[number] = len(self._nbytes)
        self.live -= self._nbytes[number]

    def _follow(self, storage: torch.UntypedStorage, size: int) -> None:
        key = id(storage)
        self._sizes[key] = size
        freed = weakref.WeakMethod(self._on_freed)  # a strong reference would keep this alive as long as the storage

        def forget(_: object) -> None:
            if (method := freed()) is not None:
                method(key)

        self._references[key] = weakref.ref(storage, forget)

    def _on_freed(self, key: int) -> None:
        self._sizes.pop(key, None)
        self._references.pop(key, None)
        self.freed_earlier += self._before.pop(key, 0)
        self._workspaces.discard(key)
        for number in self._numbers.pop(key, ()):
            self._free(number)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection inside, so that objects are freed at the same moments in each run of a step.

    A collection at an arbitrary moment would make two runs of the same step differ.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of a tensor: one, or those of the parts of a sparse or wrapped tensor."""
    if hasattr(tensor, "__tensor_flatten__"):
        for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(part, torch.Tensor):  # a DTensor of torch 2.13 names its mesh as well
                yield from storages(part)
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    elif tensor.layout is torch.sparse_coo:
        yield from storages(tensor._indices())
        yield from storages(tensor._values())


def nbytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors' storages, each counted once."""
    found = {id(storage): storage for tensor in tensors for storage in storages(tensor)}
    return sum(storage.nbytes() for storage in found.values())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


# Texts of errors that are no torch.OutOfMemoryError, of the CPU's allocator and of CUDA libraries that allocate.
_MESSAGES = ("can't allocate memory", "CUDA out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error says that memory ran out, on the CPU or a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def free_unused() -> None:
    """Free what is no longer referenced: reference cycles in Python, and blocks of a GPU that torch keeps cached."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
