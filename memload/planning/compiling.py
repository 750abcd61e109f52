"""What torch.compile makes of the time of a step: measured, within a limit of time, where the model is."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload.errors import first_line
from memload.memory.threads import started

_AGAIN = 0.5  # seconds, after which a thread that is to end is told so once more


class _TooLong(BaseException):
    """Raised in the thread that compiles once its time is up; no Exception, which much of the compiler catches."""


@dataclass(frozen=True)
class CompiledStep:
    """A step of compiled models.

    Attributes:
        seconds: of one step, once all is compiled; None: not measured.
        plain: of one that is not, made in the same thread.
        compiling: seconds that the first one took, or all that was tried.
        why_not: why it was not measured; empty where it was.
    """

    seconds: float | None
    plain: float
    compiling: float
    why_not: str = ""


def compiled_step(
    models: Sequence[torch.nn.Module], first: Callable[[], object], timed: Callable[[], float], limit: float
) -> CompiledStep:
    """Return what a step of compiled models takes; afterwards they are as they were.

    What is compiled runs in a thread of its own, which is stopped when the time is up: at the next line of Python, so a
    call of the C++ compiler that runs then ends first.

    Args:
        models: whose forward pass is compiled, and the backward pass with it.
        first: makes one step, which compiles.
        timed: makes some, and returns the seconds of one.
        limit: seconds for all of that.
    """
    begin = time.perf_counter()
    plain = compiling = 0.0

    def run() -> float:
        nonlocal begin, plain, compiling
        plain = timed()
        begin = time.perf_counter()
        with warnings.catch_warnings(), _compiled(models):
            warnings.simplefilter("ignore")  # the compiler's own deprecations
            first()
            compiling = time.perf_counter() - begin
            return timed()

    try:
        seconds = _within(limit, run)
    except _TooLong:
        return CompiledStep(None, plain, limit, f"it took more than {limit:g} s")
    except Exception as error:
        took = time.perf_counter() - begin
        return CompiledStep(None, plain, took, f"it failed here ({type(error).__name__}: {first_line(error)[:120]})")
    return CompiledStep(seconds, plain, compiling)


@contextlib.contextmanager
def _compiled(models: Sequence[torch.nn.Module]) -> Iterator[None]:
    own = [vars(model).get("forward") for model in models]
    for model in models:
        model.forward = torch.compile(model.forward)
    try:
        yield
    finally:
        for model, before in zip(models, own, strict=True):
            if before is None:
                del model.forward
            else:
                model.forward = before


def _within(limit: float, call: Callable[[], Any]) -> Any:
    """Return what a call returns, made in a thread of its own.

    Raises:
        _TooLong: it took longer.
        Exception: what it raised.
    """
    done: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as error:
            failed.append(error)

    (thread,) = started([threading.Thread(target=run, name="memload-compiling", daemon=True)])
    thread.join(limit)
    late = thread.is_alive()
    with _unsaid():
        while thread.is_alive():
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_TooLong))
            thread.join(_AGAIN)
    if late:
        raise _TooLong
    if failed:
        raise failed.pop()  # not kept here: its traceback holds this frame
    return done[0]


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """Suppress the report of a `_TooLong` that Python ignored in a callback: it is raised again."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda said: None if said.exc_type is _TooLong else before(said)
    try:
        yield
    finally:
        sys.unraisablehook = before
