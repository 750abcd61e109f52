"""Where a loader's batches go: ``device=``, checked when the loader is made, and opened when a pass begins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from memload.gpu.devices import device_of, named_device, no_such_device
from memload.gpu.interface import Interface
from memload.gpu.torch_interface import torch_interface


@dataclass(frozen=True)
class Target:
    """A device that batches go to.

    Attributes:
        wanted: a CUDA device, without an index the one that is current when a pass begins; or an interface.
    """

    wanted: torch.device | Interface

    @property
    def on_cuda(self) -> bool:
        """Whether it is a GPU."""
        return isinstance(self.wanted, torch.device)

    def open(self) -> Interface:
        """Return the device's interface.

        Raises:
            DeviceError: CUDA cannot be used in this process.
        """
        if not isinstance(self.wanted, torch.device):
            return self.wanted
        device = device_of(self.wanted)
        return torch_interface(device.index)

    def __str__(self) -> str:
        return str(self.wanted) if isinstance(self.wanted, torch.device) else str(self.wanted.device)


def checked_target(device: Any) -> Target | None:
    """Return where the ``device=`` of a loader is; None: batches stay on the CPU.

    CUDA is not started, since processes may be forked before the first pass begins.

    Raises:
        TypeError, ValueError: it is no device, of another kind than CUDA, or has an index that does not exist.
        DeviceError: torch finds no CUDA device.

    Example:
        >>> checked_target("cpu") is None
        True
    """
    if device is None:
        return None
    if isinstance(device, Interface):
        return Target(device)
    named = named_device(device)
    if named.type == "cpu":
        return None
    found = torch.cuda.device_count()
    if found == 0:
        device_of(named)  # which says why
    if named.index is not None and named.index >= found:
        raise ValueError(no_such_device(named.index, found, os.environ.get("CUDA_VISIBLE_DEVICES")))
    return Target(named)
