"""What the GPU path asks of a device, and of memory that a device reads by itself.

    pinned() --copy--> empty()          in `copies`, the stream of all copies to this device
               record, wait             events order gather -> copy -> work -> the loop's own stream
    launch()                            casts and transforms, in `work`
    hold()                              memory is not used again before a stream of somebody else's is done with it

`torch_interface` serves GPUs through torch. Tests have a simulated device, whose copies are late and out of step: every
step that is left out shows there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from memload import _core


@runtime_checkable
class HostMemory(Protocol):
    """Memory that the device reads by itself. Any thread may call it."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised pinned memory, uint8 (nbytes,).

        What dies is used again only when every copy that was made from it, or from a view of it, is done.
        """

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in pinned memory that is so protected."""


@runtime_checkable
class Interface(HostMemory, Protocol):
    """One device. Streams and events are values of its own kind. Nothing here waits for the whole device."""

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""

    @property
    def native(self) -> _core.Device | None:
        """What native threads copy through, while batches are gathered; None: batches are copied whole, by `copy`."""

    @property
    def why_not_native(self) -> str:
        """Why `native` is None, as a sentence; else empty."""

    @property
    def copies(self) -> Any:
        """The stream in which everything is copied to the device."""

    @property
    def work(self) -> Any:
        """The stream in which batches are cast and transformed."""

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""

    def current(self) -> Any:
        """Return the stream into which the calling thread puts its own work."""

    def handle(self, stream: Any) -> int:
        """Return the number by which native code knows a stream."""

    def empty(self, nbytes: int, stream: Any) -> torch.Tensor:
        """Return uninitialised memory of the device, uint8 (nbytes,), that belongs to a stream.

        When it dies it is used again, by what comes later in that stream.
        """

    def copy(self, to: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Copy a pinned CPU tensor to one of the device, of like dtype and shape, in the order of a stream."""

    def launch(self, stream: Any, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function whose torch operations on the device run in the order of a stream; return what it returns.

        New tensors that it returns belong to that stream.
        """

    def record(self, stream: Any) -> Any:
        """Return an event: what is in the stream by now."""

    def wait(self, stream: Any, event: Any) -> None:
        """Make everything queued in a stream from now on run after an event."""

    def done(self, event: Any) -> bool:
        """Whether an event has come, without waiting."""

    def synchronise(self, event: Any) -> None:
        """Wait, without Python's lock, until an event has come."""

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Use the memory of a tensor of the device again only when a stream is done with what is in it when that dies.

        For streams other than the one that the memory belongs to.
        """
