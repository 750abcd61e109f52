"""Passes of the stock machinery over iterable datasets, which can be taken up where the dataset tells its state.

In the main process the dataset and its iterator are asked themselves. In worker processes torchdata's loader asks them;
without it, and for datasets that tell nothing, a pass is taken up by iterating what the loop has seen once more.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from memload.carried import plain_collate
from memload.draws import Position, Progress
from memload.pulls import is_stateful
from memload.state import CountedBatches, given_generators, put_back, standing

if TYPE_CHECKING:
    from memload.loader import FastLoader


def iterable_pass(loader: FastLoader[Any], progress: Progress, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Begin a pass over an iterable dataset, or take one up; `make` returns an iterator of torch's."""
    if loader.num_workers and is_stateful(loader.dataset) and importlib.util.find_spec("torchdata") is not None:
        return _through_torchdata(loader, progress)
    told = progress.resumed
    if told is None and progress.ended is not None and "ended" in progress.ended:
        told = progress.ended
    batches = make() if told is None else _taken_up(loader, told, make)
    if told is not None and progress.resumed is None:
        batches = make()  # the dataset has learnt that it was at its end
    progress.follow(_Place(loader, batches, progress.delivered))
    return CountedBatches(batches, progress)


def _taken_up(loader: FastLoader[Any], told: Position, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    if "batches" not in told or "torchdata" in told:
        raise ValueError(
            "the state was saved by torchdata with worker processes, which tell their states: load it with torchdata "
            "installed and as many workers"
        )
    generators = {**given_generators(loader), "global": torch.default_generator}
    before = standing(generators)
    batches = make()
    for _ in range(0 if "ended" in told else told["batches"]):  # nobody told more than how many batches there were
        next(batches, None)
    put_back(generators, before)  # the pass that is taken up had drawn its base seed
    if "iterator" in told:  # which may keep the state of a generator, too: so after the others
        _fetcher(batches).dataset_iter.load_state_dict(copy.deepcopy(told["iterator"]))
    if "ended" in told:
        _fetcher(batches).ended = told["ended"]
    return batches


def _fetcher(batches: Any) -> Any:
    """What a stock iterator of the main process fetches with, the only way to the dataset's iterator."""
    return batches._dataset_fetcher


class _Place:
    """Where a pass stands, by what the dataset and its iterator tell."""

    def __init__(self, loader: FastLoader[Any], batches: Any, begin: int) -> None:
        self._dataset = loader.dataset
        self._in_workers = loader.num_workers > 0
        self._fetcher = None if self._in_workers else _fetcher(batches)
        self._begin = begin

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands after so many batches."""
        place: dict[str, Any] = {"batches": self._begin + seen}
        if self._fetcher is None:
            if is_stateful(self._dataset):
                raise RuntimeError(
                    f"{type(self._dataset).__name__} has a state in each worker process, which torchdata can ask for: "
                    "install torchdata (pip install 'memload[state]'), or use num_workers=0"
                )
            return place
        iterator = self._fetcher.dataset_iter
        if is_stateful(iterator):
            place["iterator"] = copy.deepcopy(iterator.state_dict())
        if is_stateful(iterator) or is_stateful(self._dataset):
            place["ended"] = bool(self._fetcher.ended)
        return place


def _through_torchdata(loader: FastLoader[Any], progress: Progress) -> Iterator[Any]:
    told = progress.resumed or progress.ended
    if loader._inner is None:
        loader._inner = _stateful_loader(loader)
    if told is not None and "torchdata" not in told:
        raise ValueError(
            "the state was saved without worker processes or without torchdata, through which this loader asks its "
            "workers: use num_workers=0, or the environment that saved the state"
        )
    generators = {**given_generators(loader), "global": torch.default_generator}
    before = standing(generators)
    if told is not None:
        loader._inner.load_state_dict(copy.deepcopy(told["torchdata"]))
    batches = iter(loader._inner)
    if progress.resumed is not None:
        put_back(generators, before)
    progress.follow(_TorchdataPlace(loader._inner, progress.delivered))
    return CountedBatches(batches, progress)


class _TorchdataPlace:
    """Where a pass stands, as torchdata's loader tells it."""

    def __init__(self, inner: Any, begin: int) -> None:
        self._inner = inner
        self._begin = begin

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands after so many batches."""
        return {"batches": self._begin + seen, "torchdata": copy.deepcopy(self._inner.state_dict())}


def _stateful_loader(loader: FastLoader[Any]) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # which torchdata calls all the same
        return StatefulDataLoader(
            loader.dataset,
            loader.batch_size,
            num_workers=loader.num_workers,
            collate_fn=plain_collate(loader),
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
        )
