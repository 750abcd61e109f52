"""Requests to stores: one thread of this process runs them, as many at once as the link carries.

The bytes in flight are twice the product of the highest rate and the lowest latency that were seen, as congestion
control by bottleneck bandwidth and round-trip time has it (Cardwell et al., "BBR: Congestion-Based Congestion Control",
ACM Queue 14(5), 2016): while more in flight gives a higher rate, the product grows, and then it stays.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
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

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

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
