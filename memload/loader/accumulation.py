"""memload.accumulate: several physical batches as one effective batch."""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from memload.columns.graph_attributes import GraphBatch
from memload.columns.ragged_forms import Ragged
from memload.kept_errors import level_outside
from memload.loader.access import LoaderAccess, access
from memload.sampling.pulls import is_stateful
from memload.sampling.row_plan import HeldGroup, Progress
from memload.sizes import counted

T = TypeVar("T")


@dataclass(frozen=True)
class Micro:
    """The weight and the place of a micro-batch in its group.

    Attributes:
        weight: the factor for its mean loss, which is its share of the group's rows; the weights of a group sum to 1.
        step: whether it is the last of its group; if so, the optimizer steps after ``backward()``.
        index: its position in the group, from 0.
        count: the number of micro-batches in the group; smaller than ``k`` at most in the last group of an epoch.
        rows: the number of its rows, or the count that ``rows=`` returned for it.
    """

    weight: float
    step: bool
    index: int
    count: int
    rows: float

    @contextlib.contextmanager
    def no_sync(self, *models: Any) -> Iterator[None]:
        """Return a context in which these models do not exchange gradients, unless this is the group's last batch.

        Run the forward and the backward pass inside. DistributedDataParallel and FSDP have a method ``no_sync``; models
        without it are left alone, so that the same loop runs in one process.
        """
        with contextlib.ExitStack() as stack:
            for model in models:
                if not self.step and hasattr(model, "no_sync"):
                    stack.enter_context(model.no_sync())
            yield


def accumulate(loader: Iterable[T], k: int, *, rows: Callable[[T], Any] | None = None) -> Accumulation[T]:
    """Return the batches of a loader in groups of ``k``, each with the weight of its loss and whether to step.

    If the loss is a mean over the rows of a batch, the gradients of a group add up to those of a single batch of all
    its rows, even if the last batch of the group, or the group itself, is short. A loss that is a sum over rows needs
    no weight.

    Args:
        loader: a FastLoader, a DataLoader, or any iterable of batches. Choose its ``batch_size`` so that a batch fits
            into memory; the effective batch is ``k`` times as large.
        k: the number of batches in a group. The last group of a pass has the remaining batches.
        rows: takes a batch and returns the count over which its loss is a mean, if that is not the number of its rows:
            tokens without padding, or nodes.

    If the loader knows beforehand how many rows each batch has (any with ``batch_size=`` over a dataset with a length,
    which is the common case), batches are yielded one by one. Otherwise, and with ``rows=``, all batches of a group are
    taken from the loader before the first is yielded, so that memory holds ``k`` batches.

    Returns:
        An iterable of ``(batch, micro)``. It has the length of the loader, if that has one, and ``steps``, the number
        of groups in a pass. `Micro` describes ``micro``.

    Raises:
        ValueError: ``k`` is below 1, or in the loop: a group has no rows.
        TypeError: ``k`` is not an integer, or in the loop: the number of rows of a batch cannot be determined.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(x=torch.rand(10, 3), y=torch.rand(10, 1))
        >>> loader = memload.FastLoader(ds.as_tuple("x", "y"), batch_size=4)
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for (x, y), micro in memload.accumulate(loader, 2):
        ...     loss = torch.nn.functional.mse_loss(model(x), y)
        ...     (loss * micro.weight).backward()
        ...     if micro.step:
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...     print(micro.weight, micro.step)
        0.5 False
        0.5 True
        1.0 True
    """
    if isinstance(k, bool):
        raise TypeError(f"k is a number of batches, got {k!r}")
    try:
        count = operator.index(k)
    except TypeError:
        raise TypeError(f"k is a number of batches, got {k!r}") from None
    if count < 1:
        raise ValueError(f"k is the number of batches in a group, at least 1; got {count}")
    return Accumulation(loader, count, rows)


class Accumulation(Generic[T]):
    """An iterable of the batches of a loader in groups; `accumulate` makes it, and ``iter()`` begins a pass."""

    def __init__(self, loader: Iterable[T], k: int, rows: Callable[[T], Any] | None) -> None:
        self.loader, self.k, self._rows = loader, k, rows

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # whoever asks a loader without a length gets its error

    @property
    def steps(self) -> int:
        """The number of groups in a whole pass, which a learning-rate schedule counts: one optimizer step for each."""
        return -(-len(self) // self.k)

    def __iter__(self) -> Iterator[tuple[T, Micro]]:
        batches = iter(self.loader)
        whose = self.loader if access(self.loader) is not None else _loader_of(batches)
        loader = access(whose)
        done = 0 if loader is None else loader.delivered  # of a resumed pass
        sizes = _sizes_of(self.loader, resumed=done > 0) if self._rows is None else None
        if sizes is not None:
            return self._as_planned(batches, sizes, done)
        _check_buffers(self.loader if loader is None else whose, self.k)
        if done % self.k:
            warnings.warn(
                f"the pass resumes after {done % self.k} of the {self.k} batches of a group, whose rows are not known "
                "any more: the weights of the others sum to 1 without them. Save the loader's state after a step",
                RuntimeWarning,
                stacklevel=level_outside(),
            )
        return self._looking_ahead(batches, loader, done)

    def _as_planned(self, batches: Iterator[T], sizes: _Sizes, done: int) -> Iterator[tuple[T, Micro]]:
        step = True
        for number, batch in enumerate(batches, start=done):
            begin = number - number % self.k
            group = [sizes.of(one) for one in range(begin, min(begin + self.k, sizes.batches))]
            micro = _micro(group, sizes.checked(number) - begin)
            step = micro.step
            yield batch, micro
        if not step:
            raise RuntimeError(
                f"the loader ended before the {counted(sizes.batches, 'batch', 'batches')} that len() of it tells of"
            )

    def _looking_ahead(self, batches: Iterator[T], loader: LoaderAccess | None, done: int) -> Iterator[tuple[T, Micro]]:
        count, take = self._rows or rows_of, self.k - done % self.k  # groups are counted from the epoch's beginning
        while True:
            group, held = _taken(batches, loader, take)
            if not group:
                return
            sizes, take = [float(count(batch)) for batch in group], self.k
            group.reverse()  # pop() then frees each batch when it is yielded
            for index in range(len(sizes)):
                if held is not None:
                    held.handed += 1
                yield group.pop(), _micro(sizes, index)


def _loader_of(batches: object) -> Any:
    """Return the loader whose latest pass is this iterator, and whose state covers it; None if there is none."""
    progress = getattr(batches, "progress", None)
    if not isinstance(progress, Progress):
        return None
    loader = progress.loader()
    asked = access(loader)
    return loader if asked is not None and asked.state.tells_of(progress) else None


def _taken(batches: Iterator[T], loader: LoaderAccess | None, count: int) -> tuple[list[T], HeldGroup | None]:
    if loader is None:
        return list(itertools.islice(batches, count)), None
    return loader.take_ahead(batches, count)


def _micro(sizes: Sequence[float], index: int) -> Micro:
    total = sum(sizes)
    if not total > 0:
        raise ValueError(
            f"a group of {counted(len(sizes), 'batch', 'batches')} has {total:g} rows, so that there is no mean over "
            "them"
        )
    return Micro(sizes[index] / total, index == len(sizes) - 1, index, len(sizes), sizes[index])


def _check_buffers(loader: object, k: int) -> None:
    """Raise ValueError if a loader would overwrite a batch before its whole group has been yielded."""
    buffers = getattr(loader, "static_buffers", None)
    if buffers is not None and buffers < k:
        raise ValueError(
            f"static_buffers={buffers} is too few here: the sizes of the batches are not known beforehand, so that all "
            f"{k} of a group are taken first; give static_buffers={k}"
        )


@dataclass(frozen=True)
class _Sizes:
    """The number of rows of each batch of a pass, known before the batch is gathered."""

    batches: int
    batch_size: int
    total: int

    def of(self, number: int) -> int:
        """Return the number of rows of a batch, given the number of the batch."""
        return min(self.batch_size, self.total - number * self.batch_size)

    def checked(self, number: int) -> int:
        """Return the number of a batch; raise RuntimeError if the pass should have ended before it."""
        if number >= self.batches:
            raise RuntimeError(
                f"the loader goes on after the {counted(self.batches, 'batch', 'batches')} that len() of it tells of"
            )
        return number


def _sizes_of(loader: Any, *, resumed: bool) -> _Sizes | None:
    """Return the sizes of the batches of a whole pass; None if a loader does not know them, or not their order.

    Nor does it know those of a resumed pass whose sampler deals out what is left anew, as over another number of ranks.
    """
    if access(loader) is None and type(loader) is not DataLoader:
        return None
    sampler = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or not loader.in_order or type(sampler) is not BatchSampler:
        return None
    if resumed and (isinstance(sampler.sampler, DistributedSampler) or is_stateful(sampler.sampler)):
        return None
    try:
        return _Sizes(len(sampler), sampler.batch_size, len(sampler.sampler))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a sampler may have no length
        return None


def rows_of(batch: Any) -> int:
    """Return the number of rows of a batch: the length of its first tensor, or the number of its graphs.

    Raises:
        TypeError: the batch has neither.
    """
    first = batch
    while True:
        if isinstance(first, Ragged | GraphBatch):
            return len(first.offsets if isinstance(first, Ragged) else first.ptr) - 1
        if isinstance(getattr(first, "num_graphs", None), int):
            return int(first.num_graphs)
        if getattr(first, "shape", ()):
            return int(first.shape[0])
        parts = [*first.values()] if isinstance(first, Mapping) else first
        if not isinstance(parts, list | tuple) or not parts or isinstance(parts[0], str | int | float):
            break
        if first is batch and isinstance(first, list) and isinstance(parts[0], Mapping):
            break  # a list of groups, each of which has some of the rows
        first = parts[0]
    raise TypeError(
        f"a batch of type {type(batch).__name__} does not say how many rows it has; give accumulate a function that "
        "does: rows=lambda batch: ..."
    )
