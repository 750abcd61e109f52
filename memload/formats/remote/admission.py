"""How many bytes of requests are in flight: as many as the link carries, in the order in which they were asked for.

That is the product of the highest rate and the lowest latency that were seen, as congestion control by bottleneck
bandwidth and round-trip time has it (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5),
2016): twice of it while more in flight gives a higher rate, and half more than it from then on. What is more than the
link carries waits in it: small pieces of many answers come in turns, each of which wakes a thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

MOST_IN_FLIGHT = 64 << 20  # bytes of all requests of a process
_FIRST_IN_FLIGHT, _LEAST_IN_FLIGHT = 32 << 20, 16 << 20  # before anything is known of the link, and after that
_PROVIDED = 3  # times what should be in flight
_GROWING, _STEADY = 2.0, 1.5  # times the product
_GROWN = 1.1  # times the rate of earlier requests, which that of the newest ones exceeds while it grows
_NEWEST, _EARLIER = 16, 48  # requests of which the highest rate counts
_SAMPLES = 64  # requests of which the longest time counts
_LASTING = 10.0  # seconds for which the lowest latency counts
_FEW, _QUICK = 8, 1.0  # requests that say whether the store is quick, and the seconds that each of them takes at most


class Rate:
    """Finds how many bytes should be in flight from the requests that were answered.

    Args:
        clock: returns the time in seconds.

    Attributes:
        target: bytes that should be in flight.
        product: bytes that the link has on its way at the rate and latency that were seen; 0 before anything is known.
        is_quick: whether the last requests, and not too few, took less than a second each.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._delivered = 0
        self._newest: deque[float] = deque()
        self._earlier: deque[float] = deque(maxlen=_EARLIER)
        self._times: deque[float] = deque(maxlen=_SAMPLES)
        self._latency = float("inf")  # the lowest, which is that of a link without a queue
        self._seen = 0.0  # when it was
        self.target, self.product = _FIRST_IN_FLIGHT, 0
        self.is_quick = False

    def begin(self) -> tuple[float, int]:
        """Return what `end` needs of a request that begins now."""
        return self._clock(), self._delivered

    def end(self, begun: tuple[float, int], nbytes: int) -> None:
        """Count a request that was answered with so many bytes."""
        began, before = begun
        self._delivered += nbytes
        took = max(self._clock() - began, 1e-6)
        self._note(took)
        if took < self._latency or self._clock() - self._seen > _LASTING:  # the way may have become longer
            self._latency, self._seen = took, self._clock()
        self.product = int(self._rate((self._delivered - before) / took) * self._latency)
        least = _LEAST_IN_FLIGHT if self._earlier else _FIRST_IN_FLIGHT
        self.target = int(min(max(self.product, least), MOST_IN_FLIGHT))

    def _rate(self, found: float) -> float:
        """Return the rate that is aimed at, now that this one was found."""
        if len(self._newest) == _NEWEST:
            self._earlier.append(self._newest.popleft())
        self._newest.append(found)
        newest, earlier = max(self._newest), max(self._earlier, default=0.0)
        return (_GROWING if newest > _GROWN * earlier else _STEADY) * max(newest, earlier)

    def fail(self, begun: tuple[float, int]) -> None:
        """Count the time of a request that was not answered."""
        self._note(self._clock() - begun[0])

    def _note(self, took: float) -> None:
        self._times.append(took)
        self.is_quick = len(self._times) >= _FEW and max(self._times) < _QUICK


class Admission:
    """Lets requests to a store in while fewer bytes are in flight than should be. Any thread may call anything."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._lock = threading.Lock()
        self._in_flight = self._waiting_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._drained = False

    @property
    def target(self) -> int:
        """Bytes that should be in flight."""
        return self._rate.target

    @property
    def product(self) -> int:
        """Bytes that the link has on its way, as `Rate.product`."""
        return self._rate.product

    @property
    def is_quick(self) -> bool:
        """Whether the last requests took less than a second each."""
        return self._rate.is_quick

    @property
    def in_flight(self) -> int:
        """Bytes in flight."""
        return self._in_flight

    @property
    def is_provided(self) -> bool:
        """Whether so much waits behind what is in flight that the link goes on for two more times of it."""
        return self._in_flight + self._waiting_bytes >= _PROVIDED * self.target

    def enter(self, nbytes: int, later: Callable[[], object]) -> bool:
        """Count so many bytes as in flight, and return True; or else call `later` once they were.

        Args:
            nbytes: bytes of the request.
            later: is called on the thread of whoever leaves.
        """
        with self._lock:
            if not self._waiting and self._has_room(nbytes):
                self._in_flight += nbytes
                return True
            self._waiting.append((nbytes, later))
            self._waiting_bytes += nbytes
            return False

    def leave(self, nbytes: int, begun: tuple[float, int] | None = None) -> None:
        """Take bytes off those in flight, and let in whoever has room now.

        Args:
            nbytes: bytes of the request.
            begun: what `begin` returned, of a request that was answered with so many bytes; it counts.
        """
        admitted: list[Callable[[], object]] = []
        with self._lock:
            if begun is not None:
                self._rate.end(begun, nbytes)
            self._in_flight -= nbytes
            while self._waiting and self._has_room(self._waiting[0][0]):
                size, later = self._waiting.popleft()
                self._in_flight += size
                self._waiting_bytes -= size
                admitted.append(later)
        for later in admitted:
            later()

    def drain(self) -> None:
        """Let in all who wait, and from now on whoever comes."""
        with self._lock:
            self._drained = True
            waiting, self._waiting = self._waiting, deque()
            self._in_flight += self._waiting_bytes
            self._waiting_bytes = 0
        for _, later in waiting:
            later()

    def begin(self) -> tuple[float, int]:
        """Return what `leave` and `fail` need of a request that begins now."""
        return self._rate.begin()

    def fail(self, begun: tuple[float, int]) -> None:
        """Count a request that was not answered."""
        with self._lock:
            self._rate.fail(begun)

    def _has_room(self, nbytes: int) -> bool:
        return self._drained or self._in_flight == 0 or self._in_flight + nbytes <= self._rate.target
