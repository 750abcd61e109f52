"""The interface of the GPU path to a device, and to memory that a device reads by itself.

    pinned() --copy--> empty()          in `copies`, the stream of all copies to this device
               record, wait             events order gather -> copy -> work -> the loop's own stream
    launch()                            casts, in `work`
    call()                              transforms, in the loop's own stream
    hold()                              memory is not reused before another stream is done with it

`torch_interface` implements it for GPUs through torch. Tests have a simulated device, whose copies are late and out of
step, so that each missing step is detected there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from memload import _core
from memload.device.numa import NumaNode


@runtime_checkable
class HostMemory(Protocol):
    """Memory that the device reads by itself. Any thread may call it."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised pinned memory, uint8 (nbytes,).

        Freed memory is reused only after every copy from it, or from a view of it, is done.
        """

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in pinned memory that is so protected."""


@runtime_checkable
class Interface(HostMemory, Protocol):
    """One device. Streams and events are values of its own kind. Nothing here waits for the whole device."""

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""

    @property
    def native(self) -> _core.Device | None:
        """The native device through which threads copy while they gather; None: `copy` copies whole batches."""

    @property
    def why_not_native(self) -> str:
        """The reason why `native` is None, as a sentence; else empty."""

    @property
    def near(self) -> NumaNode | None:
        """The NUMA node that pinned slots should lie on; None: the machine has one node, or it is not known."""

    @property
    def copies(self) -> Any:
        """The stream in which everything is copied to the device."""

    @property
    def work(self) -> Any:
        """The stream in which batches are cast."""

    def own_streams(self) -> Interface:
        """Return an interface to the same device for one user, whose `copies` and `work` nobody else has meanwhile."""

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""

    def current(self) -> Any:
        """Return the current stream of the calling thread."""

    def handle(self, stream: Any) -> int:
        """Return the native handle of a stream, as an integer."""

    def empty(self, nbytes: int, stream: Any) -> torch.Tensor:
        """Return uninitialised memory of the device, uint8 (nbytes,), that belongs to a stream.

        When it is freed, later work in that stream reuses it.
        """

    def copy(self, to: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Copy a pinned CPU tensor to one of the device, of like dtype and shape, in the order of a stream."""

    def launch(self, stream: Any, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function whose torch operations on the device run in the order of a stream; return what it returns.

        New tensors that it returns belong to that stream.
        """

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function as the loop itself would: its torch operations run in the calling thread's current stream."""

    def record(self, stream: Any) -> Any:
        """Return an event that occurs after everything that is queued in the stream now."""

    def timestamp(self, stream: Any) -> Any:
        """Return an event like that of `record` that keeps the time at which it occurs, for `seconds_between` alone."""

    def seconds_between(self, first: Any, second: Any) -> float | None:
        """Return the seconds from one timestamp to another; None: they have not both occurred. It does not wait."""

    def wait(self, stream: Any, event: Any) -> None:
        """Make everything queued in a stream from now on run after an event."""

    def follow(self, stream: Any, other: Any) -> None:
        """Make everything queued in a stream from now on run after everything that is queued in another now."""

    def done(self, event: Any) -> bool:
        """Return whether an event has occurred, without waiting."""

    def synchronise(self, event: Any) -> None:
        """Wait, without Python's lock, until an event has occurred."""

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep the memory of a freed tensor until a stream has finished the work queued at that time.

        This is for streams other than the one that the memory belongs to.
        """
