"""Resolves ``device=``, and explains errors of GPUs.

`device_of` raises errors that can be known beforehand: a torch without CUDA, no GPU, a driver that is too old, a
missing device, a worker or a forked process. A loader's `Target` is checked when the loader is made, and opened when a
pass begins. `raise_device_error` explains errors of torch and the driver while a GPU works: exhausted memory, memory
that cannot be pinned, an error of an earlier kernel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils.data import get_worker_info

from memload.device.interface import Interface
from memload.device.torch_interface import torch_interface
from memload.errors import DeviceError, first_line

# Errors after which a process cannot use the GPU any more, by torch's texts and by CUDA's names.
_LASTING = {
    "illegal memory access": "a kernel read or wrote where it had no memory",
    "cudaErrorIllegalAddress": "a kernel read or wrote where it had no memory",
    "device-side assert": "an assertion in a kernel failed, such as an index or a class label that is out of range",
    "cudaErrorAssert": "an assertion in a kernel failed, such as an index or a class label that is out of range",
    "misaligned address": "a kernel read or wrote at an address that does not suit its type",
    "cudaErrorMisalignedAddress": "a kernel read or wrote at an address that does not suit its type",
    "illegal instruction": "a kernel ran into an instruction that is none",
    "cudaErrorIllegalInstruction": "a kernel ran into an instruction that is none",
    "unspecified launch failure": "a kernel was ended by the driver",
    "cudaErrorLaunchFailure": "a kernel was ended by the driver",
    "launch timed out": "a kernel ran longer than this machine's display allows",
    "cudaErrorLaunchTimeout": "a kernel ran longer than this machine's display allows",
    "uncorrectable ECC": "the GPU's memory has a fault",
    "cudaErrorECCUncorrectable": "the GPU's memory has a fault",
}
_DRIVER_FULL = ("CUDA error: out of memory",)  # torch's own allocator says "CUDA out of memory"
_PINNING = ("cudaHostAlloc", "cudaHostRegister", "pin_memory", "pinned memory")


def device_of(given: Any) -> torch.device:
    """Return the device of ``device=``, a CUDA device with its index, after checking that this process may use it.

    Args:
        given: a torch.device, its text such as "cuda", "cuda:1" or "cpu", or the number of a CUDA device.

    Raises:
        TypeError, ValueError: it names no device, or a CUDA device that does not exist.
        DeviceError: torch cannot use a GPU here, or not in this process; the message says why, and what to do.

    Example:
        >>> device_of("cpu")
        device(type='cpu')
    """
    device = named_device(given)
    return _cuda_device(device) if device.type == "cuda" else device


def devices_of(given: Any) -> list[torch.device]:
    """Return the devices of a device, or of several in a sequence, each as `device_of` does.

    Raises:
        ValueError: there is none, one comes twice, or they are not of one kind.
        TypeError, DeviceError: as `device_of`.

    Example:
        >>> devices_of("cpu"), devices_of(["cpu"])
        ([device(type='cpu')], [device(type='cpu')])
    """
    if isinstance(given, str | int | torch.device) or not isinstance(given, Sequence):
        return [device_of(given)]
    found = [device_of(one) for one in given]
    twice = [str(one) for one in dict.fromkeys(found) if found.count(one) > 1]
    if not found or twice or len({one.type for one in found}) > 1:
        got = f"{twice[0]} twice" if twice else f"{list(map(str, found))}"
        raise ValueError(f'several devices are different GPUs, such as ["cuda:0", "cuda:1"]; got {got}')
    return found


def named_device(given: Any) -> torch.device:
    """Return the CPU or CUDA device that ``device=`` names; it need not exist.

    Raises:
        TypeError, ValueError: it names no such device.
    """
    if isinstance(given, bool) or not isinstance(given, str | int | torch.device):
        raise TypeError(f'device= takes a device such as "cuda", "cuda:1" or torch.device("cpu"), got {given!r}')
    try:
        device = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
    except RuntimeError as error:
        raise ValueError(f'device={given!r} is no device of torch\'s; "cuda", "cuda:1" and "cpu" are') from error
    if device.type == "meta":
        raise ValueError('device="meta" has no data, so that no batch can lie there')
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device={given!r}: only CUDA devices and the CPU are served; leave device= out and move batches by .to()"
        )
    return device


def _cuda_device(device: torch.device) -> torch.device:
    if get_worker_info() is not None:
        raise DeviceError(
            f'device="{device}" in a worker process of another loader: batches on a GPU do not go from one process to '
            "another. Leave device= out in the worker, and move batches in the main process"
        )
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        raise DeviceError(
            f'device="{device}": this torch ({torch.__version__}) was built without CUDA. Install a build with CUDA '
            "(https://pytorch.org/get-started), or leave device= out; `memload doctor` shows what is there"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(f'device="{device}": {why_not(first_line(error))}') from error
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise ValueError(no_such_device(index, count, os.environ.get("CUDA_VISIBLE_DEVICES")))
    return torch.device("cuda", index)


def why_not(said: str) -> str:
    """Return why CUDA does not start, and what to do about it.

    Args:
        said: the first line of torch's error.
    """
    if "forked subprocess" in said:
        return (
            "CUDA was in use when this process was forked, and a forked process cannot use it. Start processes by "
            '"spawn" (multiprocessing.set_start_method), or touch no GPU before the fork'
        )
    if "too old" in said:
        return (
            f"the driver is older than this torch wants ({said}). Update the driver, or install a torch for an older "
            "CUDA: CUDA 12 wants driver 525 or newer, CUDA 13 wants 580"
        )
    if "no NVIDIA driver" in said:
        return (
            f"no NVIDIA driver is loaded ({said}). In a container, give it the GPUs (docker run --gpus all); "
            "under a batch scheduler, ask for one; or leave device= out"
        )
    return f"torch cannot start CUDA ({said}). `memload doctor` and nvidia-smi show what is there; or leave device= out"


def no_such_device(index: int, count: int, visible: str | None) -> str:
    """Return the message for a CUDA device that does not exist.

    Args:
        index: the requested number.
        count: the number of devices.
        visible: the environment's CUDA_VISIBLE_DEVICES; None if it is not set.
    """
    there = "there is only cuda:0" if count == 1 else f"there are cuda:0 to cuda:{count - 1}"
    hidden = "" if visible is None else f", since CUDA_VISIBLE_DEVICES={visible!r} shows no others to this process"
    return f"device=cuda:{index} is not there: {there}{hidden}; one process per GPU has its number in LOCAL_RANK"


def raise_device_error(error: RuntimeError, doing: str, device: torch.device) -> NoReturn:
    """Raise an error of torch or the driver again, with its meaning if that is known.

    Args:
        error: the error.
        doing: the action that failed, such as "copying a batch".
        device: the device.

    Raises:
        torch.OutOfMemoryError: the device has no memory left; the type stays torch's, so that code which retries with
            smaller batches still catches it.
        DeviceError: an earlier kernel, mostly of the user's own, broke this process's use of the GPU; or memory could
            not be pinned.
        RuntimeError: the error itself, if it is unknown.
    """
    said = first_line(error)
    if isinstance(error, torch.OutOfMemoryError):
        raise torch.OutOfMemoryError(
            f"{doing} on {device}: no memory left there ({said}). Smaller batches, a smaller depth= or fewer kept "
            "batches take less; memload.plan says beforehand what a loop takes"
        ) from error
    meaning = lasting(str(error))
    if meaning:
        raise DeviceError(
            f"{doing} on {device}: an error that an earlier kernel left behind ({said}): {meaning}. CUDA reports it "
            "at whatever call comes next, here memload's. Run again with CUDA_LAUNCH_BLOCKING=1 to see which kernel "
            "it was; this process cannot use the GPU any more"
        ) from error
    if any(sign in str(error) for sign in _DRIVER_FULL):
        raise DeviceError(
            f"{doing} on {device}: the driver has no memory left ({said}), either of the device, beside what torch has "
            "of it, or of RAM that can be pinned. A smaller depth= or batch takes less of both; nvidia-smi shows who "
            "else is on the device, and a container's memory limit is a limit for pinned RAM, too"
        ) from error
    if any(sign in str(error) for sign in _PINNING):
        raise DeviceError(
            f"{doing} on {device}: memory could not be pinned ({said}). Pinned memory is RAM that nobody else gets: "
            'give a smaller depth= or batch, or leave pin_memory= and tier="pinned" out'
        ) from error
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame, which would keep the error


def lasting(said: str) -> str:
    """Return the meaning of an error after which the process cannot use the GPU any more; "" for other errors.

    Args:
        said: the message of torch, or of a kernel's launcher.
    """
    return next((meaning for sign, meaning in _LASTING.items() if sign.lower() in said.lower()), "")


@dataclass(frozen=True)
class Target:
    """A device that batches go to.

    Attributes:
        wanted: a CUDA device (without an index: the current one when a pass begins), or an interface.
    """

    wanted: torch.device | Interface

    @property
    def on_cuda(self) -> bool:
        """Whether the target is a GPU."""
        return isinstance(self.wanted, torch.device)

    def open(self, kept: Interface | None = None) -> Interface:
        """Return an interface of the device for one pass, whose streams no other pass has.

        Args:
            kept: that of an earlier pass, which has ended. If it is of this device, it serves again: torch's allocator
                has memory of batches for its streams, which it gives to no other stream.

        Raises:
            DeviceError: CUDA cannot be used in this process.
        """
        if not isinstance(self.wanted, torch.device):
            return self.wanted.own_streams() if kept is None else kept
        device = device_of(self.wanted)
        return kept if kept is not None and kept.device == device else torch_interface(device.index)

    def __str__(self) -> str:
        return str(self.wanted) if isinstance(self.wanted, torch.device) else str(self.wanted.device)


def checked_target(device: Any) -> Target | None:
    """Return the target of a loader's ``device=``; None: batches stay on the CPU.

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
        device_of(named)  # raises an error with the reason
    if named.index is not None and named.index >= found:
        raise ValueError(no_such_device(named.index, found, os.environ.get("CUDA_VISIBLE_DEVICES")))
    return Target(named)
