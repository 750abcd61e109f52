"""What results Python holds together with the graph that autograd made of them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class KeptGraphs:
    """How many tensors there are that a backward pass could begin at.

    Attributes:
        results: all of them.
        losses: those of a single element.
        lasting: of those that one step of a loop made, how many were still there two steps later.
    """

    results: int = 0
    losses: int = 0
    lasting: int = 0


def kept_graphs() -> KeptGraphs:
    """Return how many there are.

    A look at all objects of the process, of which a million take some ten milliseconds: for once, not for every look.
    What is not of torch's own class is passed over, since asking it anything may run anybody's code.
    """
    found = _results()
    return KeptGraphs(len(found), sum(one.numel() == 1 for one in found))


def _results() -> list[torch.Tensor]:
    return [one for one in gc.get_objects() if type(one) is torch.Tensor and one.grad_fn is not None]


class GraphsOverSteps:
    """Sees over some steps of a loop which results last: a loop may hold those of its last step, but no older ones.

    One thread asks; the loop's thread, which alone knows where a step ends, looks three times, and then never again.
    """

    def __init__(self) -> None:
        self._asked = False
        self._turns = 0
        self._before: list[weakref.ref[torch.Tensor]] = []
        self._new: list[weakref.ref[torch.Tensor]] = []
        self._found: KeptGraphs | None = None

    def get(self, ended: bool = False) -> KeptGraphs | None:
        """Return what there is; None: it is not known before some steps more.

        Args:
            ended: whether no step will follow, so that only what is there now can be counted.
        """
        self._asked = True
        if self._found is None and ended:
            self._found = kept_graphs()
        return self._found

    def turn(self) -> None:
        """Look, if somebody asked, between two steps."""
        if not self._asked or self._found is not None:
            return
        self._turns += 1
        if self._turns == 1:
            self._before = [weakref.ref(one) for one in _results()]
        elif self._turns == 2:
            before = {id(one) for ref in self._before if (one := ref()) is not None}
            self._new = [weakref.ref(one) for one in _results() if id(one) not in before]
        elif self._turns == 4:
            lasting = sum(ref() is not None for ref in self._new)
            self._found = replace(kept_graphs(), lasting=lasting)
            self._before, self._new = [], []
