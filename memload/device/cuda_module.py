"""Loads the CUDA module at its first use, and checks whether it runs on a device and whether the driver is new enough.

Sources: "CUDA Compatibility, Minor Version Compatibility", docs.nvidia.com/deploy/cuda-compatibility, for the oldest
driver of each toolkit; `/proc/driver/nvidia/version` for the loaded driver.
"""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

_OLDEST_CAPABILITY = (7, 5)


@dataclass(frozen=True)
class CudaState:
    """Whether `memload._cuda` casts on a CUDA device, or torch operations do the work instead.

    Attributes:
        usable: the kernels run on this device with this driver.
        reason: why they do not, as a phrase; empty if they do.
        architectures: compute capabilities for which the module holds machine code, such as (75, 80); empty if it was
            not built.
        toolkit: version of the CUDA toolkit that built it, such as "13.0"; empty if it was not built.
    """

    usable: bool
    reason: str
    architectures: tuple[int, ...] = ()
    toolkit: str = ""


def cuda_state(device: int = 0) -> CudaState:
    """Return whether the CUDA kernels run on device number ``device``, and if not, the reason.

    The first call starts CUDA on that device if torch sees one, which takes some 100 ms and some 100 MB of its memory;
    further calls cost nothing.

    Example:
        >>> state = cuda_state()
        >>> state.usable or state.reason != ""
        True
    """
    try:
        module = cuda_module()
    except ImportError as error:
        return CudaState(False, f"memload._cuda cannot be imported ({error}); it is built when nvcc is found")
    architectures = tuple(int(architecture) for architecture in module.architectures.split())
    toolkit = str(getattr(module, "toolkit", ""))  # older modules have none
    if not torch.cuda.is_available():
        return CudaState(False, "torch finds no CUDA device", architectures, toolkit)
    reason = _unusable_reason(device)
    return CudaState(reason == "", reason, architectures, toolkit)


def cuda_module() -> ModuleType:
    """Return `memload._cuda`.

    Raises:
        ImportError: it was not built, or its libraries do not load.
    """
    from memload import _cuda

    return _cuda


@functools.cache
def _unusable_reason(device: int) -> str:
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST_CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, below 7.5"
    with torch.cuda.device(device):  # torch, not the module, switches the current device, and switches back
        return str(cuda_module().unusable_reason(device))


@functools.cache
def kernels_run_on(device: int) -> bool:
    """Return whether the kernels run on an existing device; checked once, with a warning if they do not."""
    state = cuda_state(device)
    if not state.usable:
        warn_of_fallback(state.reason)
    return state.usable


@functools.cache
def warn_of_fallback(reason: str) -> None:
    """Warn once in this process, for each reason, that torch operations replace the kernels."""
    warnings.warn(
        f"cast_stim on CUDA runs through torch operations, which give the same values several times slower: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for programs built with a CUDA toolkit of each major version."""

_ROOT = Path("/")


def driver_version(root: Path = _ROOT) -> str | None:
    """Return the version of the loaded NVIDIA driver, such as "580.65.06"; None without a driver."""
    try:
        return parse_version((root / "proc/driver/nvidia/version").read_text())
    except OSError:
        return None


def parse_version(text: str) -> str | None:
    """Return the version in a `/proc/driver/nvidia/version`.

    Example:
        >>> parse_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:13:49 UTC 2025")
        '580.65.06'
    """
    found = re.search(r"\s(\d{3,}(?:\.\d+)+)\s", text)
    return found[1] if found else None


def too_old(driver: str, toolkit: str) -> str:
    """Return why a driver is too old for modules of a CUDA toolkit; "" if it is not.

    Example:
        >>> too_old("535.129.03", "13.0")
        'driver 535.129.03 is older than 580, the oldest for CUDA 13'
        >>> too_old("580.65.06", "12.4")
        ''
    """
    major = int(toolkit.partition(".")[0])
    oldest = OLDEST_DRIVERS.get(major, 0)
    if int(driver.partition(".")[0]) >= oldest:
        return ""
    return f"driver {driver} is older than {oldest}, the oldest for CUDA {major}"
