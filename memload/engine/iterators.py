"""What iterators of batches offer beside the batches, as torch's own do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


class BatchIterator(Iterator[Any]):
    """An iterator that belongs to the process and the loop in which it was begun."""

    def __getstate__(self) -> Any:
        # Also copy.copy asks for it.
        raise NotImplementedError(
            f"{type(self).__name__} cannot be pickled or copied: pickle the loader, and begin another pass with iter()"
        )


class AroundBatches(BatchIterator):
    """A layer around an iterator of torch's, through which all else that this one offers shows.

    Args:
        batches: an iterator with a length.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        # Some loops look for the worker processes of a stock iterator, to wait for their end.
        if name == "_batches":
            raise AttributeError(name)  # not yet made
        return getattr(self._batches, name)


@contextlib.contextmanager
def one_pass(loader: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Begin a pass whose threads and worker processes end with this context, even if an error holds the iterator.

    The traceback of an error holds the frames through which it went, and these hold the iterator.
    """
    batches = iter(loader)
    try:
        yield batches
    finally:
        getattr(batches, "_shutdown_workers", lambda: None)()  # a stock iterator without workers has nothing to end


profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""Returns whether torch's profiler is on. Ask it first: `waiting` costs microseconds, even where nobody profiles."""


def waiting(iterator: object) -> contextlib.AbstractContextManager[Any]:
    """Return a context that shows in torch's profiler, while it runs, as the wait for the next batch.

    The name begins as that of stock iterators does, by which programs that read profiles know it.
    """
    return torch.autograd.profiler.record_function(f"enumerate(DataLoader)#{type(iterator).__name__}.__next__")
