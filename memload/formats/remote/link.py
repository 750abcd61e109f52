"""Requests to stores: a thread with an event loop runs them, and further threads those that are answered quickly."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any, Protocol, TypeVar

from memload.formats.remote.admission import Admission
from memload.formats.remote.request_threads import RequestThreads

QUICK_SECONDS = 5
"""The most seconds that a request may take which a thread waits for."""

_ENDED = "this process ends, and what it reads from stores and writes to them has ended before"

T = TypeVar("T")


class Fetch(Protocol):
    """A request for bytes, which raises nothing: it tells whoever asked for them what became of it.

    Attributes:
        nbytes: how many.
        host: the store that is asked, as `Objects.host`.
        is_quick: whether `quickly` may be called.
        has_come: whether the bytes came.
    """

    nbytes: int
    host: str
    is_quick: bool
    has_come: bool

    def quickly(self) -> bool:
        """Ask once, and wait for at most QUICK_SECONDS; return False if it is to be asked again, by `patiently`."""

    async def patiently(self) -> None:
        """Ask until the bytes have come, or cannot come."""

    def fail(self, error: BaseException) -> None:
        """Give up."""


class Link:
    """The requests of this process: a thread with an event loop, further threads, and what is in flight to each store.

    A request of an event loop wakes two threads for its head and two for its body, each of which takes Python's lock,
    which on a quick link costs more than all the rest of it. So threads ask, and wait in the client of stores, as long
    as requests take less than a second. What takes longer is asked for on the loop, where it can be cancelled.
    """

    def __init__(self) -> None:
        self._admissions: dict[str, Admission] = {}
        self.process = os.getpid()
        self._threads = RequestThreads()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="memload-remote", daemon=True)
        self._thread.start()
        self._closing = threading.RLock()
        self._closed = False
        atexit.register(self.close)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. Raises RuntimeError at the exit of the interpreter."""
        with self._closing:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise RuntimeError(_ENDED)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Call a function on the loop after a time, unless the interpreter ends before."""
        with self._closing:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._loop.call_later, seconds, act)

    def close(self) -> None:
        """Cancel all requests, and end the threads, before the interpreter ends.

        A thread that needs the interpreter later is ended by force, amid C++ or Rust, which aborts the process. So
        threads are waited for; what they wait for takes no longer than QUICK_SECONDS.
        """
        if self.process != os.getpid():
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for admission in list(self._admissions.values()):
            admission.drain()
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._threads.close(2 * QUICK_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        while _is_answered():
            time.sleep(0.001)  # in which that thread goes on

    def admission(self, host: str) -> Admission:
        """Return what lets requests to a store in."""
        return self._admissions.get(host) or self._new_admission(host)

    def _new_admission(self, host: str) -> Admission:
        with self._closing:
            made = self._admissions.setdefault(host, Admission())
            if self._closed:
                made.drain()
            return made

    def fetch(self, request: Fetch) -> None:
        """Begin a request, as soon as the link has room for its bytes. Raises RuntimeError as `submit`.

        The loop does so for the main thread, where an interrupt may come between any two steps: what is counted as in
        flight and not asked for would never be counted off.
        """
        if self._closed:
            raise RuntimeError(_ENDED)
        if threading.current_thread() is threading.main_thread():
            self._loop.call_soon_threadsafe(self._enter_with, request)
        else:
            self._enter_with(request)

    def _enter_with(self, request: Fetch) -> None:
        if self.admission(request.host).enter(request.nbytes, partial(self._begin, request)):
            self._begin(request)

    async def carried(self, host: str, nbytes: int, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a request to a store for so many bytes, which waits until the link has room for it."""
        admission = self.admission(host)
        await self._enter(admission, nbytes)
        begun = admission.begin()
        try:
            answer = await request()
        except BaseException:
            admission.leave(nbytes)
            raise
        admission.leave(nbytes, begun)
        return answer

    async def _enter(self, admission: Admission, nbytes: int) -> None:
        place: asyncio.Future[None] = self._loop.create_future()
        let_in = partial(self._loop.call_soon_threadsafe, self._let_in, place, admission, nbytes)
        if admission.enter(nbytes, let_in):
            return
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was let in meanwhile
                admission.leave(nbytes)
            raise

    def _let_in(self, place: asyncio.Future[None], admission: Admission, nbytes: int) -> None:
        if place.cancelled():
            admission.leave(nbytes)
        else:
            place.set_result(None)

    # A request whose bytes are counted as in flight.

    def _begin(self, request: Fetch) -> None:
        quick = not self._closed and request.is_quick and self.admission(request.host).is_quick
        if not (quick and self._threads.try_run(partial(self._quickly, request))):
            self._ask_on_loop(request)

    def _quickly(self, request: Fetch) -> None:
        admission = self.admission(request.host)
        begun = admission.begin()
        if request.quickly():
            self._count(begun, request)
        else:
            admission.fail(begun)
            self._ask_on_loop(request)

    def _ask_on_loop(self, request: Fetch) -> None:
        try:
            asked = self.submit(self._patiently(request))
        except RuntimeError as error:
            request.fail(error)
        else:  # a task that is cancelled before its first step runs none
            asked.add_done_callback(lambda done: request.fail(RuntimeError(_ENDED)) if done.cancelled() else None)

    async def _patiently(self, request: Fetch) -> None:
        begun = self.admission(request.host).begin()
        await request.patiently()
        self._count(begun, request)

    def _count(self, begun: tuple[float, int], request: Fetch) -> None:
        self.admission(request.host).leave(request.nbytes, begun if request.has_come else None)


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
    if not _links:
        with _lock:
            if not _links:
                _links.append(Link())
    if _links[0].process != os.getpid():
        raise RuntimeError(
            "this process was forked from one that uses a store, whose client does not survive a fork: "
            'give multiprocessing_context="spawn", or num_workers=0, since threads of memload read ahead anyway'
        )
    return _links[0]
