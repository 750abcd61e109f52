"""Where a loader's batches go: ``device=``, checked when the loader is made, and opened when a pass begins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from memload.gpu.devices import device_of, no_such_device
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
        TypeError: it is no device.
        ValueError: it is of another kind than CUDA, or has an index that does not exist.
        DeviceError: torch finds no CUDA device.

    Example:
        >>> checked_target("cpu") is None
        True
    """
    if device is None:
        return None
    if isinstance(device, Interface):
        return Target(device)
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"
    named = torch.device(device) if _names_cuda(device) else device_of(device)
    if named.type == "cpu":
        return None
    if named.type != "cuda":
        raise ValueError(
            f"device={device!r}: only CUDA devices are served; leave device= out and move batches by .to()"
        )
    found = torch.cuda.device_count()
    if found == 0:
        device_of(named)  # which says why
    if named.index is not None and named.index >= found:
        raise ValueError(no_such_device(named.index, found, os.environ.get("CUDA_VISIBLE_DEVICES")))
    return Target(named)


def _names_cuda(device: Any) -> bool:
    return str(device).split(":")[0] == "cuda" and isinstance(device, str | torch.device)
