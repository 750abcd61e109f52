"""How many results Python holds together with the graph that autograd made of them."""

from __future__ import annotations

import gc

import torch


def kept_graphs() -> int:
    """Return how many tensors there are that a backward pass could begin at.

    A look at all objects of the process, of which a million take some ten milliseconds: for once, not for every look.
    What is not of torch's own class is passed over, since asking it anything may run anybody's code.
    """
    return sum(1 for one in gc.get_objects() if type(one) is torch.Tensor and one.grad_fn is not None)
