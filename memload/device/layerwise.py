"""Copies layers to a device in turn: while one computes, the weights of the next replace those of the last.

slot 0   layer 0 computes |  layer 2 arrives  | layer 2 computes | ...
slot 1   layer 1 arrives  |  layer 1 computes | layer 3 arrives  | ...
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memload.device.interface import Interface
from memload.device.weights import Unit
from memload.nested import tensors_of

SLOTS = 2


@dataclass(eq=False)
class _Slot:
    """Memory for one layer.

    Attributes:
        memory: memory of the device.
        layer: the layer whose weights are in it, or are being copied to it.
        arrived: the event after their copy.
        used: the event after the loop's last use of the weights before.
        busy: whether the layer computes.
    """

    memory: torch.Tensor
    layer: nn.Module | None = None
    arrived: Any = None
    used: Any = None
    busy: bool = False


class Turns:
    """Puts the weights of each layer on the device while it is called, from ``begin`` to ``end``.

    Args:
        units: the weights of each layer, in the expected order of their calls.
        interface: the device.
        stream: the stream of the copies.
    """

    def __init__(self, units: Mapping[nn.Module, Unit], interface: Interface, stream: Any) -> None:
        self._units, self._interface, self._stream = units, interface, stream
        layers = list(units)
        self._after = dict(itertools.pairwise(layers))  # corrected by the observed order
        self._first: nn.Module | None = layers[0] if layers else None
        self._last: nn.Module | None = None
        self._slots: list[_Slot] = []
        self._hooks: list[Any] = []
        self.slot_bytes = max((unit.nbytes for unit in units.values()), default=0)

    def prepare(self, home: Any) -> None:
        """Allocate memory in a stream, and start copying the weights of the first layers to it."""
        count = min(SLOTS, len(self._units))
        taken = self._interface.record(home)  # earlier work in that memory ends before this event
        self._slots = [_Slot(self._interface.empty(self.slot_bytes, home), used=taken) for _ in range(count)]
        layer = self._first
        for slot in self._slots:
            if layer is not None:
                self._fill(slot, layer)
                layer = self._after.get(layer)

    def begin(self) -> None:
        """Hook into the calls of the layers."""
        self._last = None
        for layer in self._units:
            self._hooks.append(layer.register_forward_pre_hook(self._before_call, with_kwargs=True, prepend=True))
            self._hooks.append(layer.register_forward_hook(self._after_call, always_call=True))

    def end(self, stream: Any) -> list[torch.Tensor]:
        """Remove the hooks, and return the memory, which only work in this stream uses from now on."""
        for hook in self._hooks:
            hook.remove()
        for slot in self._slots:
            self._release(slot)
            if slot.arrived is not None:
                self._interface.wait(stream, slot.arrived)
        memory = [slot.memory for slot in self._slots]
        self._hooks, self._slots = [], []
        return memory

    def _before_call(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of((args, kwargs))):
            raise RuntimeError(
                f"a {type(layer).__name__} is offloaded layer by layer and gets an input that requires a gradient: "
                "backward would need the weights again, which are freed by then. Call it under torch.no_grad(), or "
                "leave layerwise= out"
            )
        self._learn(layer)
        slot = self._slot_of(layer)
        if slot.busy:
            return  # the layer calls itself
        self._interface.wait(self._interface.current(), slot.arrived)
        slot.busy = True
        self._units[layer].arrive(slot.memory)
        following = self._after.get(layer)
        if following is not None and all(other.layer is not following for other in self._slots):
            free = next((other for other in self._slots if not other.busy), None)
            if free is not None:
                self._fill(free, following)

    def _after_call(self, layer: nn.Module, *_: Any) -> None:
        slot = next((slot for slot in self._slots if slot.layer is layer), None)
        if slot is not None:
            self._release(slot)

    def _release(self, slot: _Slot) -> None:
        if slot.busy and slot.layer is not None:
            stream = self._interface.current()
            self._units[slot.layer].leave(stream)
            slot.busy, slot.used = False, self._interface.record(stream)

    def _learn(self, layer: nn.Module) -> None:
        if self._last is None:
            self._first = layer
        else:
            self._after[self._last] = layer
        self._last = layer

    def _slot_of(self, layer: nn.Module) -> _Slot:
        """Return the slot with a layer's weights; copy them now if no slot has them."""
        found = next((slot for slot in self._slots if slot.layer is layer), None)
        if found is not None:
            return found
        free = next((slot for slot in self._slots if not slot.busy), None)
        if free is None:
            raise RuntimeError(
                f"a {type(layer).__name__} is called while {SLOTS} other layers compute: layers that call each other "
                "cannot take turns; give layerwise= a list of layers that follow one another"
            )
        self._fill(free, layer)
        return free

    def _fill(self, slot: _Slot, layer: nn.Module) -> None:
        if slot.used is not None:
            self._interface.wait(self._stream, slot.used)
        self._units[layer].copy(slot.memory, self._stream)
        slot.layer, slot.arrived = layer, self._interface.record(self._stream)
