"""Passes of the stock machinery over iterable datasets, which can be taken up where the dataset tells its state.

In the main process the dataset and its iterator are asked themselves. In worker processes torchdata's loader asks them;
without it, and for datasets that tell nothing, a pass is taken up by iterating what the loop has seen once more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from memload.sampling.draws import Position, Progress
from memload.sampling.pulls import is_stateful
from memload.state import CountedBatches, given_generators, put_back, standing
from memload.stock.worker_states import Untold, asks_workers, pass_of_workers, untold

if TYPE_CHECKING:
    from memload.loader import FastLoader


def iterable_pass(loader: FastLoader[Any], progress: Progress, make: Callable[[], Iterator[Any]]) -> CountedBatches:
    """Begin a pass over an iterable dataset, or take one up; `make` returns an iterator of torch's."""
    if asks_workers(loader, progress):
        return pass_of_workers(loader, progress)
    told = progress.resumed
    if told is None and progress.ended is not None and "ended" in progress.ended:
        told = progress.ended
    batches = make() if told is None else _taken_up(loader, told, make)
    if told is not None and progress.resumed is None:
        batches = make()  # the dataset has learnt that it was at its end
    progress.follow(Untold(loader.dataset) if untold(loader) else _Place(loader, batches, progress.delivered))
    return CountedBatches(batches, progress)


def _taken_up(loader: FastLoader[Any], told: Position, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    if "batches" not in told:
        raise ValueError("the state is of a map-style dataset, and this loader's is iterable")
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
        self._fetcher = None if loader.num_workers else _fetcher(batches)
        self._begin = begin

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands after so many batches."""
        place: dict[str, Any] = {"batches": self._begin + seen}
        if self._fetcher is None:
            return place
        iterator = self._fetcher.dataset_iter
        if is_stateful(iterator):
            place["iterator"] = copy.deepcopy(iterator.state_dict())
        if is_stateful(iterator) or is_stateful(self._dataset):
            place["ended"] = bool(self._fetcher.ended)
        return place
