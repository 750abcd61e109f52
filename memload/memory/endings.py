"""Endings that come at any moment: amid a collection of garbage, or while Ctrl-C is under way."""

from __future__ import annotations

import _thread
import gc
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

_LONGEST_WAIT = 5.0  # seconds, of a thread that collects garbage
_phases: OrderedDict[str, Any] = OrderedDict(start=None, stop=None)  # of collections: the latest last, and what it told
_here = threading.local()  # the same, of this thread's own collections

# Functions of C, since Ctrl-C that is pressed amid a collection would be raised in a callback of Python, and be lost.
_notes: list[Callable[..., object]] = [partial(operator.setitem, _phases), _phases.move_to_end, partial(setattr, _here)]
gc.callbacks += _notes


def each_once(calls: Iterable[Callable[[], None]]) -> Callable[[], object]:
    """Return a function that makes some calls, each of them once, whether it is itself called again or not.

    No interrupt divides the calls to functions of C, since Python looks for signals in its own only.

    Args:
        calls: the calls, which may become more until the function is called.

    Example:
        >>> from memload.memory.endings import each_once
        >>> left = [1, 2]
        >>> end = each_once([left.clear])
        >>> end(), left
        (False, [])
    """
    return partial(any, map(operator.methodcaller("__call__"), calls))


def finish(end: Callable[[], Any]) -> None:
    """Call a function that waits for threads, as `__del__` and `weakref.finalize` need.

    Amid a collection of garbage a thread of its own calls it, since those threads may wait for a lock of the thread
    that collects. That one goes on after some seconds, whether the function has ended or not.

    Args:
        end: the function.

    Example:
        >>> from memload.memory.endings import finish
        >>> finish(lambda: print("closed"))
        closed
    """
    if not _is_collecting():
        end()
        return
    once, ended = iter([end]), _thread.allocate_lock()
    del end
    ended.acquire()
    try:
        _thread.start_new_thread(_finish, (once, ended))  # threading's own way takes a lock
    except RuntimeError:  # at the end of the interpreter, or there are too many threads
        _call(once)
        return
    if not ended.acquire(timeout=_LONGEST_WAIT):
        _call(once)  # if that thread found no memory for its first step


def _is_collecting() -> bool:
    """Return whether this thread is amid a collection."""
    phase, told = next(reversed(_phases.items()))
    return phase == "start" and getattr(_here, phase, None) is told


def _finish(once: Iterator[Callable[[], Any]], ended: _thread.LockType) -> None:
    try:
        _call(once)
    finally:
        ended.release()


def _call(once: Iterator[Callable[[], Any]]) -> None:
    """Call what an iterator has, if it still has it; afterwards nothing here refers to that, so that it can go."""
    for end in once:
        end()
        del end
