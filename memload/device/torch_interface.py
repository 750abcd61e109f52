"""The GPU path's device interface, through torch.cuda."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from memload import _core
from memload.device.cuda_module import cuda_module
from memload.device.numa import NumaNode, node_of_gpu
from memload.device.streams import StreamPairs


class TorchHostMemory:
    """Pinned memory of torch's own allocator, which alone knows the copies in flight."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised pinned memory, uint8 (nbytes,)."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a CPU tensor lies in pinned memory."""
        return tensor.is_pinned()


class TorchInterface(TorchHostMemory):
    """A CUDA device, with a pair of streams that it alone has. See `memload.device.interface.Interface`.

    Args:
        index: the number of the device.
        pairs: the pairs of streams of this device.
        why_not_native: why torch, and not native code, makes streams and events; see `torch_interface`.
    """

    native: _core.Device | None = None

    def __init__(self, index: int, pairs: StreamPairs, why_not_native: str = "") -> None:
        self.device = torch.device("cuda", index)
        self._pairs, self.why_not_native = pairs, why_not_native
        self._pair = pairs.lease()
        self.copies: torch.cuda.Stream = self._pair.copies
        self.work: torch.cuda.Stream = self._pair.work

    @property
    def near(self) -> NumaNode | None:
        """The NUMA node of the GPU, on a machine with several."""
        return node_of_gpu(self.device.index)

    def own_streams(self) -> TorchInterface:
        """Return another interface to this device, with a pair of streams that nobody else has."""
        return TorchInterface(self.device.index, self._pairs, self.why_not_native)

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
        memory: torch.Tensor = self.launch(stream, torch.empty, nbytes, dtype=torch.uint8, device=self.device)
        return memory

    def copy(self, to: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Copy in the order of a stream; torch notes that the pinned memory is read until then."""
        self.launch(stream, to.copy_, source, non_blocking=True)

    def launch(self, stream: torch.cuda.Stream, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function with the stream as the current one."""
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.stream(stream):
                return fn(*args, **options)
        before = self.current()  # torch's own context asks for this twice, and for the device
        torch.cuda.set_stream(stream)
        try:
            return fn(*args, **options)
        finally:
            torch.cuda.set_stream(before)

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function; the current stream stays as it is."""
        return fn(*args)

    def record(self, stream: torch.cuda.Stream) -> Any:
        """Return an event of the stream; a thread that waits for it sleeps instead of spinning."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def timestamp(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Return an event of the stream that keeps its time."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def seconds_between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float | None:
        """Return the seconds between two timestamps; None: they have not both occurred."""
        if not (first.query() and second.query()):  # type: ignore[no-untyped-call]
            return None
        return float(first.elapsed_time(second)) / 1e3

    def wait(self, stream: torch.cuda.Stream, event: Any) -> None:
        """Let a stream wait for an event."""
        stream.wait_event(event)

    def follow(self, stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        """Let a stream wait for what is queued in another now."""
        stream.wait_stream(other)

    def done(self, event: Any) -> bool:
        """Return whether an event has occurred."""
        return bool(event.query())

    def synchronise(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()

    def hold(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Tell torch's allocator that a stream uses the tensor."""
        tensor.record_stream(stream)


class NativeInterface(TorchInterface):
    """A CUDA device whose events are those of native code, which cost less than torch's.

    Args:
        index, pairs: as `TorchInterface` takes them.
        native: the native device.
    """

    def __init__(self, index: int, pairs: StreamPairs, native: _core.Device) -> None:
        super().__init__(index, pairs)
        self.native: _core.Device = native

    def own_streams(self) -> NativeInterface:
        """Return another interface to this device, with a pair of streams that nobody else has."""
        return NativeInterface(self.device.index, self._pairs, self.native)

    def record(self, stream: torch.cuda.Stream) -> _core.DeviceEvent:
        """Return an event of the stream; a thread that waits for it sleeps instead of spinning."""
        return self.native.record(stream.cuda_stream)

    def wait(self, stream: torch.cuda.Stream, event: _core.DeviceEvent) -> None:
        """Let a stream wait for an event."""
        self.native.wait(stream.cuda_stream, event)

    def follow(self, stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        """Let a stream wait for what is queued in another now."""
        self.native.follow(stream.cuda_stream, other.cuda_stream)

    def done(self, event: _core.DeviceEvent) -> bool:
        """Return whether an event has occurred."""
        return self.native.done(event)

    def synchronise(self, event: _core.DeviceEvent) -> None:
        """Wait for an event."""
        self.native.synchronise(event)


def torch_interface(index: int) -> TorchInterface:
    """Return an interface of a CUDA device, with a pair of streams that nobody else has.

    Streams are memload's own. Those of torch come from a pool of 32, of which the 33rd is the first again, so that
    programs with many of them wait where nobody expects it; they are used only where `memload._cuda` is not there.
    """
    native, pairs, why_not = _opened(index)
    with torch.cuda.device(index):  # torch switches the device before native code does, and knows the one before
        return TorchInterface(index, pairs, why_not) if native is None else NativeInterface(index, pairs, native)


def native_device(index: int) -> _core.Device | None:
    """Return a CUDA device as native code calls it, also while another thread captures a graph; None without kernels.

    What `torch.cuda` calls meanwhile may be refused, and make the capture invalid.
    """
    return _opened(index)[0]


@functools.cache
def _opened(index: int) -> tuple[_core.Device | None, StreamPairs, str]:
    native, why_not = _native(index)
    device = torch.device("cuda", index)

    def of_torch(urgent: bool) -> torch.cuda.Stream:
        return torch.cuda.Stream(device, priority=-int(urgent))  # type: ignore[no-untyped-call]

    def of_memload(urgent: bool) -> torch.cuda.Stream:
        assert native is not None
        return torch.cuda.ExternalStream(native.create_stream(urgent), device)  # type: ignore[no-untyped-call]

    return native, StreamPairs(of_torch if native is None else of_memload), why_not


def _native(index: int) -> tuple[_core.Device | None, str]:
    try:
        module = cuda_module()
    except ImportError as error:
        return None, f"memload._cuda cannot be imported ({error}); it is built when nvcc is found"
    try:
        return _core.Device(module.device(index)), ""
    except (RuntimeError, AttributeError, TypeError) as error:
        return None, str(error)
