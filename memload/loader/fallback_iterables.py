"""Passes of torch's own machinery over iterable datasets, which resume from the dataset's state if it has one.

In the main process, the dataset and its iterator are asked for their state directly. In worker processes, torchdata's
loader asks them. Without torchdata, and for datasets without a state, a resumed pass iterates over the batches that the
loop has had once more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from memload.engine.request import PassRequest
from memload.loader.fallback_worker_states import Torchdata, asks_workers, not_asked, pass_of_workers
from memload.loader.state import CountedBatches, get_states, given_generators, set_states
from memload.sampling.draws import Position
from memload.sampling.pulls import is_stateful
from memload.sampling.row_plan import Progress


def iterable_pass(
    loader: DataLoader[Any],
    request: PassRequest,
    progress: Progress,
    make: Callable[[], Iterator[Any]],
    torchdata: Torchdata,
) -> CountedBatches:
    """Begin or resume a pass over an iterable dataset; `make` returns an iterator of torch's."""
    if asks_workers(loader, progress):
        return pass_of_workers(loader, request, progress, torchdata)
    told = progress.resumed
    if told is None and progress.ended is not None and "ended" in progress.ended:
        told = progress.ended
    batches = make() if told is None else _resumed(request, told, make)
    if told is not None and progress.resumed is None:
        batches = make()  # the restored state says that the dataset was at its end
    progress.follow(not_asked(loader) or _IterablePosition(loader, batches, progress.delivered))
    return CountedBatches(batches, progress)


def _resumed(request: PassRequest, told: Position, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    if "batches" not in told:
        raise ValueError("the state is of a map-style dataset, and this loader's is iterable")
    generators = {**given_generators(request), "global": torch.default_generator}
    before = get_states(generators)
    batches = make()
    for _ in range(0 if "ended" in told else told["batches"]):  # without a state, only the count is known
        next(batches, None)
    set_states(generators, before)  # the resumed pass had drawn its base seed before
    if "iterator" in told:  # it may set a generator, too, so it comes last
        _fetcher(batches).dataset_iter.load_state_dict(copy.deepcopy(told["iterator"]))
    if "ended" in told:
        _fetcher(batches).ended = told["ended"]
    return batches


def _fetcher(batches: Any) -> Any:
    """Return the fetcher of a stock iterator in the main process, the only way to the dataset's iterator."""
    return batches._dataset_fetcher


class _IterablePosition:
    """The position of a pass, from the states of the dataset and its iterator."""

    def __init__(self, loader: DataLoader[Any], batches: Any, begin: int) -> None:
        self._dataset = loader.dataset
        self._fetcher = None if loader.num_workers else _fetcher(batches)
        self._begin = begin

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after `seen` batches."""
        place: dict[str, Any] = {"batches": self._begin + seen}
        if self._fetcher is None:
            return place
        iterator = self._fetcher.dataset_iter
        if is_stateful(iterator):
            place["iterator"] = copy.deepcopy(iterator.state_dict())
        if is_stateful(iterator) or is_stateful(self._dataset):
            place["ended"] = bool(self._fetcher.ended)
        return place
