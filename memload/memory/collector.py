"""The end of what the collector of garbage found: it may come in a thread that holds any lock."""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Callable
from typing import Any

_LONGEST_WAIT = 5.0  # seconds, of a thread that collects garbage
_collecting: list[int] = []  # the thread that does


def _note(phase: str, _: Any) -> None:
    _collecting[:] = [threading.get_ident()] if phase == "start" else []


gc.callbacks.append(_note)


def finish(end: Callable[[], Any]) -> None:
    """Call a function that waits for threads, as `__del__` and `weakref.finalize` need.

    Amid a collection of garbage a thread of its own calls it, since those threads may wait for a lock of the thread
    that collects. That one goes on after some seconds, whether the function has ended or not.

    Args:
        end: the function.

    Example:
        >>> from memload.memory.collector import finish
        >>> finish(lambda: print("closed"))
        closed
    """
    if _collecting != [threading.get_ident()]:
        end()
        return
    once, ended = [end], _thread.allocate_lock()
    del end
    ended.acquire()
    try:
        _thread.start_new_thread(_finish, (once, ended))  # threading's own way takes a lock
    except RuntimeError:  # at the end of the interpreter, or there are too many threads
        once.pop()()
        return
    ended.acquire(timeout=_LONGEST_WAIT)


def _finish(once: list[Callable[[], Any]], ended: _thread.LockType) -> None:
    try:
        once.pop()()  # afterwards nothing here refers to it, so that the collection can go on with it
    finally:
        ended.release()
