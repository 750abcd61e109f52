"""Casts of whole tensors by native code, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from memload.cast_rule import Cast

Memory = Callable[[int], torch.Tensor]
"""Lends so many bytes: a uint8 tensor with one axis, aligned to 64."""


def cast_tensor(
    x: torch.Tensor, rule: Cast, seeds: Sequence[int] | None = None, memory: Memory | None = None
) -> torch.Tensor:
    """Return ``rule.apply(x, seeds)``.

    Args:
        x: a batch.
        rule: what becomes of it.
        seeds: where the rule draws, one for each row.
        memory: lends that of the result; None: it is fresh.

    Raises:
        TypeError, ValueError: as `Cast.apply`.
    """
    made = rule.apply(x, seeds)
    if memory is None or made.numel() == 0:
        return made
    return memory(made.nbytes).view(made.dtype).view(made.shape).copy_(made)
