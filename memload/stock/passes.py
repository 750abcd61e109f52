"""Passes of the stock machinery that can be taken up again: counted batches, and samplers that begin where told.

Torch's iterators ask the loader for its index sampler. What they are given here yields what the loader's own sampler
would yield, from where a state says on. Torchdata's iterators, which ask workers for states, are given the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset, SubsetRandomSampler

from memload.sampling.batch_streams import RowBatches, batch_stream, batches_known, fits_a_list
from memload.sampling.draws import Indices, Progress, RowStream
from memload.sampling.overtaking import Overtaking
from memload.sampling.pulls import BatchStream, Generators
from memload.sampling.row_plan import known, planned, stream
from memload.state import CountedBatches, given_generators, put_back, standing
from memload.stock.iterables import iterable_pass
from memload.stock.worker_states import Untold, asks_workers, pass_of_workers, untold
from memload.transforms.seeding import peeked_seed

if TYPE_CHECKING:
    from memload.loader import FastLoader


def stock_pass(loader: FastLoader[Any], make: Callable[[], Iterator[Any]]) -> CountedBatches:
    """Begin a pass of the stock machinery, or take one up; `make` returns an iterator of torch's."""
    progress = loader._state.begin(loader)
    if isinstance(loader.dataset, IterableDataset):
        iterated = iterable_pass(loader, progress, make)
        loader._state.begun()
        return iterated
    indices = loader._own_indices()
    indices.begin(progress, {**given_generators(loader), "global": torch.default_generator})
    if loader._index_sampler is indices:
        batches = _map_pass(loader, progress, indices, make)
    else:
        batches = CountedBatches(make(), progress)
        progress.follow(_Overridden(type(loader)))
    indices.undraw()
    loader._state.begun()
    loader._state.base_seed = progress.base_seed
    return batches


def _map_pass(
    loader: FastLoader[Any], progress: Progress, indices: IndexSampler, make: Callable[[], Iterator[Any]]
) -> CountedBatches:
    if asks_workers(loader, progress):
        return pass_of_workers(loader, progress, indices)
    batches = make()
    if not loader.in_order:
        indices.pulls.watch(batches)
    if untold(loader):
        progress.follow(Untold(loader.dataset))
    return CountedBatches(batches, progress)


class _Overridden:
    """Where a pass stands whose rows a subclass chooses.

    Args:
        kind: the subclass.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def position(self, seen: int) -> dict[str, Any]:  # noqa: ARG002 - as of every source
        """Raise RuntimeError."""
        raise RuntimeError(
            f"{self._kind.__name__} overrides _index_sampler, of which nobody knows where it stands: give its batches "
            "as batch_sampler=, whose position a state can tell"
        )


class IndexSampler(threading.local):
    """What a stock iterator iterates in place of a loader's batch sampler, or of its sampler where there is no other.

    It is another one in each thread, since several may begin passes of one loader at a time.

    Args:
        sampler: the loader's own.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.pulls: Overtaking  # of the latest iterator
        self._undrawn: dict[str, str] = {}
        self.begin(Progress(), {"global": torch.default_generator})

    def begin(self, progress: Progress, generators: Generators) -> None:
        """Let iterators begin where a pass is.

        Args:
            progress: of the pass.
            generators: those that somebody else can see; the global one is "global", the loader's own "loader".
        """
        self._progress = progress
        self._generators = generators

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        # A stock iterator takes an iterator, draws a base seed, and with workers takes another one.
        self.undraw()
        progress = self._progress
        self.pulls = Overtaking(_pulls(self.sampler, progress, self._generators), progress.resumed)
        progress.follow(self.pulls)
        if progress.base_seed is not None:  # drawn before, by the pass that is taken up or for workers that persist
            self._undrawn = standing(self._generators)
        else:
            progress.base_seed = peeked_seed(self._generators.get("loader"))
        return _Indices(self, self.pulls, progress)

    def undraw(self) -> None:
        """Undo a stock iterator's draw of a base seed if it resumes a pass, whose base seed was drawn before."""
        undrawn, self._undrawn = self._undrawn, {}
        put_back(self._generators, undrawn)


class _Indices(Iterator[Any]):
    """The index batches of one pass."""

    def __init__(self, sampler: IndexSampler, pulls: Overtaking, progress: Progress) -> None:
        self._sampler = sampler
        self._pulls = pulls
        self._progress = progress

    def __next__(self) -> Any:
        self._sampler.undraw()
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
        """Return the next batch; the loop has seen so many. Raises StopIteration after the last."""
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
        """Return where the pass stands after so many batches."""
        return self._source.position(seen * self._rows)


class _KnownBatches:
    """The batches of a sampler that knows them, as lists of ints."""

    def __init__(self, source: RowBatches) -> None:
        self._source = source
        self.position = source.position

    def next(self, seen: int) -> list[int]:
        """Return the next batch; the loop has seen so many. Raises StopIteration after the last."""
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
    # The indices of a SubsetRandomSampler may be anything that the dataset knows.
    fits = not batched or fits_a_list(sampler)
    if planned(progress.resumed) or (fits and known(inner) and type(inner) is not SubsetRandomSampler):
        try:
            source = stream(inner, progress.resumed)
            return _RowBatches(source, sampler.batch_size if batched else None, batched and sampler.drop_last)
        except Exception as error:
            if planned(progress.resumed):
                raise ValueError(f"the state's position in the sampler is damaged: {error!r}") from error
    # Iterated, a sampler fails with what it raises, and when.
    return BatchStream(sampler, generators, progress.resumed, progress.ended)
