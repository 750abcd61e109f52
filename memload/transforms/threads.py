"""Transforms ahead of the loop: threads between the native gather and ``next()``.

plan of row indices -> gather (+ cast) -> slot -> cut, map, collate, batch_transform -> the loop
sampling/row_plan.py   engine/passes.py           background threads, in order
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from memload.batches.collating import FieldSlots
from memload.errors import MemoryWarning
from memload.gpu.pinned_batches import level_outside
from memload.sampling.draws import Indices
from memload.sampling.planned_rows import PlannedRows
from memload.stats import LoaderStats
from memload.transforms.pace import Pace
from memload.transforms.recipe import Outcome, Recipe
from memload.transforms.reseeding import Watch
from memload.transforms.room import LARGE, Room, storages
from memload.transforms.seeding import PassSeed, Randomness
from memload.transforms.surroundings import Surroundings
from memload.transforms.used_again import MemoryUsedAgain

if TYPE_CHECKING:
    from memload.engine.passes import Gatherer

MOST_THREADS = 8
"""Threads that transform, where the user does not say. Each holds a batch, and all of them share Python's lock."""

_AT_WORK = 2  # tensors of one size that a function works with, beside the one that it returns

_GLANCE = 0.1  # seconds after which a thread that waits for a batch looks whether the pass was closed
_PATIENCE = 1.0  # seconds that the end of a pass waits for functions that are under way
_LAST_PATIENCE = 5.0  # and the end of the process


@dataclass
class _Made:
    batch: Any = None  # as it was gathered, then an Outcome
    rows: int = 0
    error: BaseException | None = None  # of the gather: nothing comes after it


class Transforming:
    """The batches of a gatherer, transformed by background threads, in order. A gatherer itself.

    The plan is noted here, since randomness follows from the rows. Threads take planned batches in turn. Who has the
    turn passes the plan on and waits for the gathered memory, so that one thread at a time asks the gatherer; the
    user's functions are called without it. No batch is taken that is ``depth`` or more ahead of those handed out, so
    that with ``depth + 1`` slots there is one for each. One thread at a time may call ``next()``, ``extend()``,
    ``push()`` and ``finish()``; ``close()`` may come from any, and twice.

    Args:
        gatherer: what gathers. Its depth is that of the whole, batches in the making included.
        recipe: what becomes of a batch.
        ahead: cuts the plan as the gatherer does.
        pace: how many threads there are, and how many of them work at once.
        before: of an earlier pass, whose memory is used again.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        recipe: Recipe,
        ahead: PlannedRows,
        pace: Pace,
        before: Transforming | None = None,
    ) -> None:
        self.gatherer = gatherer
        self.rows, self.depth = gatherer.rows, gatherer.depth
        self._recipe, self._ahead, self._pace = recipe, ahead, pace
        kept = None if before is None else before._slots
        self._slots: FieldSlots = FieldSlots.kept(kept, self.depth + 1 + _AT_WORK * pace.most)
        reused = before is not None and self._slots is kept
        self._room: Room = before._room if before is not None and reused else Room(self.depth, pace.most)
        self._alone = False  # whether the first batch is made while no other is, since it may be large
        self._process = os.getpid()
        self._watch = Watch()
        # Reentrant, since the collector may end a pass in any thread at any time, those that hold them included.
        self._turn = threading.RLock()  # held by the thread that takes the next batch from the gatherer
        self._mutex = threading.RLock()  # guards what follows
        self._may_work = threading.Condition(self._mutex)
        self._may_take = threading.Condition(self._mutex)
        self._may_hand_out = threading.Condition(self._mutex)
        self._noted: list[tuple[str, tuple[Indices, ...]]] = []  # of the plan, for the gatherer
        self._surroundings = Surroundings.here()  # of the loop's thread, which functions are to find
        self._made: dict[int, _Made] = {}
        self._working = self._taken = self._handed = self._handed_rows = 0
        self._closed = self._broken = False
        self._waited = self._transforming = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"memload transform {k}", daemon=True) for k in range(pace.most)
        ]

    def begin(self, seed: PassSeed) -> None:
        """Start the threads."""
        self._seed = seed
        self._watch.__enter__()
        intra_op = torch.get_num_threads()
        self._share = max(1, intra_op // len(self._threads))
        self._set_up = threading.Semaphore(0)
        atexit.register(self._end_threads, _LAST_PATIENCE)
        for thread in self._threads:
            thread.start()
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
        """Return the next `Outcome`; None at the end.

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
            made = self._made.pop(self._handed, None)
            if made is None:
                return None
            self._handed += 1
            self._handed_rows += made.rows
            self._may_take.notify()
        try:
            if made.error is not None:
                raise made.error
            outcome, made.batch = made.batch, None  # the thread that made it may still hold the box
            return outcome
        finally:
            del made  # the traceback of an error holds this frame, which would hold the error

    def _make_room(self) -> None:
        """Have the second batch made, where it had to wait until the loop had the first, and warn of scarce memory."""
        if self._room.ahead == 0 and self._handed:
            with self._mutex:
                wanted = self._ahead.ready
            if wanted:
                self._room.check()
                with self._mutex:
                    self._may_take.notify_all()
        said, self._room.to_say = self._room.to_say, ""
        if said:
            warnings.warn(said, MemoryWarning, stacklevel=level_outside())

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
        self._watch.close()
        with self._mutex:
            self._closed = True
            left, self._made = self._made, {}
            for waiting in (self._may_work, self._may_take, self._may_hand_out):
                waiting.notify_all()
        del left  # without the lock: what a user's function made may end in any way
        with self._turn:
            pass
        if threading.current_thread() in self._threads:
            return
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _note(self, how: str, *rows: Indices) -> None:
        if self._process != os.getpid():
            getattr(self.gatherer, how)(*rows)  # which raises, and says what to do
            return
        with self._mutex:
            getattr(self._ahead, how)(*rows)
            self._noted.append((how, rows))
            self._surroundings = Surroundings.here()
            self._may_take.notify()

    def _next_is_known(self) -> bool:
        nothing_comes = self._closed or ((self._broken or self._ahead.ended) and self._handed == self._taken)
        return self._handed in self._made or nothing_comes

    # What threads do.

    def _run(self) -> None:
        torch.get_num_threads()  # the first question of a thread sets its number to the last that anybody set
        torch.set_num_threads(self._share)  # for this thread, as torch's own pinning thread does
        self._set_up.release()
        random = MemoryUsedAgain(self._slots)
        with torch.no_grad():
            while self._is_called_for():
                while self._one(random):
                    pass

    def _is_called_for(self) -> bool:
        """Wait until this thread is wanted; False: it never will be."""
        with self._mutex:
            self._may_work.wait_for(lambda: self._over() or self._working < self._pace.allowed)
            self._working += 1
            return not self._over()

    def _one(self, random: Randomness) -> bool:
        """Make one batch; False: go and see whether more are wanted. When it returns, it holds no slot."""
        number, rows, made = self._take()
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
            self._pace.begin(began)
        if made.error is None:
            made.batch = self._transformed(made.batch, rows, random)
        return time.perf_counter() - began, time.thread_time() - processor

    def _transformed(self, batch: Any, rows: Indices, random: Randomness) -> Outcome:
        if isinstance(batch, Outcome):  # there is none
            return batch
        try:
            apply = self._surroundings.run
            made = apply(self._recipe.apply, batch, rows, self._seed, random, self._slots, lambda: self._closed)
            return Outcome(made)
        except BaseException as error:  # whatever it is, the loop raises it in its turn
            return Outcome(error=error)

    def _find_room(self, made: _Made, gathered: dict[int, int]) -> None:
        """Let as many batches be made ahead as memory holds, of which this is the first."""
        outcome = made.batch
        if isinstance(outcome, Outcome) and outcome.error is None:
            self._room.find(outcome.batch, gathered)
            if self._room.is_scarce:  # then none is kept that is not needed at once
                before, self._slots = self._slots, FieldSlots((self._room.ahead or 1) + 1)
                before.give_back()
        with self._mutex:
            self._alone = False
            self._may_take.notify_all()

    def _take(self) -> tuple[int, Indices, _Made | None]:
        """The next batch as it was gathered, with its number and rows; None when there is nothing more to do."""
        with self._turn:
            with self._mutex:
                self._may_take.wait_for(lambda: self._over() or self._within_depth())
                if self._over():
                    return self._taken, _NO_ROWS, None
                number, rows = self._taken, self._ahead.take()
                self._taken += 1
                noted, self._noted = self._noted, []
            try:
                for how, planned in noted:
                    getattr(self.gatherer, how)(*planned)
                made = self._gathered(len(rows))
                if made is not None and number == 0 and self._room.ahead is None:
                    self._alone = sum(storages(made.batch).values()) >= LARGE
                return number, rows, made
            except BaseException as error:
                self._broken = True
                return number, rows, _Made(error=error)

    def _over(self) -> bool:
        return self._closed or self._broken or self._ahead.ended

    def _within_depth(self) -> bool:
        depth = self.depth if self._room.ahead is None else self._room.ahead
        return self._ahead.ready and not self._alone and self._taken < self._handed + depth

    def _gathered(self, rows: int) -> _Made | None:
        while not self._closed:
            try:
                batch = self._surroundings.run(self.gatherer.next, _GLANCE)  # may call a collate function of the user's
            except TimeoutError:
                continue
            return None if batch is None else _Made(batch, rows)
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
            if self._pace.end(time.perf_counter(), made.rows, processor):
                self._may_work.notify_all()
            goes_on = self._working <= self._pace.allowed
            self._working -= not goes_on
            return goes_on


_NO_ROWS: Indices = np.empty(0, dtype=np.int64)
