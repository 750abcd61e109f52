"""Calls that re-seed a process, made by a transform: they act on its row, as they would on a stock worker's process.

Torch has one default generator for all threads, to which `torch.manual_seed`, `torch.set_rng_state`, `fork_rng` and the
like go by its name in `torch.random`. While transforms run, an object stands there that looks which thread is asking.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from memload.transforms.seeding import Randomness


class Watch:
    """Lets these calls act on the row, from ``with`` on; several may be entered, in any threads.

    Closing twice is closing once. What somebody else has put in the same place meanwhile stays there.
    """

    def __init__(self) -> None:
        self._open = False

    def __enter__(self) -> Watch:
        with _GUARD:
            self._open = True
            _WATCHES.add(id(self))
            if len(_WATCHES) == 1:
                for place in _PLACES:
                    place.take()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave these calls to the process again, unless another watch is open."""
        with _GUARD:
            _WATCHES.discard(id(self))
            if self._open and not _WATCHES:
                for place in _PLACES:
                    place.give_back()
            self._open = False


_GUARD = threading.RLock()  # reentrant, since the collector may end a pass amid anything
_WATCHES: set[int] = set()


class _Place:
    """A name in a module of somebody else's, at which something stands in while there are watches."""

    def __init__(self, module: ModuleType, name: str, stand_in: Callable[[Any], Any]) -> None:
        self._module, self._name, self._stand_in = module, name, stand_in
        self._theirs = self._ours = None

    def take(self) -> None:
        self._theirs = getattr(self._module, self._name)
        self._ours = self._stand_in(self._theirs)
        setattr(self._module, self._name, self._ours)

    def give_back(self) -> None:
        if getattr(self._module, self._name) is self._ours:
            setattr(self._module, self._name, self._theirs)


class _DefaultGenerator:
    """Torch's default generator, or in a transform the row's own."""

    def __init__(self, process: torch.Generator) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        mine = Randomness.entered()
        return getattr(self._process if mine is None else mine.generator(), name)

    def manual_seed(self, seed: int) -> torch.Generator:
        """Seed it; a row's on all devices."""
        mine = Randomness.entered()
        return self._process.manual_seed(seed) if mine is None else mine.reseed(seed)


def _unless_in_a_transform(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def seed(*args: Any, **kwargs: Any) -> Any:
        return theirs(*args, **kwargs) if Randomness.entered() is None else None  # the row's is seeded by the others

    return seed


def _state_got(kind: str) -> Callable[[Any], Any]:
    def stand_in(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def get_rng_state(device: Any = kind) -> torch.Tensor:
            mine = Randomness.entered()
            found: torch.Tensor = theirs(device) if mine is None else mine.generator(_device(kind, device)).get_state()
            return found

        return get_rng_state

    return stand_in


def _state_set(kind: str) -> Callable[[Any], Any]:
    def stand_in(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def set_rng_state(new_state: torch.Tensor, device: Any = kind) -> None:
            mine = Randomness.entered()
            if mine is None:
                theirs(new_state, device)
            else:
                mine.generator(_device(kind, device)).set_state(new_state)

        return set_rng_state

    return stand_in


def _device(kind: str, device: Any) -> torch.device:
    return torch.device(kind, device) if isinstance(device, int) else torch.device(device)


def _refused(what: str, instead: str) -> Callable[[Any], Any]:
    def stand_in(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if Randomness.entered() is None:
                return theirs(*args, **kwargs)
            raise RuntimeError(
                f"{what} seeds the generator of the whole process, on which a transform that runs ahead of the loop "
                f"would race the loop: {instead}, or map(..., in_processes=True)"
            )

        return refuse

    return stand_in


_OWN_RNG = "take a parameter named rng, which is a numpy Generator of the row's own"

# Not their setstate: torch's compiler keeps Python's state while it looks at a function, and puts it back.
_PLACES = [
    _Place(torch.random, "default_generator", _DefaultGenerator),
    _Place(torch.cuda, "manual_seed_all", _unless_in_a_transform),
    _Place(torch.cuda, "get_rng_state", _state_got("cuda")),
    _Place(torch.cuda, "set_rng_state", _state_set("cuda")),
    _Place(torch.xpu, "manual_seed_all", _unless_in_a_transform),
    _Place(torch.xpu, "get_rng_state", _state_got("xpu")),
    _Place(torch.xpu, "set_rng_state", _state_set("xpu")),
    _Place(torch.mps, "manual_seed", _unless_in_a_transform),
    _Place(np.random, "seed", _refused("numpy.random.seed", _OWN_RNG)),
    _Place(random, "seed", _refused("random.seed", f"{_OWN_RNG}, or make a random.Random")),
]
