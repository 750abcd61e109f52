"""Passes of torch's own machinery that can resume: batches are counted, and index samplers begin at a given position.

Torch's iterators ask the loader for its index sampler. The index sampler of this module yields the same as the loader's
own sampler, but begins at the position of a loaded state. Torchdata's iterators, which ask workers for states, get the
same index sampler.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SubsetRandomSampler

from memload.engine.request import PassRequest
from memload.loader.fallback_iterables import iterable_pass
from memload.loader.fallback_worker_states import NoPosition, Torchdata, asks_workers, not_asked, pass_of_workers
from memload.loader.state import CountedBatches, LoaderState, caught_up, get_states, given_generators, set_states
from memload.sampling.batch_streams import MOST_ROWS, RowBatches, batch_stream, batches_known
from memload.sampling.draws import Indices, RowStream
from memload.sampling.overtaking import Overtaking
from memload.sampling.pulls import BatchStream, Generators
from memload.sampling.row_plan import Progress, known, planned, stream
from memload.sampling.torch_draws import peeked_seed


class Making(threading.local):
    """A flag, separate for each thread: the thread is making torch's iterator for a pass that has begun."""

    now = False

    def around(self, make: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        """Return a function that calls `make` with the flag set."""

        def making() -> Iterator[Any]:
            self.now = True
            try:
                return make()
            finally:
                self.now = False

        return making


class FallbackHistory:
    """The objects that a loader keeps between its passes on torch's own machinery, in this process."""

    def __init__(self) -> None:
        self.torchdata = Torchdata()
        self.making = Making()
        self._indices: IndexSampler | None = None

    def indices(self, sampler: Any) -> IndexSampler:
        """Return the index sampler that stock iterators use in place of a loader's own."""
        held = self._indices
        if held is None or held.sampler is not sampler:
            held = self._indices = IndexSampler(sampler)
        return held


@dataclass(frozen=True)
class FallbackPass:
    """A pass of torch's own machinery that is about to begin.

    Attributes:
        loader: the loader, as torch's DataLoader.
        request: the request of the pass.
        state: the state of the loader.
        history: the history of its passes.
        shown: returns the index sampler that torch's iterators see.
    """

    loader: DataLoader[Any]
    request: PassRequest
    state: LoaderState
    history: FallbackHistory
    shown: Callable[[], Any]

    def begin(self, make: Callable[[], Iterator[Any]]) -> CountedBatches:
        """Begin or resume the pass; `make` returns an iterator of torch's."""
        progress = self.state.begin(self.request)
        progress.loader = weakref.ref(self.loader)
        batches = self._begun(progress, make)
        self.state.begun()
        caught_up(batches, progress)
        return batches

    def _begun(self, progress: Progress, make: Callable[[], Iterator[Any]]) -> CountedBatches:
        loader, request = self.loader, self.request
        if isinstance(loader.dataset, IterableDataset):
            return iterable_pass(loader, request, progress, make, self.history.torchdata)
        indices = self.history.indices(request.batches)
        indices.begin(progress, {**given_generators(request), "global": torch.default_generator})
        if self.shown() is indices:
            batches = self._by_rows(progress, indices, make)
        else:
            batches = CountedBatches(make(), progress)
            reason = "overrides _index_sampler, of which nobody knows where it stands: give batches as batch_sampler="
            progress.follow(NoPosition(f"{type(loader).__name__} {reason}, whose position a state can tell"))
        indices.restore_generators()
        self.state.base_seed = progress.base_seed
        return batches

    def _by_rows(self, progress: Progress, indices: IndexSampler, make: Callable[[], Iterator[Any]]) -> CountedBatches:
        loader = self.loader
        if asks_workers(loader, progress):
            return pass_of_workers(loader, self.request, progress, self.history.torchdata, indices)
        batches = make()
        if not loader.in_order:
            indices.pulls.watch(batches)
        if (unknown := not_asked(loader)) is not None:
            progress.follow(unknown)
        return CountedBatches(batches, progress)


class IndexSampler(threading.local):
    """Replaces a loader's batch sampler, or its sampler if there is no other, in a stock iterator.

    Its attributes differ in each thread, since several threads may begin passes of one loader at a time.

    Args:
        sampler: the loader's own sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.pulls: Overtaking  # of the latest iterator
        self._states_before: dict[str, str] = {}
        self.begin(Progress(), {"global": torch.default_generator})

    def begin(self, progress: Progress, generators: Generators) -> None:
        """Let the next iterators begin at the position of a pass.

        Args:
            progress: the progress of the pass.
            generators: the generators that other code can use; "global" is torch's, "loader" the loader's own.
        """
        self._progress = progress
        self._generators = generators

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        # A stock iterator takes an iterator, draws a base seed, and with workers takes another one.
        self.restore_generators()
        progress = self._progress
        self.pulls = Overtaking(_pulls(self.sampler, progress, self._generators), progress.resumed)
        progress.follow(self.pulls)
        if progress.base_seed is not None:  # drawn by the resumed pass, or for persistent workers
            self._states_before = get_states(self._generators)
        else:
            progress.base_seed = peeked_seed(self._generators.get("loader"))
        return _Indices(self, self.pulls, progress)

    def restore_generators(self) -> None:
        """Undo the draw of a base seed by a stock iterator that resumes a pass, which has drawn its seed before."""
        before, self._states_before = self._states_before, {}
        set_states(self._generators, before)


class _Indices(Iterator[Any]):
    """The index batches of one pass."""

    def __init__(self, sampler: IndexSampler, pulls: Overtaking, progress: Progress) -> None:
        self._sampler = sampler
        self._pulls = pulls
        self._progress = progress

    def __next__(self) -> Any:
        self._sampler.restore_generators()
        return self._pulls.next(self._progress.seen)


class _RowBatches:
    """The batches of a known sampler, as lists of ints like BatchSampler's; without a batch size, single ints."""

    def __init__(self, source: RowStream, batch_size: int | None, drop_last: bool) -> None:
        self._source = source
        self._rows = batch_size or 1
        self._single = batch_size is None
        self._drop_last = drop_last
        self._ready: Indices = np.empty(0, dtype=np.int64)

    def next(self, seen: int) -> Any:
        """Return the next batch after `seen` batches of the loop; raise StopIteration after the last."""
        parts, lacking = [self._ready], self._rows - len(self._ready)
        while lacking > 0 and (drawn := self._source.next(seen * self._rows)) is not None:
            parts.append(drawn)
            lacking -= len(drawn)
        if len(parts) > 1:
            self._ready = np.concatenate(parts)
        batch, self._ready = self._ready[: self._rows].tolist(), self._ready[self._rows :]
        if not batch or (self._drop_last and len(batch) < self._rows):
            raise StopIteration
        return batch[0] if self._single else batch

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after `seen` batches."""
        return self._source.position(seen * self._rows)


class _KnownBatches:
    """The batches of a sampler that can list them, as lists of ints."""

    def __init__(self, source: RowBatches) -> None:
        self._source = source
        self.position = source.position

    def next(self, seen: int) -> list[int]:
        """Return the next batch after `seen` batches of the loop; raise StopIteration after the last."""
        rows = self._source.next(seen)
        if rows is None:
            raise StopIteration
        batch: list[int] = rows.tolist()
        return batch


def _pulls(
    sampler: Any, progress: Progress, generators: Mapping[str, torch.Generator]
) -> _RowBatches | _KnownBatches | BatchStream:
    if batches_known(sampler):
        return _KnownBatches(batch_stream(sampler, progress.resumed))
    batched = type(sampler) is BatchSampler
    inner = sampler.sampler if batched else sampler
    # The indices of a SubsetRandomSampler may be any keys of the dataset.
    fits = not batched or sampler.batch_size <= MOST_ROWS
    if planned(progress.resumed) or (fits and known(inner) and type(inner) is not SubsetRandomSampler):
        try:
            source = stream(inner, progress.resumed)
            return _RowBatches(source, sampler.batch_size if batched else None, batched and sampler.drop_last)
        except Exception as error:
            if planned(progress.resumed):
                raise ValueError(f"the state's position in the sampler is damaged: {error!r}") from error
    # Iterating the sampler raises its own errors, at the same batches.
    return BatchStream(sampler, generators, progress.resumed, progress.ended)
