"""What torch code allocates, allocation by allocation: on the CPU, on a GPU, and on "meta", where nothing is.

    an operation -> its tensors -> a storage that was not there before -> an allocation, until its last tensor is gone

A dispatch mode sees every operation that torch runs, forward and backward, in the order in which it runs. What an
operation takes for itself and gives back before it returns, such as the workspace of a convolution, it does not see.
Which errors say that memory ran out, and what to give back then, stands here, too.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from memload.nested import leaves
from memload.sizes import format_size

Bytes = NDArray[np.int64]

_MADE = torch.ops.aten.lift_fresh.default  # what torch.tensor() ends with: its argument was not there before either


@dataclass(frozen=True)
class Timeline:
    """Allocations in the order in which they were made.

    Attributes:
        operations: the operation that made each.
        nbytes: int64 (n,), bytes of each.
        freed: int64 (n,), how many allocations had been made when it was given back; n + 1 if it was not.
        gradient: bool (n,), whether it holds the gradient of a parameter.
    """

    operations: tuple[str, ...]
    nbytes: Bytes
    freed: Bytes
    gradient: NDArray[np.bool_]

    def live(self, *, gradients: bool = True) -> Bytes:
        """Return the bytes alive after each allocation, int64 (n,), those of gradients included or not."""
        counted = self.nbytes if gradients else np.where(self.gradient, 0, self.nbytes)
        given_back = np.zeros(len(counted) + 2, dtype=np.int64)
        np.add.at(given_back, self.freed, counted)
        return np.cumsum(counted) - np.cumsum(given_back)[: len(counted)]

    def accumulating(self) -> Timeline:
        """Return what it would have been if gradients had been there: each new one is added to the old and given back.

        That is before the allocation after next, as autograd accumulates a gradient as soon as it is made.
        """
        soon = np.minimum(self.freed, np.arange(len(self.nbytes)) + 2)
        return replace(self, freed=np.where(self.gradient, soon, self.freed))

    @property
    def peak(self) -> int:
        """The most bytes that were alive at one time."""
        return int(self.live().max(initial=0))

    @property
    def kept(self) -> int:
        """Bytes that were alive at the end."""
        return int(self.nbytes[self.freed > len(self.nbytes)].sum())

    def largest(self) -> tuple[int, str]:
        """Return the bytes of the largest allocation that was alive at the peak, and the operation that made it."""
        if not len(self.nbytes):
            return 0, ""
        at = int(self.live().argmax())
        there = np.where((np.arange(len(self.nbytes)) <= at) & (self.freed > at), self.nbytes, -1)
        number = int(there.argmax())
        return int(self.nbytes[number]), self.operations[number]


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Observes what is allocated inside its ``with`` block.

    What lay in memory before does not count, nor do views of it; a storage counts once however many tensors see it.

    Args:
        limit: the most bytes that may be alive at one time; the operation that needs more raises
            ``torch.OutOfMemoryError``, as on a GPU.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.live = self.peak = 0
        self.given_back = 0
        """Bytes that were there before, were seen, and are gone."""
        self._operations: list[str] = []
        self._nbytes: list[int] = []
        self._freed: list[int] = []
        # By the id of the storage's object, which lives as long as the storage: its size, and its allocations.
        self._sizes: dict[int, int] = {}
        self._numbers: dict[int, list[int]] = {}
        self._before: dict[int, int] = {}
        self._watching: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in () if func is _MADE else tensors_in((args, kwargs)):
            for storage in storages(tensor):
                self._know(storage)
        out = func(*args, **kwargs)
        for tensor in tensors_in(out):
            for storage in storages(tensor):
                self._see(storage, str(func))
        return out

    def know(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count these among what was there before, whether an operation sees them or not."""
        for tensor in tensors:
            with contextlib.suppress(NotImplementedError, RuntimeError):  # of tensors that have no memory
                for storage in storages(tensor):
                    self._know(storage)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in memory that was allocated inside the block."""
        return any(id(storage) in self._numbers for storage in storages(tensor))

    def timeline(self, gradients: Iterable[torch.Tensor] = ()) -> Timeline:
        """Return what was allocated so far; `gradients` are tensors whose allocations count as such."""
        is_gradient = np.zeros(len(self._nbytes), dtype=np.bool_)
        for tensor in gradients:
            for storage in storages(tensor):
                is_gradient[self._numbers.get(id(storage), [])] = True
        never = len(self._nbytes) + 1
        freed = np.array([never if at < 0 else at for at in self._freed], dtype=np.int64)
        return Timeline(tuple(self._operations), np.array(self._nbytes, dtype=np.int64), freed, is_gradient)

    def _know(self, storage: torch.UntypedStorage) -> None:
        if id(storage) not in self._sizes:
            self._watch(storage, storage.nbytes())
            self._before[id(storage)] = storage.nbytes()

    def _see(self, storage: torch.UntypedStorage, operation: str) -> None:
        key, size = id(storage), storage.nbytes()
        before = self._sizes.get(key)
        if before is None:
            self._watch(storage, 0)
            before = 0
        if size <= before:
            return
        self._sizes[key] = size
        self._numbers.setdefault(key, []).append(len(self._nbytes))
        self._operations.append(operation)
        self._nbytes.append(size - before)
        self._freed.append(-1)
        self.live += size - before
        self.peak = max(self.peak, self.live)
        if self.limit is not None and self.live > self.limit:
            raise torch.OutOfMemoryError(
                f"out of the {format_size(self.limit)} that were allowed: {operation} asked for "
                f"{format_size(size - before)} where {format_size(self.limit - self.live + size - before)} were left"
            )

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        key = id(storage)
        self._sizes[key] = size
        gone = weakref.WeakMethod(self._gone)  # or this would refer to itself as long as the storage lives

        def forget(_: object) -> None:
            if (method := gone()) is not None:
                method(key)

        self._watching[key] = weakref.ref(storage, forget)

    def _gone(self, key: int) -> None:
        self._sizes.pop(key, None)
        self._watching.pop(key, None)
        self.given_back += self._before.pop(key, 0)
        for number in self._numbers.pop(key, ()):
            self._freed[number] = len(self._nbytes)
            self.live -= self._nbytes[number]


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
    """Yield the storages that a tensor's elements lie in: one, or of a sparse or wrapped tensor those of its parts."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from storages(getattr(tensor, name))
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


# Errors that are no torch.OutOfMemoryError, of the CPU's allocator and of libraries of CUDA's that allocate themselves.
_SAYINGS = ("can't allocate memory", "CUDA out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error says that memory ran out, on the CPU or a GPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error) for saying in _SAYINGS)


def give_back() -> None:
    """Free what is no longer referenced: reference cycles in Python, and blocks of a GPU that torch keeps cached."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
