"""memload.accumulate: several physical batches as one effective batch."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from memload.graphs.layout import GraphBatch
from memload.loader import FastLoader
from memload.ragged_rows.forms import Ragged

T = TypeVar("T")


@dataclass(frozen=True)
class Micro:
    """What a loop must know of one micro-batch of a group.

    Attributes:
        weight: what to multiply its mean loss by, its share of the group's rows; the weights of a group add up to 1.
        step: whether it is the last of its group: then, after ``backward()``, the optimizer steps.
        index: its place in the group, from 0.
        count: micro-batches in the group; fewer than usual in the last group of an epoch.
        rows: its own rows, or what ``rows=`` counted in it.
    """

    weight: float
    step: bool
    index: int
    count: int
    rows: float

    @contextlib.contextmanager
    def no_sync(self, *models: Any) -> Iterator[None]:
        """Return a context in which these models do not exchange gradients, unless this is the group's last batch.

        Forward and backward belong inside. Models without a method ``no_sync``, which DistributedDataParallel and
        FSDP have, are left alone, so that the same loop runs in one process.
        """
        with contextlib.ExitStack() as stack:
            for model in models:
                if not self.step and hasattr(model, "no_sync"):
                    stack.enter_context(model.no_sync())
            yield


def accumulate(loader: Iterable[T], k: int, *, rows: Callable[[T], Any] | None = None) -> Accumulation[T]:
    """Return the batches of a loader in groups of ``k``, each with the weight of its loss and whether to step.

    For losses that are means over the rows of a batch, the gradients that a group adds up to are those of one batch of
    all its rows, also where its last batch is short, or the group itself. A sum over rows needs no weight.

    Args:
        loader: a FastLoader, a DataLoader, or any iterable of batches. Its ``batch_size`` is what fits into memory; the
            effective batch is ``k`` times as large.
        k: batches in a group. The last group of a pass has what is left.
        rows: counts what a batch's loss is a mean over, where that is not its rows: tokens that are no padding, nodes.

    Where a loader says beforehand how many rows each batch has (any with ``batch_size=`` over a dataset with a length,
    which is the common case), batches are handed on one by one. Otherwise, and with ``rows=``, the batches of a group
    are taken before the first of them is handed on: so many lie in memory.

    Returns:
        An iterable of ``(batch, micro)``, with a length as the loader has, and ``steps``, the groups in a pass. See
        `Micro` for what is in ``micro``.

    Raises:
        ValueError: ``k`` is below 1, or in the loop: a group has no rows.
        TypeError: ``k`` is no integer, or in the loop: a batch does not say how many rows it has.

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
    """The batches of a loader in groups, as `accumulate` returns them; every ``iter()`` is a pass over the loader."""

    def __init__(self, loader: Iterable[T], k: int, rows: Callable[[T], Any] | None) -> None:
        self.loader, self.k, self._rows = loader, k, rows

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # whoever asks a loader without a length gets its error

    @property
    def steps(self) -> int:
        """Groups of a whole pass, which is how often the optimizer steps: what a learning-rate schedule counts."""
        return -(-len(self) // self.k)

    def __iter__(self) -> Iterator[tuple[T, Micro]]:
        batches = iter(self.loader)
        done = self.loader._state.delivered if isinstance(self.loader, FastLoader) else 0  # a pass that is taken up
        sizes = _sizes_of(self.loader) if self._rows is None and not done else None
        if sizes is None:
            _check_buffers(self.loader, self.k)
        return self._looking_ahead(batches, done) if sizes is None else self._as_planned(batches, sizes)

    def _as_planned(self, batches: Iterator[T], sizes: _Sizes) -> Iterator[tuple[T, Micro]]:
        step = True
        for number, batch in enumerate(batches):
            begin = number - number % self.k
            group = [sizes.of(one) for one in range(begin, min(begin + self.k, sizes.batches))]
            micro = _micro(group, sizes.checked(number) - begin)
            step = micro.step
            yield batch, micro
        if not step:
            raise RuntimeError(f"the loader ended before the {sizes.batches:,} batches that len() of it tells of")

    def _looking_ahead(self, batches: Iterator[T], done: int) -> Iterator[tuple[T, Micro]]:
        count, take = self._rows or rows_of, self.k - done % self.k  # groups are counted from the epoch's beginning
        while group := list(itertools.islice(batches, take)):
            sizes, take = [float(count(batch)) for batch in group], self.k
            group.reverse()  # so that each is let go of when it is handed on
            for index in range(len(sizes)):
                yield group.pop(), _micro(sizes, index)


def _micro(sizes: Sequence[float], index: int) -> Micro:
    total = sum(sizes)
    if not total > 0:
        raise ValueError(f"a group of {len(sizes)} batches has {total:g} rows, so that there is no mean over them")
    return Micro(sizes[index] / total, index == len(sizes) - 1, index, len(sizes), sizes[index])


def _check_buffers(loader: object, k: int) -> None:
    """Raise ValueError if a loader would write to a batch again before its group has been handed on."""
    buffers = getattr(loader, "static_buffers", None)
    if buffers is not None and buffers < k:
        raise ValueError(
            f"static_buffers={buffers} is too few here: the sizes of the batches are not known beforehand, so that all "
            f"{k} of a group are taken first; give static_buffers={k}"
        )


@dataclass(frozen=True)
class _Sizes:
    """How many rows each batch of a pass has, known before it comes."""

    batches: int
    batch_size: int
    total: int

    def of(self, number: int) -> int:
        """Return the rows of a batch, by its number."""
        return min(self.batch_size, self.total - number * self.batch_size)

    def checked(self, number: int) -> int:
        """Return the number of a batch. Raises RuntimeError if no such batch was to come."""
        if number >= self.batches:
            raise RuntimeError(f"the loader goes on after the {self.batches:,} batches that len() of it tells of")
        return number


def _sizes_of(loader: object) -> _Sizes | None:
    """Return the sizes of the batches of a whole pass; None where a loader does not say, or not in which order."""
    if not isinstance(loader, FastLoader) and type(loader) is not DataLoader:
        return None
    sampler = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or not loader.in_order or type(sampler) is not BatchSampler:
        return None
    try:
        return _Sizes(len(sampler), sampler.batch_size, len(sampler.sampler))  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a sampler need not have a length
        return None


def rows_of(batch: Any) -> int:
    """Return how many rows a batch has: the length of its first tensor, or its graphs.

    Raises:
        TypeError: it does not say.
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
            break  # the datasets of a group, of which each has some of the rows
        first = parts[0]
    raise TypeError(
        f"a batch of type {type(batch).__name__} does not say how many rows it has; give accumulate a function that "
        "does: rows=lambda batch: ..."
    )
