"""Requests to stores: one thread of this process runs them, as many at once as the link carries.

The bytes in flight are twice the product of the highest rate and the lowest latency that were seen, as congestion
control by bottleneck bandwidth and round-trip time has it (Cardwell et al., "BBR: Congestion-Based Congestion Control",
ACM Queue 14(5), 2016): while more in flight gives a higher rate, the product grows, and then it stays.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

MOST_IN_FLIGHT = 64 << 20  # bytes of all requests of a process
_LEAST_IN_FLIGHT = 16 << 20
_GAIN = 2.0
_SAMPLES = 64  # requests of which the highest rate counts
_FORGOTTEN = 1.1  # by which the lowest latency grows after so many requests that did not reach it

T = TypeVar("T")


class Rate:
    """Finds how many bytes should be in flight from the requests that were answered.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._delivered = 0
        self._rates: deque[float] = deque(maxlen=_SAMPLES)
        self._latency = float("inf")  # the lowest, which is that of a link without a queue
        self._longer = 0  # requests since then

    @property
    def target(self) -> int:
        """Bytes that should be in flight."""
        if not self._rates:
            return _LEAST_IN_FLIGHT
        product = _GAIN * max(self._rates) * self._latency
        return int(min(max(product, _LEAST_IN_FLIGHT), MOST_IN_FLIGHT))

    def begin(self) -> tuple[float, int]:
        """Return what `end` needs of a request that begins now."""
        return self._clock(), self._delivered

    def end(self, begun: tuple[float, int], nbytes: int) -> None:
        """Count a request that was answered with so many bytes."""
        began, before = begun
        self._delivered += nbytes
        took = max(self._clock() - began, 1e-6)
        self._rates.append((self._delivered - before) / took)
        self._note(took)

    def _note(self, latency: float) -> None:
        self._longer += 1
        if latency < self._latency:
            self._latency, self._longer = latency, 0
        elif self._longer == _SAMPLES:  # the way may have become longer
            self._latency, self._longer = self._latency * _FORGOTTEN, 0


class Link:
    """The requests of this process: a thread with an event loop, and the number of bytes in flight."""

    def __init__(self) -> None:
        self.rate = Rate()
        self.process = os.getpid()
        self._in_flight = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="memload-remote", daemon=True)
        self._thread.start()
        self._closing = threading.RLock()
        self._closed = False
        atexit.register(self.close)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread. Raises RuntimeError at the exit of the interpreter."""
        with self._closing:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise RuntimeError("this process ends, and what it reads from stores and writes to them has ended before")

    def close(self) -> None:
        """Cancel all requests, and end the thread, before the interpreter ends.

        A thread that needs the interpreter later is ended by force, amid C++ or Rust, which aborts the process.
        """
        if self.process != os.getpid():
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        while _is_answered():
            time.sleep(0.001)  # in which that thread goes on

    async def carried(self, nbytes: int, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a request for so many bytes, which waits until the link has room for it."""
        await self._enter(nbytes)
        begun = self.rate.begin()
        try:
            answer = await request()
            self.rate.end(begun, nbytes)
            return answer
        finally:
            self._in_flight -= nbytes
            self._let_in()

    async def _enter(self, nbytes: int) -> None:
        if not self._waiting and self._has_room(nbytes):
            self._in_flight += nbytes
            return
        place: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((nbytes, place))
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was let in meanwhile
                self._in_flight -= nbytes
            self._let_in()
            raise

    def _has_room(self, nbytes: int) -> bool:
        return self._in_flight == 0 or self._in_flight + nbytes <= self.rate.target

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].cancelled() or self._has_room(self._waiting[0][0])):
            nbytes, place = self._waiting.popleft()
            if not place.cancelled():
                self._in_flight += nbytes
                place.set_result(None)


async def _cancel_all() -> None:
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _is_answered() -> bool:
    """Whether a thread of the client of stores still tells a loop an answer, which may be the last one it waited for.

    Only there does such a thread run Python code, in which it may lose the interpreter and need it again.
    """
    telling = asyncio.BaseEventLoop.call_soon_threadsafe.__code__
    return any(frame.f_code is telling for top in sys._current_frames().values() for frame in _stack(top))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


_links: list[Link] = []
_lock = threading.Lock()


def link() -> Link:
    """Return the link of this process.

    Raises:
        RuntimeError: the process was forked from one that has a link: the client of stores does not survive that.
    """
    with _lock:
        if not _links:
            _links.append(Link())
        if _links[0].process != os.getpid():
            raise RuntimeError(
                "this process was forked from one that uses a store, whose client does not survive a fork: "
                'give multiprocessing_context="spawn", or num_workers=0, since threads of memload read ahead anyway'
            )
        return _links[0]
