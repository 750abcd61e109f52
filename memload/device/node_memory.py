"""Memory that processes of one machine share: of their GPUs, and RAM.

    the owner: export() -> memory, handle --bytes--> the others: open() -> the same memory
    the owner: free(), after all others have closed it       the others: close()

GPU memory travels by CUDA's inter-process handles, RAM as a file without a name.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.dlpack import from_dlpack

from memload import _core
from memload.device.cuda_module import cuda_module
from memload.errors import DeviceError, MemorySpaceError
from memload.sizes import format_size


@dataclass(frozen=True)
class Exported:
    """Memory of this process that others can open.

    Attributes:
        memory: uint8 (nbytes,), uninitialised.
        handle: what other processes open it by.
        free: frees it; nobody may read it any more.
    """

    memory: torch.Tensor
    handle: Any
    free: Callable[[], None]


@dataclass(frozen=True)
class Opened:
    """Memory of another process.

    Attributes:
        memory: uint8 (nbytes,).
        close: closes it; nobody in this process may read it any more.
    """

    memory: torch.Tensor
    close: Callable[[], None]


class NodeMemory(Protocol):
    """Memory of one device that other processes of the machine can open."""

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""

    def export(self, nbytes: int) -> Exported:
        """Return new memory of the device. Raises DeviceError."""

    def open(self, handle: Any, nbytes: int) -> Opened:
        """Return the memory of another process, as a tensor that the device reads. Raises DeviceError."""


class GpuNodeMemory:
    """Memory of a CUDA device, apart from torch's allocator, whose blocks may have no handles.

    Args:
        device: the device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def export(self, nbytes: int) -> Exported:
        """Return new memory of the device. Raises MemorySpaceError, DeviceError."""
        module, index = _cuda(), self.device.index
        if nbytes > torch.cuda.mem_get_info(index)[0]:
            torch.cuda.empty_cache()  # what torch keeps for later tensors
        try:
            address, handle = module.allocate_shared(nbytes, index)
        except RuntimeError as error:
            if "out of memory" in str(error):  # another process of this GPU was quicker
                free = torch.cuda.mem_get_info(index)[0]
                raise MemorySpaceError(
                    f"{format_size(nbytes)} do not fit on {self.device}, which has {format_size(free)} free: give less "
                    "of them by bytes=",
                    need=nbytes,
                    free=free,
                ) from error
            raise DeviceError(_refused(f"{format_size(nbytes)} of {self.device} cannot be shared", error)) from error
        return Exported(self._seen(address, nbytes), handle, functools.partial(module.free_shared, address, index))

    def open(self, handle: bytes, nbytes: int) -> Opened:
        """Return the memory of another process, wherever it lies, as a tensor of this device."""
        module, index = _cuda(), self.device.index
        try:
            address = module.open_shared(handle, index)
        except RuntimeError as error:
            what = f"{self.device} cannot read {format_size(nbytes)} of another process's GPU"
            raise DeviceError(_refused(what, error)) from error
        return Opened(self._seen(address, nbytes), functools.partial(module.close_shared, address, index))

    def _seen(self, address: int, nbytes: int) -> torch.Tensor:
        return from_dlpack(_core.gpu_view(address, nbytes, self.device.index))


def _cuda() -> Any:
    try:
        return cuda_module()
    except ImportError as error:
        raise DeviceError(
            f"processes share the memory of GPUs through memload._cuda, which cannot be imported ({error}); `memload "
            "doctor` says why. Without group= each process loads rows of its own"
        ) from error


def _refused(what: str, error: RuntimeError) -> str:
    return (
        f"{what} ({error}). Processes share GPU memory by CUDA's inter-process handles: they run in one container, or "
        "in containers with --ipc=host and --pid=host; GPUs can read each other (`nvidia-smi topo -p2p r`), and are "
        "not MIG instances. Without group= each process loads rows of its own"
    )


class HostNodeMemory:
    """RAM in the place of a device's memory, to try sharing without a GPU."""

    device = torch.device("cpu")

    def export(self, nbytes: int) -> Exported:
        """Return new RAM."""
        file = SharedFile.create(nbytes)
        file.reserve(0, nbytes)
        return Exported(file.mapped(), file.path, file.close)

    def open(self, handle: str, nbytes: int) -> Opened:
        """Return the RAM of another process."""
        file = SharedFile.open(handle, nbytes)
        memory = file.mapped()
        file.close()
        return Opened(memory, lambda: None)


class SharedFile:
    """RAM without a name in any folder, which processes of one machine map; it is gone with the last of them.

    Args:
        fd: its descriptor, which this object closes.
        nbytes: its size.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd, self.nbytes = fd, nbytes
        self.path = f"/proc/{os.getpid()}/fd/{fd}"

    @classmethod
    def create(cls, nbytes: int) -> SharedFile:
        """Return a new file of so many zeros, which take no memory before they are reserved or written."""
        fd = os.memfd_create("memload", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        return cls(fd, nbytes)

    @classmethod
    def open(cls, path: str, nbytes: int) -> SharedFile:
        """Open the file of another process by its `path`. Raises DeviceError."""
        try:
            return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), nbytes)
        except OSError as error:
            raise DeviceError(
                f"the shared memory of another process cannot be opened ({error}): processes of a group run on one "
                "machine, as one user, and in one container or with --pid=host"
            ) from error

    def reserve(self, begin: int, end: int) -> None:
        """Take memory for these bytes now, so that a lack of it is an error and no signal. Raises DeviceError."""
        if begin == end:
            return
        try:
            os.posix_fallocate(self._fd, begin, end - begin)
        except OSError as error:
            raise DeviceError(f"{format_size(end - begin)} of shared RAM are not to be had: {error}") from error

    def mapped(self) -> torch.Tensor:
        """Return all of it: uint8 (nbytes,), which processes that are forked later do not have."""
        if not self.nbytes:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        memory = mmap.mmap(self._fd, self.nbytes)
        memory.madvise(mmap.MADV_DONTFORK)
        with contextlib.suppress(OSError):  # without huge pages it is slower, no more
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def lock(self) -> None:
        """Say that this process reads; it says so until it closes the file, or ends in whatever way."""
        fcntl.lockf(self._fd, fcntl.LOCK_SH)

    def is_read(self) -> bool:
        """Whether another process says that it reads."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
