"""Helpers for tensors, torch's default device and its random generators."""

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


def default_generator() -> torch.Generator:
    """Return the generator that torch's random functions use on the default device."""
    device = torch.get_default_device()
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    found: torch.Generator = generators[device.index or 0] if generators else torch.default_generator
    return found


def on_default(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which `device` is the default device of this thread; for the CPU it costs nothing."""
    return contextlib.nullcontext() if device.type == "cpu" else device


def drawn_seed(generator: torch.Generator | None) -> int:
    """Draw a seed as torch's samplers and iterators do, which leaves the generator in the same state as theirs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def peeked_seed(generator: torch.Generator | None) -> int:
    """Return the seed that would be drawn next, without drawing it."""
    source = default_generator() if generator is None else generator
    return drawn_seed(source.clone_state())
