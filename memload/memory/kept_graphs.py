"""What results Python holds together with the graph that autograd made of them."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KeptGraphs:
    """How many tensors there are that a backward pass could begin at.

    Attributes:
        results: all of them.
        losses: those of a single element.
    """

    results: int = 0
    losses: int = 0


def kept_graphs() -> KeptGraphs:
    """Return how many there are.

    A look at all objects of the process, of which a million take some ten milliseconds: for once, not for every look.
    What is not of torch's own class is passed over, since asking it anything may run anybody's code.
    """
    found = [one.numel() == 1 for one in gc.get_objects() if type(one) is torch.Tensor and one.grad_fn is not None]
    return KeptGraphs(len(found), sum(found))
