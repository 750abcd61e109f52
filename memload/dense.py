"""Whether a tensor is one run of memory."""

from __future__ import annotations

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one run of memory, in any order of dimensions.

    Example:
        >>> is_dense(torch.zeros(3, 4).T), is_dense(torch.zeros(3, 4)[:, :2])
        (True, False)
    """
    expected = 1
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for step, side in sorted((step, side) for step, side in axes if side != 1):
        if step != expected:
            return tensor.numel() == 0
        expected *= side
    return True
