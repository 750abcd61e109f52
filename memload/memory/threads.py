"""Start as many threads as the system gives: with fewer threads work is slower, and with none it is an error."""

from __future__ import annotations

import _thread
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from memload.memory.budget import process_is_limited
from memload.memory.refusals import no_thread

P = ParamSpec("P")
T = TypeVar("T")


def started(threads: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Start threads until the system refuses one, and return those that run.

    Raises:
        ThreadLimitError: the system refuses the first thread.
    """
    there: list[threading.Thread] = []
    limited = process_is_limited()
    with contextlib.suppress(RuntimeError, MemoryError):  # can't start new thread
        for thread in threads:
            if limited and not _finds_memory():
                break
            thread.start()
            there.append(thread)
    if not there:
        raise no_thread()
    return there


_FIRST_STEPS = 3 << 20  # bytes: twice and more what Python takes from the system for a new thread's objects and frames


class _Gone:
    """An object that a thread holds until it ends."""


def _finds_memory() -> bool:
    """Return whether a thread that begins now finds memory for its first steps.

    Python's own `Thread.start()` waits for ever where it does not, because the new thread ends silently (CPython's
    issue 140746). So a test thread starts first. However early it ends, its argument is then released, which calls a
    C function that needs no memory.
    """
    gone, found, ended = _Gone(), list[bool](), _thread.allocate_lock()
    ended.acquire()
    call_at_end: Any = ended.__exit__  # it releases the lock, whatever its arguments
    watch = weakref.ref(gone, call_at_end)
    _thread.start_new_thread(_take_first_steps, (gone, found))
    del gone
    ended.acquire()
    del watch
    return bool(found)


def _take_first_steps(gone: _Gone, found: list[bool]) -> None:  # noqa: ARG001 - it lives as long as the thread
    with contextlib.suppress(MemoryError):
        bytearray(_FIRST_STEPS)
        found.append(True)


class ThreadPool(Executor):
    """Calls functions in threads of its own, in the order in which they were submitted.

    Unlike `concurrent.futures.ThreadPoolExecutor`, it starts all of its threads at once and works with those that the
    system gives. So a limit on processes or memory cannot end it in the middle of its work.

    Args:
        most: the largest number of threads.
        name: the name of the threads, as a debugger shows it.

    Raises:
        ThreadLimitError: the system gives no thread.

    Example:
        >>> with ThreadPool(4) as pool:
        ...     list(pool.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def __init__(self, most: int, name: str = "memload") -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._ended = False
        each = (
            threading.Thread(target=_work, args=(self._calls,), name=f"{name}-{k}", daemon=True) for k in range(most)
        )
        self._threads = started(each)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of a function, and return the future of its result.

        Raises:
            RuntimeError: the pool was shut down.
        """
        if self._ended:
            raise RuntimeError("this pool of threads was shut down")
        future: Future[T] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after all queued calls, or with `cancel_futures` after running ones. May be called twice."""
        if cancel_futures:
            with contextlib.suppress(queue.Empty):
                while True:
                    _cancel(self._calls.get_nowait())
        self._ended = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def _cancel(call: tuple[Future[Any], Callable[[], Any]] | None) -> None:
    if call is not None:
        call[0].cancel()
        call[0].set_running_or_notify_cancel()


def _work(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            _settle(future, function)
        del call, future, function  # hold no references while waiting


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
        del future  # the traceback of the error holds this frame, which would hold the error
    else:
        future.set_result(result)
