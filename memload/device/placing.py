"""Moves a batch from the CPU to the device: staging, copies, casts, delivery to the loop's stream.

CPU tensors -> pinned -> copies -> work (casts) -> event -> the loop's own stream (transforms)
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from memload.device.devices import raise_device_error
from memload.device.interface import Interface
from memload.errors import DeviceError
from memload.nested import all_tensors_of, map_tensors, tensors_of
from memload.tensors import is_dense

# Tensors below this size share one copy, since starting a copy costs as much as copying so many bytes.
_SMALL = 1 << 20
_ALIGN = 64

# The batches that the loop may be ahead of its device. A loop that is further ahead gains nothing, and each such batch
# has memory of its own.
AHEAD_OF_DEVICE = 2


class Placer:
    """Puts the batches of one pass onto a device. For one thread at a time.

    Attributes:
        copied_bytes: bytes that this object copied to the device.
        waited_seconds: time that `pace` waited for the device.
    """

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self.copied_bytes = 0
        self.waited_seconds = 0.0
        self._handed: deque[Any] = deque()  # an event of the loop's stream for each earlier batch
        self._warned = self._in_loop = False

    def place(self, batch: Any) -> Any:
        """Return a batch like this one whose tensors are on the device for later work in the stream `work`.

        Nested containers are copied. Other objects are moved by their method ``to``, if they have one.
        """
        interface, found = self.interface, tensors_of(batch)
        plain = [_plain(tensor) and not interface.is_there(tensor) for tensor in found]
        copied = iter(self._copied_all([tensor for tensor, own in zip(found, plain, strict=True) if own]))
        if any(plain):
            interface.follow(interface.work, interface.copies)
        self._in_loop = False
        placed = iter([next(copied) if own else self._moved_in_loop(x) for x, own in zip(found, plain, strict=True)])
        made = map_tensors(batch, lambda _: next(placed), self._moved_object)
        if self._in_loop:
            interface.follow(interface.work, interface.current())
        return made

    def launch(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function on the device, run in the stream `work`."""
        return self.interface.launch(self.interface.work, fn, *args)

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function of the user's on the device, run in the loop's current stream.

        It runs after what the loop has queued there, and what it makes belongs to that stream. Errors stay unchanged.
        """
        return self.interface.call(fn, *args)

    def hand_over(self, batch: Any, loop: Any = None, memory: Iterable[torch.Tensor] | None = None) -> Any:
        """Make the loop's stream wait for the stream `work`, and return the batch.

        Args:
            batch: the batch.
            loop: the stream; None: the current one.
            memory: a tensor of each memory of the device that the batch lies in; None: the batch is searched for them.
        """
        interface = self.interface
        loop = interface.current() if loop is None else loop
        interface.follow(loop, interface.work)
        for tensor in self._memory_of(batch) if memory is None else memory:
            interface.hold(tensor, loop)
        return batch

    def _memory_of(self, batch: Any) -> list[torch.Tensor]:
        every = _one_of_each_memory(plain_members(batch) or all_tensors_of(batch))
        return [tensor for tensor in every if self.interface.is_there(tensor)]

    @contextlib.contextmanager
    def in_words(self) -> Iterator[None]:
        """Raise errors of the device with their meaning, as `memload.device.devices.raise_device_error` does."""
        try:
            yield
        except DeviceError:
            raise
        except RuntimeError as error:
            raise_device_error(error, "handing out a batch", self.interface.device)

    def pace(self) -> Any:
        """Wait until the device is at most `AHEAD_OF_DEVICE` batches behind the loop; return the loop's stream."""
        loop = self.interface.current()
        self._handed.append(self.interface.record(loop))
        if len(self._handed) > AHEAD_OF_DEVICE:
            began = time.perf_counter()
            self.interface.synchronise(self._handed.popleft())
            self.waited_seconds += time.perf_counter() - began
        return loop

    def _copied_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        small = [number for number, tensor in enumerate(tensors) if tensor.nbytes < _SMALL]
        packed = self._copied([tensors[number] for number in small]) if small else []
        done = dict(zip(small, packed, strict=True))
        return [done[n] if n in done else self._copied([tensor])[0] for n, tensor in enumerate(tensors)]

    def _copied(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies of tensors on the device, in common memory that is copied at once."""
        interface = self.interface
        flat = [_flat(tensor) for tensor in tensors]
        places, nbytes = _places(flat)
        alone = flat[0] if len(flat) == 1 and interface.is_pinned(flat[0]) else None
        staged = interface.pinned(max(1, nbytes)) if alone is None else alone
        if alone is None:
            for at, one in zip(places, flat, strict=True):
                staged[at : at + len(one)].copy_(one)
        memory = interface.empty(max(1, nbytes), interface.copies)
        if nbytes:
            interface.copy(memory[:nbytes], staged[:nbytes], interface.copies)
        interface.hold(memory, interface.work)
        self.copied_bytes += nbytes
        return [_formed(memory[at : at + len(one)], like) for at, one, like in zip(places, flat, tensors, strict=True)]

    def _moved_in_loop(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that is on the device already, or one that is moved in the loop's stream."""
        self._in_loop = True
        if self.interface.is_there(tensor):
            self._warn()
            self.interface.hold(tensor, self.interface.work)
            return tensor
        return tensor.to(self.interface.device)

    def _moved_object(self, value: Any) -> Any:
        """Return an object moved by its own method `to`, in the loop's stream; unchanged without such a method."""
        if not callable(getattr(value, "to", None)) or isinstance(value, type):
            return value
        self._in_loop = True
        return value.to(self.interface.device)

    def _warn(self) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"batches have tensors that are on {self.interface.device} already; they are passed on unchanged. Code "
            "that makes them runs between the loop's own kernels, and cannot run ahead or in other processes: let the "
            "dataset return CPU tensors",
            RuntimeWarning,
            stacklevel=2,
        )


def _plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is plain dense memory of the CPU."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and type(tensor) is torch.Tensor
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in the order of its memory if it is dense, else of its elements."""
    plain = tensor.resolve_conj().resolve_neg()
    dense = plain if is_dense(plain) else plain.contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _formed(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return these bytes as a separate tensor for autograd, in the form that `Tensor.to` would give it."""
    strides = like.stride() if is_dense(like) else torch.empty(like.shape, device="meta").stride()
    return flat.view(like.dtype).as_strided(like.shape, strides).data


def _places(flat: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    places, end = [], 0
    for one in flat:
        places.append(-(-end // _ALIGN) * _ALIGN)
        end = places[-1] + len(one)
    return places, end


def plain_members(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a plain dict, list or tuple of tensors; none of other batches, which take a longer look."""
    members = list(batch.values()) if type(batch) is dict else batch if type(batch) in (list, tuple) else ()
    return list(members) if {*map(type, members)} == {torch.Tensor} else []


def _one_of_each_memory(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({tensor.untyped_storage().data_ptr(): tensor for tensor in tensors if _has_storage(tensor)}.values())


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.numel() > 0
