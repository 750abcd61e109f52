"""Passes whose state is in worker processes: torchdata's loader collects it, and restores it in new workers.

That loader does not choose rows. It gets the same index sampler as a stock iterator, so that seeds, random draws and
batches are those of a stock loader.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from memload.engine.request import PassRequest
from memload.loader.state import CountedBatches, get_states, given_generators, set_states
from memload.sampling.draws import Position
from memload.sampling.pulls import is_stateful
from memload.sampling.row_plan import Progress
from memload.sizes import counted


class OtherWorkersError(ValueError, AssertionError):
    """A state was saved with another number of worker processes; torchdata's loader raises an AssertionError."""


def asks_workers(loader: DataLoader[Any], progress: Progress) -> bool:
    """Return whether a pass needs torchdata's loader, and can use it.

    Raises:
        OtherWorkersError: the pass is to resume from a state that was saved with other workers.
    """
    asks = _tell_states(loader) and importlib.util.find_spec("torchdata") is not None
    told = progress.resumed
    if told is None:
        return asks
    workers = told.get("workers", 0)
    if workers != (loader.num_workers if asks else 0):
        saved = (
            f"from {counted(workers, 'worker process', 'worker processes')} through torchdata"
            if workers
            else "without asking worker processes"
        )
        now = f"asks {loader.num_workers}" if asks else "asks none"
        raise OtherWorkersError(
            f"the state was saved {saved}, and this loader {now}: use the num_workers and in_order that it was saved "
            "with, and torchdata as then"
        )
    return asks


class Torchdata:
    """The parts of torchdata that a loader keeps between passes.

    Attributes:
        loader: torchdata's loader, if workers are persistent.
        length: the last result of the loader's ``len()``; stock iterators warn if a pass exceeds it.
    """

    loader: Any = None
    length: int | None = None


def pass_of_workers(
    loader: DataLoader[Any], request: PassRequest, progress: Progress, torchdata: Torchdata, indices: Any = None
) -> CountedBatches:
    """Begin or resume a pass through torchdata's loader.

    Args:
        loader: a loader with worker processes.
        request: the request of the pass.
        progress: the progress of the pass.
        torchdata: the parts that the loader keeps between passes.
        indices: the index sampler of stock iterators; None for an iterable dataset.
    """
    told, inner = _told(loader, progress), torchdata.loader
    generators = {**given_generators(request), "global": torch.default_generator}
    before = get_states(generators)
    if inner is None or told is not None:
        rows = (
            None
            if indices is None
            else _ResumableIndexSampler(indices, over=progress.resumed is None and told is not None)
        )
        inner = _stateful_loader(loader, request, rows)
        if told is not None:
            inner.load_state_dict(copy.deepcopy(told["torchdata"]))
    # A stock iterator warns if there are more batches than its loader's length, if that was asked for.
    inner._IterableDataset_len_called = torchdata.length
    batches = CountedBatches(iter(inner), progress)
    if told is not None and indices is None:
        set_states(generators, before)  # its base seed was drawn before
    torchdata.loader = inner if loader.persistent_workers else None
    progress.follow(_WorkerPosition(inner, progress.delivered if indices is None else indices.pulls))
    weakref.finalize(batches, progress.settle).atexit = False  # else the workers would live as long as the loader
    return batches


class NoPosition:
    """The source of a pass whose position cannot be told.

    Args:
        reason: why, and what to do.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def position(self, seen: int) -> dict[str, Any]:  # noqa: ARG002 - as of every source
        """Raise RuntimeError: the position is unknown."""
        raise RuntimeError(self._reason)


def not_asked(loader: DataLoader[Any]) -> NoPosition | None:
    """Return what stands for the position of a pass if worker processes have states that nobody asks for."""
    if not (_tell_states(loader) and is_stateful(loader.dataset)):
        return None
    return NoPosition(
        f"{type(loader.dataset).__name__} has a state in each worker process, which torchdata can ask for: install "
        "torchdata (pip install 'memload[state]'), or use num_workers=0"
    )


def _tell_states(loader: DataLoader[Any]) -> bool:
    """Return whether there may be states in worker processes."""
    if not loader.num_workers:
        return False
    if not isinstance(loader.dataset, IterableDataset):
        return is_stateful(loader.dataset) and loader.in_order  # out of order, a state belongs to unknown batches
    by_iterator = loader.in_order and not inspect.isgeneratorfunction(type(loader.dataset).__iter__)
    return is_stateful(loader.dataset) or by_iterator


def _told(loader: DataLoader[Any], progress: Progress) -> Position | None:
    """Return the position from which workers begin; persistent workers continue from the end of the last epoch."""
    ended = progress.ended or {}
    persist = loader.persistent_workers and ended.get("workers") == loader.num_workers
    return ended if progress.resumed is None and persist else progress.resumed


class _WorkerPosition:
    """The position of a pass, including the states of its workers."""

    def __init__(self, inner: Any, rows: Any) -> None:
        self._inner = inner
        self._rows = rows

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after `seen` batches."""
        place = {"batches": self._rows + seen} if isinstance(self._rows, int) else self._rows.position(seen)
        told = copy.deepcopy(self._inner.state_dict())
        return {**place, "workers": self._inner.num_workers, "torchdata": told}


class _ResumableIndexSampler:
    """An index sampler with a state of its own, so that torchdata's loader does not skip batches to resume.

    Args:
        indices: an index sampler that begins where the pass begins.
        over: whether torchdata's loader first resumes a finished pass, and then begins this one.
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
        """Return an empty state: the loader around it keeps the position."""
        return {}

    def load_state_dict(self, state: Any) -> None:  # noqa: ARG002 - as torchdata calls it
        """Record that torchdata's loader has resumed the finished pass."""
        self._loaded = True


def _stateful_loader(loader: DataLoader[Any], request: PassRequest, rows: _ResumableIndexSampler | None) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    batching: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if rows is not None:
        batching = {"sampler": rows, "batch_size": None} if not request.batched else {"batch_sampler": rows}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # torchdata still calls it
        return StatefulDataLoader(
            loader.dataset,
            **batching,
            num_workers=loader.num_workers,
            collate_fn=request.collate,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
        )
