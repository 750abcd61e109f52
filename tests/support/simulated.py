"""A device for tests: in RAM, with copies and kernels that are late, out of step and in other threads.

Its tensors are CPU tensors. What is computed on the device is computed at once, when all before it in its stream is
done, and comes to the memory that it is to be in late. Memory is poisoned whenever there is nothing in it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from extension import simulated_extension
from torch.utils.dlpack import from_dlpack

from memload import _core
from memload.device.numa import NumaNode
from memload.device.streams import StreamPairs
from memload.nested import map_tensors, tensors_of

POISON = 0xA5
"""Each byte of memory that has no content."""


class SimulatedInterface:
    """See `memload.device.interface.Interface`.

    Args:
        copies, work, loop: the least and the most microseconds by which each thing is late in the stream of copies, in
            that of casts, and in that of the loop.
        native: whether native threads copy.
        pinnable: the most bytes that can be pinned at once.
        seed: of the lateness.
        at_once: whether nothing is late, and everything is done by the calling thread, for measurements.
    """

    why_not_native = ""
    near: NumaNode | None = None

    def __init__(
        self,
        *,
        copies: tuple[int, int] = (0, 300),
        work: tuple[int, int] = (0, 300),
        loop: tuple[int, int] = (0, 300),
        native: bool = True,
        pinnable: int | None = None,
        seed: int = 0,
        at_once: bool = False,
    ) -> None:
        self.simulated = simulated_extension().SimulatedDevice(pinnable, at_once)
        self.device = torch.device("cpu")
        self.native = _core.Device(self.simulated.capsule) if native else None
        self.copies = self.simulated.add_stream(*copies, seed)
        self.work = self.simulated.add_stream(*work, seed + 1)
        self._loop = [self.simulated.add_stream(*loop, seed + 2)]  # also of those that `own_streams` returns

    def own_streams(self) -> SimulatedInterface:
        """Return this: all users have the same streams, which tests name. With `Pairs` each has its own."""
        return self

    def current(self) -> int:
        """Return the loop's stream."""
        return self._loop[0]

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Make another stream the loop's current one."""
        before, self._loop[0] = self._loop[0], stream
        try:
            yield
        finally:
            self._loop[0] = before

    def handle(self, stream: int) -> int:
        """Return the stream, which is a number."""
        return stream

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return poisoned pinned memory."""
        return from_dlpack(self.simulated.pinned(nbytes))

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory came from `pinned`."""
        return self.simulated.is_pinned(tensor.untyped_storage().data_ptr())

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory came from `empty`."""
        if tensor.layout != torch.strided:
            return False
        return self.simulated.is_there(tensor.untyped_storage().data_ptr())

    def empty(self, nbytes: int, stream: int) -> torch.Tensor:
        """Return poisoned memory of the device."""
        return from_dlpack(self.simulated.empty(nbytes, stream))

    def copy(self, to: torch.Tensor, source: torch.Tensor, stream: int) -> None:
        """Copy late, from memory whose reuse is put off only if it came from `pinned`."""
        self.simulated.note_copy(source.untyped_storage().data_ptr(), stream)
        self.simulated.copy(to.data_ptr(), source.data_ptr(), source.nbytes, stream)

    def launch(self, stream: int, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function when the stream has done all before; it reads, and what it makes comes, late."""
        self.simulated.synchronise(self.simulated.record(stream))
        for given in filter(self.is_there, tensors_of(args)):
            self.simulated.watch(given.data_ptr(), given.nbytes, stream)
        with self.on(stream):
            made = fn(*args)
        return map_tensors(made, lambda one: one if self.is_there(one) else self._late(one, stream))

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the loop's stream, as `launch` does."""
        return self.launch(self._loop[0], fn, *args)

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Write to a tensor of the device in the loop's stream, late."""
        values = values.contiguous().clone()
        self.simulated.copy_keeping(tensor.data_ptr(), values.data_ptr(), values.nbytes, self._loop[0], values)

    def _late(self, made: torch.Tensor, stream: int) -> torch.Tensor:
        made = made.contiguous()
        memory = self.empty(made.nbytes, stream)
        self.simulated.copy_keeping(memory.data_ptr(), made.data_ptr(), made.nbytes, stream, made)
        return memory.view(made.dtype).view(made.shape)

    def record(self, stream: int) -> Any:
        """Return an event."""
        return self.simulated.record(stream)

    def timestamp(self, stream: int) -> Any:
        """Return an event, all of which keep their time here."""
        return self.simulated.record(stream)

    def seconds_between(self, first: Any, second: Any) -> float | None:
        """Return the seconds between two events that have come."""
        return self.simulated.seconds_between(first, second)

    def wait(self, stream: int, event: Any) -> None:
        """Let a stream wait."""
        self.simulated.wait(stream, event)

    def follow(self, stream: int, other: int) -> None:
        """Let a stream wait for another; by these calls, so that tests can leave out each of them."""
        self.wait(stream, self.record(other))

    def done(self, event: Any) -> bool:
        """Whether an event has come."""
        return self.simulated.done(event)

    def synchronise(self, event: Any) -> None:
        """Wait for an event."""
        self.simulated.synchronise(event)

    def hold(self, tensor: torch.Tensor, stream: int) -> None:
        """Poison the tensor's memory only after the stream is done with it."""
        self.simulated.hold(tensor.untyped_storage().data_ptr(), stream)

    def read(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Read a tensor in the loop's stream, late, without keeping it; return a function that gives what was read."""
        form = tensor.dtype, tensor.shape
        reading = self.simulated.read(tensor.data_ptr(), tensor.nbytes, self._loop[0])
        event = self.record(self._loop[0])

        def result() -> torch.Tensor:
            self.synchronise(event)
            return torch.frombuffer(bytearray(reading.bytes()), dtype=form[0]).view(form[1])

        return result


class Pairs(SimulatedInterface):
    """A device on which each user has a pair of streams; `pairs` has them, by the order of their users."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pairs: list[tuple[int, int]] = []
        self._pairs = StreamPairs(lambda urgent: self.simulated.add_stream(0, 300, int(urgent)))

    def own_streams(self) -> Pairs:
        """Return this device with other streams."""
        made = copy.copy(self)
        pair = made._pair = self._pairs.lease()  # comes back when that interface is collected
        made.copies, made.work = pair.copies, pair.work
        self.pairs.append((pair.copies, pair.work))
        return made


class Without(SimulatedInterface):
    """A device whose interface leaves one kind of call out, at one of its streams."""

    def __init__(self, call, stream, **late):
        super().__init__(**late)
        self._left_out = call, getattr(self, stream) if stream else self.current()
        self.left_out = 0

    def _leaves_out(self, call, stream):
        out = (call, stream) == self._left_out
        self.left_out += out
        return out

    def wait(self, stream, event):
        if not self._leaves_out("wait", stream):
            super().wait(stream, event)

    def record(self, stream):
        idle = self._left_out[0] == "record" and self.simulated.add_stream(0, 0)
        return super().record(idle if self._leaves_out("record", stream) else stream)

    def hold(self, tensor, stream):
        if not self._leaves_out("hold", stream):
            super().hold(tensor, stream)
