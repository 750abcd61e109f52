"""Where a loader's batches go: what ``device=`` may be, checked when the loader is made, and opened when a pass begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info

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
            RuntimeError: CUDA cannot be used in this process.
        """
        if not isinstance(self.wanted, torch.device):
            return self.wanted
        if get_worker_info() is not None:
            raise RuntimeError(
                f"device={str(self.wanted)!r}: this loader is used inside a worker process of another one, and worker "
                "processes hand out CPU tensors; leave device= out there, and give it to the loader outside"
            )
        try:
            index = torch.cuda.current_device() if self.wanted.index is None else self.wanted.index
            return torch_interface(index)
        except RuntimeError as error:
            raise RuntimeError(
                f"device={str(self.wanted)!r} cannot be used in this process: {error}. A process that was forked after "
                "CUDA was used cannot use it: start processes by 'spawn', or use the device in one of them alone"
            ) from error

    def __str__(self) -> str:
        return str(self.wanted) if isinstance(self.wanted, torch.device) else str(self.wanted.device)


def checked_target(device: Any) -> Target | None:
    """Return where the ``device=`` of a loader is; None: batches stay on the CPU.

    Raises:
        TypeError: it is no device.
        ValueError: it is of another kind than CUDA, or has an index that does not exist.
        RuntimeError: torch finds no CUDA device.

    Example:
        >>> checked_target("cpu") is None
        True
    """
    if device is None:
        return None
    if not isinstance(device, str | int | torch.device):
        if isinstance(device, Interface):
            return Target(device)
        raise TypeError(f'device= takes a device, such as "cuda" or torch.device("cuda", 1); got {device!r}')
    try:
        wanted = torch.device(device) if not isinstance(device, int) else torch.device("cuda", device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is no device that torch knows: {error}") from error
    if wanted.type == "cpu":
        return None
    if wanted.type != "cuda":
        raise ValueError(f"device={device!r}: only CUDA devices are served; leave device= out and move batches by .to()")
    _check_there(wanted)
    return Target(wanted)


def _check_there(wanted: torch.device) -> None:
    found = torch.cuda.device_count()
    if found == 0:
        built = "" if torch.version.cuda else f", since torch {torch.__version__} is built without CUDA"
        raise RuntimeError(
            f"device={str(wanted)!r}: torch finds no CUDA device{built}; leave device= out to get batches on the CPU, "
            "or see `memload doctor`"
        )
    if wanted.index is not None and wanted.index >= found:
        raise ValueError(
            f"device={str(wanted)!r} does not exist: torch finds {found} CUDA device{'s' * (found > 1)}, "
            f"cuda:0 to cuda:{found - 1}"
        )
