"""Threads that wait for answers of a store, as many as requests are under way at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

MOST_THREADS = 256
_IDLE = 10.0  # seconds after which a thread without work ends

Work = Callable[[], object]


class _Own(threading.local):
    """What a thread of this module runs next, and whether the calling thread is one that has nothing yet."""

    next: Work | None = None
    takes = False


class RequestThreads:
    """Runs functions that raise nothing, each on a thread that has no other; any thread may ask."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._own = _Own()
        self._changed = threading.Condition()
        self._threads = self._free = 0  # a thread that has found nothing for _IDLE is free no more
        self._closed = False

    def try_run(self, work: Work) -> bool:
        """Run a function soon; return False if all threads are busy, and no further one may be started.

        What one of these functions asks for follows it on its own thread.
        """
        if self._own.takes:
            self._own.next, self._own.takes = work, False
            return True
        with self._changed:
            if self._closed or (self._free == 0 and self._threads == MOST_THREADS):
                return False
            if self._free > 0:
                self._free -= 1
                self._work.put(work)
                return True
            self._threads += 1
        return self._started(work)

    def close(self, patience: float) -> bool:
        """End all threads, after what they are at; return whether that took no longer than `patience` seconds."""
        with self._changed:
            self._closed = True
            for _ in range(self._free):
                self._work.put(None)
            self._free = 0
            return self._changed.wait_for(lambda: self._threads == 0, patience)

    def _started(self, work: Work) -> bool:
        try:
            threading.Thread(target=self._run, name="memload-request", daemon=True).start()
        except RuntimeError:  # the system refuses another thread
            self._end()
            return False
        self._work.put(work)
        return True

    def _run(self) -> None:
        work = self._work.get()
        while work is not None:
            self._own.takes = True
            work()
            work, self._own.next, self._own.takes = self._own.next, None, False  # a thread keeps nothing that is done
            work = work or self._next()
        self._end()

    def _next(self) -> Work | None:
        with self._changed:
            if self._closed:
                return None
            self._free += 1
        try:
            return self._work.get(timeout=_IDLE)
        except queue.Empty:
            with self._changed:
                if self._free > 0:
                    self._free -= 1
                    return None
        return self._work.get()  # somebody has counted on this thread meanwhile

    def _end(self) -> None:
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()
