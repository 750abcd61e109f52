"""Passes whose state lies in worker processes: torchdata's loader asks them for it, and gives it to those that follow.

Rows are no business of that loader. It is given the index sampler that a stock iterator gets, so seeds, draws and
batches are a stock loader's.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from memload.frameworks.carried import plain_collate
from memload.sampling.draws import Position, Progress
from memload.sampling.pulls import is_stateful
from memload.state import CountedBatches, given_generators, put_back, standing

if TYPE_CHECKING:
    from memload.loader import FastLoader


class OtherWorkersError(ValueError, AssertionError):
    """A state is of so many worker processes, and the loader has others; torchdata's loader asserts that it has not."""


def asks_workers(loader: FastLoader[Any], progress: Progress) -> bool:
    """Whether a pass has to go through torchdata's loader, and can.

    Raises:
        OtherWorkersError: the pass is to be taken up from a state that was told otherwise.
    """
    asks = _tell_states(loader) and importlib.util.find_spec("torchdata") is not None
    told = progress.resumed
    if told is None:
        return asks
    workers = told.get("workers", 0)
    if workers != (loader.num_workers if asks else 0):
        saved = f"from {workers} worker processes through torchdata" if workers else "without asking worker processes"
        now = f"asks {loader.num_workers}" if asks else "asks none"
        raise OtherWorkersError(
            f"the state was saved {saved}, and this loader {now}: use the num_workers and in_order that it was saved "
            "with, and torchdata as then"
        )
    return asks


def pass_of_workers(loader: FastLoader[Any], progress: Progress, indices: Any = None) -> CountedBatches:
    """Begin a pass through torchdata's loader, or take one up.

    Args:
        loader: with worker processes.
        progress: of the pass.
        indices: what stock iterators iterate for rows; None for an iterable dataset.
    """
    told, inner = _told(loader, progress), loader._inner
    generators = {**given_generators(loader), "global": torch.default_generator}
    before = standing(generators)
    if inner is None or told is not None:
        rows = None if indices is None else _Rows(indices, over=progress.resumed is None and told is not None)
        inner = _stateful_loader(loader, rows)
        if told is not None:
            inner.load_state_dict(copy.deepcopy(told["torchdata"]))
    # A stock iterator warns of more batches than the length that its loader was asked for, and was told.
    inner._IterableDataset_len_called = loader._IterableDataset_len_called
    batches = CountedBatches(iter(inner), progress)
    if told is not None and indices is None:
        put_back(generators, before)  # its base seed was drawn before
    loader._inner = inner if loader.persistent_workers else None
    progress.follow(_Told(inner, progress.delivered if indices is None else indices.pulls))
    weakref.finalize(batches, progress.settle).atexit = False  # or the workers would live as long as the loader
    return batches


class Untold:
    """Where a pass stands of which nobody asks the workers.

    Args:
        dataset: the loader's.
    """

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset

    def position(self, seen: int) -> dict[str, Any]:  # noqa: ARG002 - as of every source
        """Raise RuntimeError."""
        raise RuntimeError(
            f"{type(self._dataset).__name__} has a state in each worker process, which torchdata "
            "can ask for: install torchdata (pip install 'memload[state]'), or use num_workers=0"
        )


def untold(loader: FastLoader[Any]) -> bool:
    """Whether the dataset has a state in each worker process, for which somebody would have to ask."""
    return _tell_states(loader) and is_stateful(loader.dataset)


def _tell_states(loader: FastLoader[Any]) -> bool:
    """Whether there may be states in worker processes."""
    if not loader.num_workers:
        return False
    if not isinstance(loader.dataset, IterableDataset):
        return is_stateful(loader.dataset) and loader.in_order  # else nobody knows which batches a state is of
    by_iterator = loader.in_order and not inspect.isgeneratorfunction(type(loader.dataset).__iter__)
    return is_stateful(loader.dataset) or by_iterator


def _told(loader: FastLoader[Any], progress: Progress) -> Position | None:
    """What workers begin from; those that persist, after the end of an epoch, where they were at that end."""
    ended = progress.ended or {}
    persist = loader.persistent_workers and ended.get("workers") == loader.num_workers
    return ended if progress.resumed is None and persist else progress.resumed


class _Told:
    """Where a pass stands, workers included."""

    def __init__(self, inner: Any, rows: Any) -> None:
        self._inner = inner
        self._rows = rows

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands after so many batches."""
        place = {"batches": self._rows + seen} if isinstance(self._rows, int) else self._rows.position(seen)
        told = copy.deepcopy(self._inner.state_dict())
        return {**place, "workers": self._inner.num_workers, "torchdata": told}


class _Rows:
    """An index sampler as torchdata's loader takes it: with a state of its own, so that nothing is skipped.

    Args:
        indices: begins where the pass begins.
        over: whether torchdata's loader first takes up a pass that is over, and then begins this one.
    """

    def __init__(self, indices: Any, over: bool) -> None:
        self._indices = indices
        self._over = over
        self._loaded = False

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self._indices)
        if not self._over:
            return batches
        self._over = not self._loaded
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the loader around keeps the place."""
        return {}

    def load_state_dict(self, state: Any) -> None:  # noqa: ARG002 - as torchdata calls it
        """Know that the pass that is over was taken up."""
        self._loaded = True


def _stateful_loader(loader: FastLoader[Any], rows: _Rows | None) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    batching: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if rows is not None:
        batching = {"sampler": rows, "batch_size": None} if loader.batch_sampler is None else {"batch_sampler": rows}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # which torchdata calls all the same
        return StatefulDataLoader(
            loader.dataset,
            **batching,
            num_workers=loader.num_workers,
            collate_fn=plain_collate(loader),
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
        )
