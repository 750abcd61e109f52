"""Transforms ahead of the loop: threads between the native gather and ``next()``.

plan of row indices -> gather (+ cast) -> slot -> cut, map, collate, batch_transform -> the loop
sampling/row_plan.py   _core.Pipeline           background threads, in order
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from memload import _core
from memload.engine.collating import FieldSlots
from memload.engine.gatherer import BatchResult, Gatherer
from memload.engine.transforms.buffer_reuse import BufferReuse
from memload.engine.transforms.concurrency import ConcurrencyTuner
from memload.engine.transforms.room import FIRST_ALONE, Room, storages
from memload.engine.transforms.seeding import PassSeed, Randomness
from memload.engine.transforms.thread_context import ThreadContext
from memload.engine.transforms.transform_pipeline import TransformPipeline
from memload.errors import MemoryWarning, ThreadLimitError
from memload.kept_errors import level_outside, without_frames
from memload.memory.threads import started
from memload.sampling.draws import Indices
from memload.stats import LoaderStats

_AT_WORK = 2  # tensors of one size that a function works with, beside the one that it returns

_GLANCE = 0.1  # seconds after which a thread that waits for a batch looks whether the pass was closed
_PATIENCE = 1.0  # seconds that the end of a pass waits for functions that are under way
_LAST_PATIENCE = 5.0  # and the end of the process


@dataclass
class _Made:
    batch: Any = None  # as it was gathered, then a BatchResult
    rows: int = 0
    error: BaseException | None = None  # of the gather: nothing comes after it

    def drop(self) -> None:
        """Let go of what is in it, as `BatchResult.drop`."""
        if isinstance(self.batch, BatchResult):
            self.batch.drop()
        self.batch = self.error = None


class Transforming(Gatherer):
    """The batches of a gatherer, transformed by background threads, in order. A gatherer itself.

    Threads take planned batches in turn. Who has the turn passes the plan on and waits for the gathered memory, so that
    one thread at a time asks the gatherer; the user's functions are called without it. No batch is taken that is
    ``depth`` or more ahead of those handed out, so that with ``depth + 1`` slots there is one for each. One thread at a
    time may call ``next()``, ``extend()``, ``push()``, ``finish()`` and ``cancel()``; ``close()`` may come from any,
    and twice.

    Args:
        gatherer: what gathers. Its depth is that of the whole, batches in the making included.
        transform_pipeline: what becomes of a batch.
        batch_rows: rows of a full batch.
        drop_last: whether a last batch of fewer rows is left out.
        tuner: how many threads there are, and how many of them work at once.
        before: of an earlier pass, whose memory is used again.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        transform_pipeline: TransformPipeline,
        batch_rows: int,
        drop_last: bool,
        tuner: ConcurrencyTuner,
        before: Transforming | None = None,
    ) -> None:
        self.gatherer = gatherer
        self.rows, self.depth = gatherer.rows, gatherer.depth
        self._transforms, self._tuner = transform_pipeline, tuner
        self._batch_rows, self._drop_last = batch_rows, drop_last
        kept = None if before is None else before._slots
        self._slots: FieldSlots = FieldSlots.kept(kept, self.depth + 1 + _AT_WORK * tuner.most)
        reused = before is not None and self._slots is kept
        self._room: Room = before._room if before is not None and reused else Room(self.depth, tuner.most)
        self._alone = False  # whether the first batch is made while no other is, since it may be large
        self._process = os.getpid()
        # Reentrant, since the collector may end a pass in any thread at any time, those that hold them included.
        self._lock = threading.RLock()  # held by the thread that takes the next batch from the gatherer
        self._mutex = threading.RLock()  # guards what follows
        self._may_work = threading.Condition(self._mutex)
        self._may_take = threading.Condition(self._mutex)
        self._may_hand_out = threading.Condition(self._mutex)
        self._noted: list[tuple[str, tuple[Indices, ...]]] = []  # of the plan, for the gatherer
        self._pushed = self._extended = 0  # batches of the plan that are whole by themselves, and rows of its stream
        self._context = ThreadContext.here()  # of the loop's thread, which functions are to find
        self._rows: deque[Indices] = deque()  # of each batch that was taken and not handed out
        self._row_numbers = _NO_ROWS  # of the batch that was handed out last
        self._made: dict[int, _Made] = {}
        self._working = self._taken = self._handed = self._handed_rows = 0
        self._finished = self._closed = self._broken = False
        self._failed: BaseException | None = None  # by which a thread ended, outside of what is the user's
        self._waited = self._transforming = 0.0
        self._threads: list[threading.Thread] = []

    def begin(self, seed: PassSeed) -> None:
        """Start the threads, as many as the system gives.

        Raises:
            ThreadLimitError: it gives none.
        """
        self._seed = seed
        self.gatherer.begin(seed)
        intra_op = torch.get_num_threads()
        self._share = max(1, intra_op // self._tuner.most)
        self._set_up = threading.Semaphore(0)
        atexit.register(self._end_threads, _LAST_PATIENCE)
        threads = (
            threading.Thread(target=self._run, name=f"memload transform {k}", daemon=True)
            for k in range(self._tuner.most)
        )
        try:
            self._threads = started(threads)  # only these are kept: one that never ran would hold what holds it
        except ThreadLimitError:
            self._end_threads(0)
            raise
        for _ in self._threads:
            self._set_up.acquire()
        torch.set_num_threads(intra_op)  # changes nothing here; what is set last is what later threads begin with

    def extend(self, rows: Indices) -> None:
        """Take rows that follow those before."""
        self._note("extend", rows)

    def push(self, rows: Indices) -> None:
        """Take rows that are one batch."""
        self._note("push", rows)

    def finish(self) -> None:
        """Know that nothing follows."""
        self._note("finish")

    def next(self, timeout: float) -> Any:
        """Return the next `BatchResult`; None at the end.

        Raises:
            TimeoutError: it was not there within ``timeout`` seconds, unless that is 0.
            MemorySpaceError: memory has no room for it beside the one that the loop has.
            Exception: what the gatherer raised.
        """
        if self._process != os.getpid():
            return self.gatherer.next(timeout)  # which raises, and says what to do
        self._make_room()
        with self._mutex:
            began = time.perf_counter()
            known = self._may_hand_out.wait_for(self._next_is_known, timeout or None)
            self._waited += time.perf_counter() - began
            if not known:
                raise TimeoutError("no batch was ready in time")
            if self._failed is not None and self._handed not in self._made:
                self._taken, failure, self._failed = self._handed, self._failed, None  # nothing comes after it
                self._made.clear()
                try:
                    raise failure
                finally:
                    del failure  # as below
            made = self._made.pop(self._handed, None)
            if made is None:
                return None
            self._handed += 1
            self._handed_rows += made.rows
            if made.error is None:
                self._row_numbers = self._rows.popleft()
            self._may_take.notify()
        outcome, error = made.batch, made.error
        made.batch = made.error = None  # the thread that made it may still hold the box
        if error is None:
            return outcome
        try:
            raise error
        finally:
            del error  # the traceback of the error holds this frame, which would hold the error

    def _make_room(self) -> None:
        """Have the second batch made, where it had to wait until the loop had the first, and warn of scarce memory."""
        if self._room.ahead == 0 and self._handed:
            with self._mutex:
                wanted = self._taken < self._planned
            if wanted:
                self._room.check()
                with self._mutex:
                    self._may_take.notify_all()
        said, self._room.to_say = self._room.to_say, ""
        if said:
            warnings.warn(said, MemoryWarning, stacklevel=level_outside())

    def row_numbers(self) -> Indices:
        """Return the rows of the batch that `next` returned last."""
        return self._row_numbers

    def check_files(self) -> None:
        """Raise if a file of the pass was cut since it was opened."""
        self.gatherer.check_files()

    def cancel(self) -> _core.PlanQueue:
        """Stop, and return the plan of the batches that were not handed out; raise what the gatherer raised."""
        if self._process != os.getpid():
            return self.gatherer.cancel()  # which raises, and says what to do
        self._stop()
        with self._mutex:
            raised = (made.error for made in self._made.values() if made.error is not None)
            failure = self._failed or next(raised, None)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # as in next()
        self._pass_on()
        plan = self.gatherer.cancel()
        for rows in reversed(self._rows):
            plan.put_back(rows)
        return plan

    def stats(self) -> LoaderStats:
        """Return the gatherer's counters, with those that mean something else behind threads, and those of threads."""
        gathered = self.gatherer.stats()
        with self._mutex:
            return replace(
                gathered,
                batches=self._handed,
                rows=self._handed_rows,
                consumer_wait_seconds=self._waited,
                transform_seconds=self._transforming,
                transform_wait_seconds=gathered.consumer_wait_seconds,
            )

    def close(self, keep_slots: bool, at_once: bool = False) -> None:
        """End the threads, and then the gatherer. A function under way is waited for, but not for long."""
        self._end_threads(0.0 if at_once else _PATIENCE)
        self.gatherer.close(keep_slots, at_once)

    def give_back(self) -> None:
        """Free memory that is kept for batches to come. May be called from any thread."""
        self._slots.give_back()

    def _end_threads(self, patience: float) -> None:
        """Let no thread ask for a batch any more, and wait so many seconds for those within a function to end."""
        if self._process != os.getpid():
            return
        atexit.unregister(self._end_threads)
        self._stop()
        with self._mutex:
            left, self._made = self._made, {}
        for made in left.values():
            made.drop()  # without the lock: what a user's function made may end in any way
        if threading.current_thread() in self._threads:
            return
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _stop(self) -> None:
        """Let no thread take another batch. When it returns, none asks the gatherer."""
        with self._mutex:
            self._closed = True
            for waiting in (self._may_work, self._may_take, self._may_hand_out):
                waiting.notify_all()
        with self._lock:
            pass

    @property
    def _planned(self) -> int:
        """Batches of the plan, as far as it is known."""
        whole, rest = divmod(self._extended, self._batch_rows)
        return self._pushed + whole + (rest > 0 and self._finished and not self._drop_last)

    def _note(self, how: str, *rows: Indices) -> None:
        if self._process != os.getpid():
            getattr(self.gatherer, how)(*rows)  # which raises, and says what to do
            return
        with self._mutex:
            self._pushed += how == "push"
            self._extended += len(rows[0]) if how == "extend" else 0
            self._finished = self._finished or how == "finish"
            self._noted.append((how, rows))
            self._context = ThreadContext.here()
            self._may_take.notify()

    def _next_is_known(self) -> bool:
        nothing_comes = (
            self._closed or self._failed is not None or ((self._broken or self._ended) and self._handed == self._taken)
        )
        return self._handed in self._made or nothing_comes

    # What threads do.

    def _run(self) -> None:
        try:
            try:
                torch.get_num_threads()  # the first question of a thread sets its number to the last that anybody set
                torch.set_num_threads(self._share)  # for this thread, as torch's own pinning thread does
            finally:
                self._set_up.release()
            random = BufferReuse(self._slots)
            with torch.no_grad():
                while self._is_called_for():
                    while self._one(random):
                        pass
        except BaseException as error:  # no memory, as a rule: whoever waits for this thread is to know
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        try:
            error = without_frames(error)
        except MemoryError:  # then nobody is told where it was
            error.__traceback__ = None
        with self._mutex:
            self._failed = self._failed or error
            self._broken = True
            for waiting in (self._may_work, self._may_take, self._may_hand_out):
                waiting.notify_all()

    def _is_called_for(self) -> bool:
        """Wait until this thread is wanted; False: it never will be."""
        with self._mutex:
            self._may_work.wait_for(lambda: self._over() or self._working < self._tuner.allowed)
            self._working += 1
            return not self._over()

    def _one(self, random: Randomness) -> bool:
        """Make one batch; False: go and see whether more are wanted. When it returns, it holds no slot."""
        number, made, rows = self._take()
        if made is None:
            with self._mutex:
                self._working -= 1
                self._may_work.notify_all()
            return False
        gathered = storages(made.batch) if self._room.ahead is None else {}
        spent = self._make(made, rows, random)
        if self._room.ahead is None:
            self._find_room(made, gathered)
        return self._deliver(number, made, spent)

    def _make(self, made: _Made, rows: Indices, random: Randomness) -> tuple[float, float]:
        """Transform a batch; returns the seconds that it took, and those of processor time."""
        with self._mutex:
            began, processor = time.perf_counter(), time.thread_time()
            self._tuner.begin(began)
        made.batch = self._transformed(made.batch, rows, random)
        return time.perf_counter() - began, time.thread_time() - processor

    def _transformed(self, batch: Any, rows: Indices, random: Randomness) -> BatchResult:
        if isinstance(batch, BatchResult):  # there is none
            return batch
        try:
            apply = self._context.run
            made = apply(self._transforms.apply, batch, rows, self._seed, random, self._slots, lambda: self._closed)
            return BatchResult(made)
        except BaseException as error:  # whatever it is, the loop raises it in its turn
            return BatchResult(error=error)

    def _find_room(self, made: _Made, gathered: dict[int, int]) -> None:
        """Let as many batches be made ahead as memory holds, of which this is the first."""
        outcome = made.batch
        if isinstance(outcome, BatchResult) and outcome.error is None:
            self._room.find(outcome.batch, gathered)
            if self._room.is_scarce:  # then none is kept that is not needed at once
                before, self._slots = self._slots, FieldSlots((self._room.ahead or 1) + 1)
                before.give_back()
        with self._mutex:
            self._alone = False
            self._may_take.notify_all()

    def _take(self) -> tuple[int, _Made | None, Indices]:
        """The number of the next batch, what was gathered, and its rows; None when there is nothing more to do."""
        with self._lock:
            with self._mutex:
                self._may_take.wait_for(lambda: self._over() or self._within_depth())
                if self._over():
                    return self._taken, None, _NO_ROWS
                number = self._taken
                self._taken += 1
            try:
                self._pass_on()
                batch = self._gathered()
                if batch is None:
                    return number, None, _NO_ROWS
                rows = self.gatherer.row_numbers()
                self._rows.append(rows)
                if number == 0 and self._room.ahead is None:
                    self._alone = sum(storages(batch).values()) >= FIRST_ALONE
                return number, _Made(batch, len(rows)), rows
            except BaseException as error:
                with self._mutex:  # in its turn
                    self._broken = True
                    self._made[number] = _Made(error=error)
                    self._may_hand_out.notify()
                return number, None, _NO_ROWS

    def _pass_on(self) -> None:
        """Give the gatherer what was noted of the plan."""
        with self._mutex:
            noted, self._noted = self._noted, []
        for how, rows in noted:
            getattr(self.gatherer, how)(*rows)

    def _over(self) -> bool:
        return self._closed or self._broken or self._ended

    @property
    def _ended(self) -> bool:
        """Whether no batch is left to take, and none will come."""
        return self._finished and self._taken >= self._planned

    def _within_depth(self) -> bool:
        depth = self.depth if self._room.ahead is None else self._room.ahead
        return self._taken < min(self._planned, self._handed + depth) and not self._alone

    def _gathered(self) -> Any:
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                return self._context.run(self.gatherer.next, _GLANCE)  # may call a collate function of the user's
        return None

    def _deliver(self, number: int, made: _Made, spent: tuple[float, float]) -> bool:
        """Hand a batch over; returns whether this thread is to make another one."""
        with self._mutex:
            seconds, processor = spent
            self._transforming += seconds
            if not self._closed:
                self._made[number] = made
            if number == self._handed:
                self._may_hand_out.notify()
            if self._tuner.end(time.perf_counter(), made.rows, processor):
                self._may_work.notify_all()
            goes_on = self._working <= self._tuner.allowed
            self._working -= not goes_on
            closed = self._closed
        if closed:
            made.drop()
        return goes_on


_NO_ROWS: Indices = np.empty(0, dtype=np.int64)
