"""What torch does where it is told no device.

What memload makes for itself lies on the CPU, whatever `torch.set_default_device` says; draws that stand for a stock
loader's are made where that loader would make them.
"""

from __future__ import annotations

import contextlib

import torch


def default_generator() -> torch.Generator:
    """Return the generator that torch's random functions use on the default device."""
    device = torch.get_default_device()
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    found: torch.Generator = generators[device.index or 0] if generators else torch.default_generator
    return found


def on_default(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which this is the default device, which each thread has for itself; the CPU costs nothing."""
    return contextlib.nullcontext() if device.type == "cpu" else device
