"""What each thread has for itself and functions find around them, carried from the loop's thread to others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TypeVar

import torch

from memload.tensors import on_default

R = TypeVar("R")


@dataclass(frozen=True)
class ThreadContext:
    """What of a thread shows in a function that it calls.

    Grad mode is not part of it: no batch carries a graph out of a thread.

    Attributes:
        context: the context variables.
        device: torch's default device.
        autocasts: the device types for which autocast is on, each with its dtype.
    """

    context: Context
    device: torch.device
    autocasts: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def here(cls) -> ThreadContext:
        """Return those of the thread that asks, as they are now."""
        on = filter(torch.is_autocast_enabled, _kinds())
        autocasts = tuple((kind, torch.get_autocast_dtype(kind)) for kind in on)
        return cls(copy_context(), torch.get_default_device(), autocasts)

    def run(self, fn: Callable[..., R], *arguments: object) -> R:
        """Call a function within them. What it sets of them is gone when it returns."""
        with contextlib.ExitStack() as within:
            within.enter_context(on_default(self.device))
            for kind, dtype in self.autocasts:  # without the cache, in which the loop's weights are
                within.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            return self.context.copy().run(fn, *arguments)  # a context can be in one thread at a time


def _kinds() -> tuple[str, ...]:
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6, where there is none
        found = None
    return ("cpu",) if found is None or not torch.amp.is_autocast_available(found.type) else ("cpu", found.type)
