"""What users do to samples and batches, ahead of the loop: threads between the native pipeline and ``next()``.

plan of row indices -> gather (+ cast) -> slot -> cut, map, collate, batch_transform -> the loop
plan.py                _core.Pipeline            background threads, in order
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from memload import _core
from memload.cast import Cast
from memload.cast_batches import cast_batch
from memload.native import Source
from memload.plan import Indices
from memload.seeding import Drawing, Draws, PassSeed

MOST_THREADS = 8
"""Threads that transform, where the user does not say. Each holds a batch, and all of them share Python's lock."""

_GLANCE = 0.1  # seconds after which a thread that waits for a batch looks whether the pass was closed
_PATIENCE = 1.0  # seconds that the end of a pass waits for functions that are under way
_LAST_PATIENCE = 5.0  # and the end of the process


def checked_transform(transform: Any) -> Callable[..., Any] | None:
    """Return the ``batch_transform=`` of a loader. Raises TypeError if it cannot be called."""
    if transform is not None and not callable(transform):
        raise TypeError(f"batch_transform= takes a function of one batch, got {type(transform).__name__}")
    found: Callable[..., Any] | None = transform
    return found


@dataclass(frozen=True)
class Recipe:
    """What becomes of a gathered batch.

    Attributes:
        maps: functions of one sample, applied one after the other; none: the batch stays whole.
        cut: makes samples of a batch.
        casts: casts of a batch made of mapped samples; those of others are done while gathering.
        transform: a function of the batch that comes last.
    """

    maps: tuple[Drawing, ...]
    cut: Callable[[Any], Iterable[Any]]
    casts: Mapping[Any, Cast]
    transform: Drawing | None

    @classmethod
    def of(cls, source: Source, transform: Callable[..., Any] | None) -> Recipe | None:
        """Return what is to be done to the batches of a source; None: nothing."""
        if not source.maps and transform is None:
            return None
        maps = tuple(Drawing(fn) for fn in source.maps)
        return cls(maps, _CUTTERS[source.layout], source.late_casts, None if transform is None else Drawing(transform))

    def apply(self, batch: Any, rows: Indices, seed: PassSeed, draws: Draws) -> Any:
        """Return what the loop gets for a gathered batch of these rows."""
        if self.maps:
            batch = default_collate(self._mapped(batch, rows, seed, draws))
        if self.casts:
            batch = cast_batch(batch, self.casts)
        if self.transform is None:
            return batch
        draws.begin(lambda: seed.of_batch(rows))
        with draws:
            return self.transform(batch, draws)

    def _mapped(self, batch: Any, rows: Indices, seed: PassSeed, draws: Draws) -> list[Any]:
        samples = []
        with draws:
            for row, sample in zip(rows.tolist(), self.cut(batch), strict=True):
                draws.begin(lambda row=row: seed.of_row(row))  # type: ignore[misc]
                for fn in self.maps:
                    sample = fn(sample, draws)
                samples.append(sample)
        return samples


def _cut_dict(batch: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    for values in zip(*(tensor.unbind() for tensor in batch.values()), strict=True):
        yield dict(zip(batch, values, strict=True))


def _cut_tuple(batch: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.unbind() for tensor in batch), strict=True)


_CUTTERS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "dict": _cut_dict,
    "tuple": _cut_tuple,
    "only": torch.Tensor.unbind,
}


class RowsAhead:
    """The rows of each batch to come, cut from a plan as the pipeline cuts them. Not synchronised.

    Args:
        batch_rows: rows of a full batch.
        drop_last: whether a last batch with fewer rows is left out.
    """

    def __init__(self, batch_rows: int, drop_last: bool) -> None:
        self._batch_rows, self._drop_last = batch_rows, drop_last
        self._stream: deque[Indices] = deque()
        self._whole: deque[Indices] = deque()
        self._left = 0
        self.finished = False

    def extend(self, rows: Indices) -> None:
        """Take rows that follow those before."""
        self._stream.append(rows)
        self._left += len(rows)

    def push(self, rows: Indices) -> None:
        """Take rows that are one batch."""
        self._whole.append(rows)

    @property
    def ready(self) -> bool:
        """Whether the next batch is known."""
        return bool(self._whole) or self._next_rows > 0

    @property
    def ended(self) -> bool:
        """Whether no batch is left and none will come."""
        return self.finished and not self.ready

    @property
    def _next_rows(self) -> int:
        if self._left >= self._batch_rows:
            return self._batch_rows
        return self._left if self.finished and not self._drop_last else 0

    def take(self) -> Indices:
        """Return the rows of the next batch, which is ready."""
        if self._whole:
            return self._whole.popleft()
        wanted = self._next_rows
        self._left -= wanted
        parts = []
        while wanted:
            first = self._stream.popleft()
            parts.append(first[:wanted])
            if len(first) > wanted:
                self._stream.appendleft(first[wanted:])
            wanted -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass
class _Outcome:
    value: Any = None
    rows: int = 0
    error: BaseException | None = None


class Transforming:
    """A pipeline's batches, transformed by background threads, in order: used as the pipeline is, in its place.

    The plan goes to the pipeline and is noted here, since randomness follows from the rows. Threads take planned
    batches in turn, wait for the gathered memory and call the user's functions. No batch is taken that is ``window`` or
    more ahead of those handed out, so that with ``window + 1`` slots one is free for each. One thread at a time may
    call ``next()``, ``extend()``, ``push()`` and ``finish()``; ``close()`` may come from any, and twice.

    Args:
        pipeline: what gathers; closed by its owner, after this.
        unpack: makes a batch of the pipeline's capsules.
        recipe: what becomes of a batch.
        rows: cuts the plan as the pipeline does.
        threads: how many threads transform.
        window: batches in the making or waiting for the loop, at most.
    """

    def __init__(
        self,
        pipeline: _core.Pipeline,
        unpack: Callable[[list[Any]], Any],
        recipe: Recipe,
        rows: RowsAhead,
        threads: int,
        window: int,
    ) -> None:
        self._pipeline, self._unpack, self._recipe, self._rows = pipeline, unpack, recipe, rows
        self._window, self._process = window, os.getpid()
        # Reentrant, since the collector may end a pass in any thread at any time, those that hold them included.
        self._turn = threading.RLock()  # held by the thread that takes the next batch from the pipeline
        self._mutex = threading.RLock()  # guards what follows
        self._may_take = threading.Condition(self._mutex)
        self._may_hand_out = threading.Condition(self._mutex)
        self._outcomes: dict[int, _Outcome] = {}
        self._taken = self._handed = self._handed_rows = 0
        self._closed = self._failed = False
        self._waited = self._transforming = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"memload transform {k}", daemon=True) for k in range(threads)
        ]

    def start(self, seed: PassSeed) -> None:
        """Start the threads, with what all randomness follows from."""
        self._seed = seed
        intra_op = torch.get_num_threads()
        self._share = max(1, intra_op // len(self._threads))
        self._set_up = threading.Semaphore(0)
        atexit.register(self.close, _LAST_PATIENCE)
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._set_up.acquire()
        torch.set_num_threads(intra_op)  # of this thread as before; the last call is what threads begin with later

    def extend(self, rows: Indices) -> None:
        """Plan rows, to be cut into batches."""
        self._pipeline.extend(rows)  # first: what is noted here can be gathered, and in a forked child this raises
        with self._mutex:
            self._rows.extend(rows)
            self._may_take.notify()

    def push(self, rows: Indices) -> None:
        """Plan one batch of exactly these rows."""
        self._pipeline.push(rows)
        with self._mutex:
            self._rows.push(rows)
            self._may_take.notify()

    def finish(self) -> None:
        """Know that no more rows will come."""
        self._pipeline.finish()
        with self._mutex:
            self._rows.finished = True
            self._may_take.notify()

    def next(self, timeout: float = 0.0) -> list[Any] | None:
        """Return the next batch, in a list of one; None at the end.

        Raises:
            TimeoutError: it was not there within ``timeout`` seconds, unless that is 0.
            Exception: whatever gathering it or a function of the user's raised.
        """
        if self._process != os.getpid():
            self._pipeline.next(timeout)  # raises, and says what to do
        with self._mutex:
            began = time.perf_counter()
            there = self._may_hand_out.wait_for(self._front_is_known, timeout or None)
            self._waited += time.perf_counter() - began
            if not there:
                raise TimeoutError("no batch was ready in time")
            outcome = self._outcomes.pop(self._handed, None)
            if outcome is None:
                return None
            self._handed += 1
            self._handed_rows += outcome.rows
            self._may_take.notify()
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:
                del outcome  # its traceback would hold this frame, and so itself
        return [outcome.value]

    def stats(self) -> dict[str, Any]:
        """Return the pipeline's counters, with those that mean something else behind threads, and those of threads."""
        gathered = self._pipeline.stats()
        with self._mutex:
            return {
                **gathered,
                "batches": self._handed,
                "rows": self._handed_rows,
                "consumer_wait_seconds": self._waited,
                "transform_seconds": self._transforming,
                "transform_wait_seconds": gathered["consumer_wait_seconds"],
            }

    def close(self, patience: float = _PATIENCE) -> None:
        """End the threads; those within a function of the user's end when it returns, and are waited for a while.

        When this returns nobody asks the pipeline for batches any more.
        """
        if self._process != os.getpid():
            return
        atexit.unregister(self.close)
        with self._mutex:
            self._closed = True
            left, self._outcomes = self._outcomes, {}
            self._may_take.notify_all()
            self._may_hand_out.notify_all()
        del left  # without the lock: what the user made may end in any way
        with self._turn:
            pass
        if threading.current_thread() in self._threads:
            return
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _front_is_known(self) -> bool:
        nothing_comes = self._closed or self._failed or self._rows.ended
        return self._handed in self._outcomes or (nothing_comes and self._handed == self._taken) or self._closed

    # What threads do.

    def _run(self) -> None:
        torch.set_num_threads(self._share)  # for this thread, as torch's own pinning thread does
        self._set_up.release()
        draws = Draws()
        with torch.no_grad():
            while self._one(draws):
                pass

    def _one(self, draws: Draws) -> bool:
        """Make one batch; False: there is none left. A function of its own: when it returns, it holds no slot."""
        number, rows, outcome = self._take()
        if outcome is None:
            return False
        began = time.perf_counter()
        if outcome.error is None:
            outcome = self._made(outcome.value, rows, draws)
        self._deliver(number, outcome, time.perf_counter() - began)
        return outcome.error is None

    def _made(self, batch: Any, rows: Indices, draws: Draws) -> _Outcome:
        try:
            return _Outcome(self._recipe.apply(batch, rows, self._seed, draws), len(rows))
        except BaseException as error:  # whatever it is, the loop raises it in its turn
            return _Outcome(error=_in_the_loop(error))

    def _take(self) -> tuple[int, Indices, _Outcome | None]:
        """The next batch as it was gathered, with its number and rows; None when there is nothing more to do."""
        with self._turn:
            with self._mutex:
                self._may_take.wait_for(lambda: self._over() or self._within_window())
                if self._over():
                    return self._taken, _NO_ROWS, None
                number, rows = self._taken, self._rows.take()
                self._taken += 1
            try:
                return number, rows, self._gathered()
            except BaseException as error:
                self._failed = True
                return number, rows, _Outcome(error=error)

    def _over(self) -> bool:
        return self._closed or self._failed or self._rows.ended

    def _within_window(self) -> bool:
        return self._rows.ready and self._taken < self._handed + self._window

    def _gathered(self) -> _Outcome | None:
        while not self._closed:
            try:
                capsules = self._pipeline.next(_GLANCE)
            except TimeoutError:
                continue
            return None if capsules is None else _Outcome(self._unpack(capsules))
        return None

    def _deliver(self, number: int, outcome: _Outcome, spent: float = 0.0) -> None:
        with self._mutex:
            self._transforming += spent
            self._failed = self._failed or outcome.error is not None
            if not self._closed:
                self._outcomes[number] = outcome
            if number == self._handed:
                self._may_hand_out.notify()


_NO_ROWS: Indices = np.empty(0, dtype=np.int64)


def _in_the_loop(error: BaseException) -> BaseException:
    """What the loop raises for an error of a function: the same, unless the loop would take it for its end."""
    if not isinstance(error, StopIteration):
        return error
    told = RuntimeError("a transform raised StopIteration, which would have ended the loop without a word")
    told.__cause__ = error
    return told


class TransformedBatches(Iterator[Any]):
    """The batches of the stock machinery, each transformed when the loop asks for it.

    Args:
        batches: an iterator with a length.
        transform: the function of a batch.
        seed: what the randomness of the pass follows from, and with it the number of the batch.
    """

    def __init__(self, batches: Any, transform: Callable[..., Any], seed: PassSeed) -> None:
        self._batches = batches
        self._transform = Drawing(transform)
        self._seed = seed
        self._draws = Draws()
        self._number = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        batch = next(self._batches)
        number, self._number = self._number, self._number + 1
        self._draws.begin(lambda: self._seed.of_batch(number))
        try:
            with torch.no_grad(), self._draws:
                return self._transform(batch, self._draws)
        except StopIteration as error:
            raise _in_the_loop(error) from error
