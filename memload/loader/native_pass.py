"""`NativePass`: the iterator over one pass of the native engine.

plan of row indices -> gather (+ cast), native threads -> slot -> batch
sampling/row_plan.py   _core.Pipeline                             the loop
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memload.engine.gatherer import BatchResult
from memload.engine.iterators import BatchIterator, profiling, waiting
from memload.engine.observers import OBSERVERS, observed
from memload.engine.request import PassRequest
from memload.engine.tiers.pressure import HEAP_WATCH, watch_spares
from memload.loader.history import Layers, PassHistory
from memload.loader.state import LoaderState, given_generators
from memload.memory.endings import finish
from memload.sampling.row_plan import BatchFeed, Feed, Unplanned, feed
from memload.stats import LoaderStats

_FORKED = (
    "this iterator was made before the process was forked, and its threads stayed with the parent; "
    "call iter(loader) again in the child"
)


class NativePass(BatchIterator):
    """One pass of the native engine over a loader, made by ``iter(loader)``.

    It makes the same draws from generators as a stock iterator, at the same times. It owns the pipeline, and stops it
    at the end of the data, on an exception, on ``close()``, and when the iterator is collected. Several threads may
    call ``next()``.

    Args:
        request: the request of the pass.
        layers: the layers that make its batches.
        state: the state of the loader.
        history: the history of the loader's passes.
        owner: the loader, which stays alive as long as the pass runs.
    """

    _request: PassRequest | None = None  # of a pass that goes on
    _is_open = False  # whether there is something to close; there is nothing until the pass is complete
    _keeps = False  # whether the memory of the pass is kept for the next one
    _late = False  # whether the last wait for a batch ran into the timeout
    _workers: tuple[Any, ...] = ()  # code for stock iterators waits for these processes; here are none

    def __init__(
        self, request: PassRequest, layers: Layers, state: LoaderState, history: PassHistory, owner: object
    ) -> None:
        self.layers = layers
        self._gatherer, self._finish = layers.outermost, layers.arrival.finish
        self._timeout = _seconds_of(request.timeout)
        self._asked = 0
        # Several threads may call next(), but samplers may be generators: one at a time. It knows whose it is.
        self._lock = threading.RLock()
        # A stock iterator pulls a batch of indices for each next(); with workers, it also pulls several at its start.
        self._lead = operator.index(request.num_workers or 0) * operator.index(request.prefetch_factor or 0)
        self._started = time.perf_counter()
        self._wall = self._sampling = 0.0
        self._process = os.getpid()
        self._given, ahead = 0, request.options.depth is not None
        self.progress = state.begin(request)
        self.progress.loader = weakref.ref(owner)
        self._feed: Feed = feed(
            request.batches,
            self._gatherer.rows,
            self._gatherer,
            self.progress,
            given=functools.partial(given_generators, request),
            ahead=ahead,
            at_once=self._lead > 0,
            as_index=not request.batched,
        )
        self._batch_sampler: Any = request.batches
        self._closing = threading.RLock()  # a handler of signals may close what is being closed
        self._history, self._owner, self._request, self._is_open = history, owner, request, True
        try:
            drawn = self.progress.base_seed is None
            self._seed = state.drawn_seed(request, self.progress)
            self._gatherer.begin(self._seed)
            if self._lead:
                self._start(state, drawn)
            state.begun()
        except BaseException:
            self.close()
            raise

    def _start(self, state: LoaderState, anew: bool) -> None:
        """Pull the batches of indices that stock workers get when they start, or when they begin another pass."""
        try:
            if anew:
                self._feed.start_again()  # a stock iterator that starts workers takes two iterators of its sampler
            self._feed.pull(self._lead, self._gatherer.depth)
        except Exception:
            if anew:
                state.base_seed = None  # workers that never started keep no seed either
            raise

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> NativePass:
        return self

    def __next__(self) -> Any:
        if OBSERVERS.now or profiling():
            with waiting(self) if profiling() else contextlib.nullcontext():
                return observed(self._in_turn)
        return self._in_turn()

    def _wait_for_turn(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(_FORKED)
        if not self._lock.acquire(timeout=self._timeout or -1):
            raise RuntimeError(f"DataLoader timed out after {self._timeout:g} seconds")

    def _in_turn(self) -> Any:
        try:
            if not self._lock.acquire(blocking=False):
                self._wait_for_turn()
            batch = self._next_or_closed()
        finally:
            try:  # noqa: SIM105 - a function of C comes next, which no interrupt precedes
                self._lock.release()
            except RuntimeError:  # an interrupt, or the timeout, came before the lock was had
                pass
        return batch if self._finish is None else self._finish(batch)

    def _next_or_closed(self) -> Any:
        try:
            if self._request is None:
                raise StopIteration
            return self._next(self._request)
        except Exception:
            raise
        except BaseException:  # an interrupt, which may have come between any two steps
            self.close()
            raise

    def _next(self, request: PassRequest) -> Any:
        if self._given:  # the loop has made a step
            HEAP_WATCH.look()
        batch = self._taken()
        number, self._given = self.progress.delivered, self._given + 1
        self.progress.delivered += 1
        if self._lead:
            self._ask()
        # An error of the dataset itself does not end the pass, nor a stock iterator: the next batch follows.
        try:
            if isinstance(batch, Unplanned):
                from memload.engine.guarded_batches import answer

                return self._gatherer.placed(answer(request, batch, self._seed, number), number)
            return batch.result() if isinstance(batch, BatchResult) else batch
        finally:
            del batch  # the traceback of an error refers to this frame, which would keep it alive

    def _taken(self) -> Any:
        """Return the next batch as the layers give it, or as one that the engine does not gather."""
        if not self._lead:
            self._ask()
        if isinstance(self._feed, BatchFeed) and (unplanned := self._feed.unplanned(self._given)) is not None:
            try:
                return unplanned
            finally:
                del unplanned  # the traceback of its error leads back to this frame, which would keep it alive
        try:
            batch = self._gatherer.next(self._timeout)
            self._wall = time.perf_counter() - self._started
            if batch is None:
                self._gatherer.check_files()
                self.progress.finished = True
                raise StopIteration
        except TimeoutError as error:  # the pass goes on: the loop may wait for this batch again
            self._late = True
            self._asked -= not self._lead
            raise RuntimeError(f"DataLoader timed out after {self._timeout:g} seconds") from error
        except BaseException:
            self.close()
            raise
        self._late = False
        return batch

    def _ask(self) -> None:
        self._asked += 1
        if self._feed.ended:
            return
        began = time.perf_counter()
        self._feed.pull(self._lead + self._asked, self._gatherer.depth)
        self._sampling += time.perf_counter() - began

    def stats(self) -> LoaderStats:
        """Return the counters of this pass; they are 0 if a parent process began it."""
        if self._process != os.getpid():
            return LoaderStats()
        return replace(self._gatherer.stats(), wall_seconds=self._wall, sampler_seconds=self._sampling)

    def close(self) -> None:
        """Stop the threads and free the memory of the pass; batches of the loop stay valid. It may be called twice."""
        request, self._request = self._request, None
        if request is not None:
            self._keeps = bool(request.persistent_workers)
            self._owner = None
            self._history.ended(self)
            self._history.finished += self.stats()
        if self._process != os.getpid():
            return  # its threads and their memory are the parent's, of which another thread may have had the lock
        with self._closing:
            if self._is_open:
                self._end()
                self._is_open = False  # the last: an interrupt may come before, and `close` be called again

    def _end(self) -> None:
        self._gatherer.close(self._keeps, self._late)
        self._history.kept = self.layers if self._keeps else None
        watch_spares()

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit modules have lost their names, and all ends by itself.
        if self._is_open and not exiting() and self._process == os.getpid():
            finish(self._close_for_good)

    def _close_for_good(self) -> None:
        try:
            self.close()
        except BaseException:  # an interrupt, after which nobody else will call `close` again
            self.close()
            raise

    def _shutdown_workers(self) -> None:
        # Loaders written for torch's iterators call this at their end if they find `_workers`.
        self.close()


def _seconds_of(timeout: Any) -> float:
    """Return a loader's ``timeout``, which may be any number that can be added to a time; 0: no limit.

    Raises:
        OverflowError: nothing can wait that long.
    """
    seconds = float(0.0 + timeout)
    if seconds > threading.TIMEOUT_MAX:
        most = f"{threading.TIMEOUT_MAX:.0f}"
        raise OverflowError(f"timeout={timeout!r}: at most {most} seconds can be waited; 0 waits for ever")
    return seconds if seconds > 0 else 0.0
