"""Helpers for tensors, and for torch's default device."""

from __future__ import annotations

import contextlib

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill one contiguous range of memory, in any order of dimensions.

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


def on_default(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which `device` is the default device of this thread; for the CPU it costs nothing."""
    return contextlib.nullcontext() if device.type == "cpu" else device
