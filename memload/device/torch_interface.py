"""The GPU path's device interface, through torch.cuda. It has not run on a GPU yet."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from memload import _core
from memload.device.cuda_module import cuda_module


class TorchHostMemory:
    """Pinned memory of torch's own allocator, which alone knows the copies in flight."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised pinned memory, uint8 (nbytes,)."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in pinned memory."""
        return tensor.is_pinned()


class TorchInterface(TorchHostMemory):
    """A CUDA device. See `memload.device.interface.Interface`; made by `torch_interface`."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self.copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.work = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.native, self.why_not_native = _native(index)

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device == self.device

    def current(self) -> torch.cuda.Stream:
        """Return the calling thread's current stream."""
        return torch.cuda.current_stream(self.device)

    def handle(self, stream: torch.cuda.Stream) -> int:
        """Return the address of the stream's cudaStream_t."""
        return int(stream.cuda_stream)

    def empty(self, nbytes: int, stream: torch.cuda.Stream) -> torch.Tensor:
        """Return memory of torch's allocator that belongs to a stream."""
        with torch.cuda.stream(stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def copy(self, to: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Copy in the order of a stream; torch notes that the pinned memory is read until then."""
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def launch(self, stream: torch.cuda.Stream, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function with the stream as the current one."""
        with torch.cuda.stream(stream):
            return fn(*args)

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function; the current stream stays as it is."""
        return fn(*args)

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Return an event of the stream; a thread that waits for it sleeps instead of spinning."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Let a stream wait for an event."""
        stream.wait_event(event)

    def done(self, event: torch.cuda.Event) -> bool:
        """Return whether an event has occurred."""
        return bool(event.query())  # type: ignore[no-untyped-call]

    def synchronise(self, event: torch.cuda.Event) -> None:
        """Wait for an event."""
        event.synchronize()

    def hold(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Tell torch's allocator that a stream uses the tensor."""
        tensor.record_stream(stream)


@functools.cache
def torch_interface(index: int) -> TorchInterface:
    """Return the only interface of a CUDA device; torch's allocator separates memory by streams."""
    return TorchInterface(index)


def _native(index: int) -> tuple[_core.Device | None, str]:
    try:
        module = cuda_module()
    except ImportError as error:
        return None, f"memload._cuda cannot be imported ({error}); it is built when nvcc is found"
    try:
        return _core.Device(module.device(index)), ""
    except (RuntimeError, AttributeError, TypeError) as error:
        return None, str(error)
