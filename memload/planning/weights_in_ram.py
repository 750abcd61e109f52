"""The RAM of weights until they are where they are used, by the way on which they get there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from memload.planning.account import Line
from memload.planning.allocations import nbytes_of
from memload.planning.frozen import weights_of
from memload.planning.precisions import WEIGHTS

ON_THEIR_WAY = "weights on their way"
"""The line of weights that are in RAM only until they are where they are used."""


def coming_lines(modules: Sequence[torch.nn.Module], way: str, counted: int) -> tuple[Line, ...]:
    """Return the line of weights that pass through RAM to a GPU; none if there are none.

    Args:
        modules: the models; what is on a GPU already has passed.
        way: one of `WEIGHTS`.
        counted: bytes of their weights in RAM that other lines count.
    """
    copies = WEIGHTS[way]
    nbytes = copies * _off_gpus(modules) - min(copies, 1) * counted
    note = "in RAM before they are on the GPU" if copies == 1 else "the model, and the file that it is loaded from"
    return (Line(ON_THEIR_WAY, nbytes, f'{note}; weights="mmap" needs none'),) if nbytes > 0 else ()


def file_lines(modules: Sequence[torch.nn.Module], way: str, later: int) -> tuple[Line, ...]:
    """Return the line of a file in RAM from which weights on the CPU are loaded, beyond bytes that come later."""
    beyond = weights_of(modules) - later
    if way != "state_dict" or beyond <= 0:
        return ()
    return (Line(ON_THEIR_WAY, beyond, "the file that they are loaded from, beyond what a step takes"),)


def _off_gpus(modules: Sequence[torch.nn.Module]) -> int:
    tensors = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
    return nbytes_of(tensor for tensor in tensors if tensor.device.type in ("cpu", "meta"))
