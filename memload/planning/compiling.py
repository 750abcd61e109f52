"""Measures the time of a step of compiled models, within a time limit, on the device of the models."""

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

_RETRY = 0.5  # seconds between two attempts to stop the thread


class _TooLong(BaseException):
    """Raised in the compiling thread when its time is up; no Exception, since the compiler catches many of these."""


@dataclass(frozen=True)
class CompiledStep:
    """A step of compiled models.

    Attributes:
        seconds: the time of a step after compilation; None: not measured.
        plain: the time of a step without compilation, in the same thread.
        compiling: the time of the first compiled step, or of the attempt.
        why_not: the reason why it was not measured; empty if it was.
    """

    seconds: float | None
    plain: float
    compiling: float
    why_not: str = ""


def compiled_step(
    models: Sequence[torch.nn.Module], first: Callable[[], object], timed: Callable[[], float], limit: float
) -> CompiledStep:
    """Return the time of a step of compiled models; afterwards the models are as before.

    The compiled step runs in a thread of its own. When the time is up, the thread stops at its next line of Python, so
    a running C++ compiler ends first.

    Args:
        models: the modules whose forward and backward passes are compiled.
        first: makes one step, which compiles.
        timed: makes some steps, and returns the seconds of one.
        limit: seconds for everything.
    """
    begin = time.perf_counter()
    plain = compiling = 0.0

    def run() -> float:
        nonlocal begin, plain, compiling
        plain = timed()
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own deprecations
            for model in models:
                model.forward = torch.compile(model.forward)
            first()
            compiling = time.perf_counter() - begin
            return timed()

    try:
        with _forward_kept(models):
            seconds = _within(limit, run)
    except _TooLong:
        return CompiledStep(None, plain, limit, f"it took more than {limit:g} s")
    except Exception as error:
        took = time.perf_counter() - begin
        return CompiledStep(None, plain, took, f"it failed here ({type(error).__name__}: {first_line(error)[:120]})")
    return CompiledStep(seconds, plain, compiling)


@contextlib.contextmanager
def _forward_kept(models: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Let models have the methods afterwards that they have now, of whatever step a thread is broken off in."""
    own = [vars(model).get("forward") for model in models]
    try:
        yield
    finally:
        for model, before in zip(models, own, strict=True):
            if before is None:
                vars(model).pop("forward", None)
            else:
                model.forward = before


def _within(limit: float, call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread of its own.

    Raises:
        _TooLong: the call took longer.
        Exception: the call raised it.
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
    with _without_report():
        while thread.is_alive():
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_TooLong))
            thread.join(_RETRY)
    if late:
        raise _TooLong
    if failed:
        raise failed.pop()  # popped, since its traceback refers to this frame
    return done[0]


@contextlib.contextmanager
def _without_report() -> Iterator[None]:
    """Suppress Python's reports of what `_TooLong` leaves: itself, ignored in a callback, and files that stay unclosed.

    It is raised again in callbacks. A file of a module that was just imported is closed when its object dies.
    """
    before = sys.unraisablehook
    ignored = (_TooLong, ResourceWarning)
    sys.unraisablehook = lambda report: None if report.exc_type in ignored else before(report)
    try:
        yield
    finally:
        sys.unraisablehook = before
