"""Keeps the weights of a module in pinned RAM, and puts them on a device while they are needed there.

pinned RAM     | weight 0 | weight 1 | ...     one run for each unit; the module's own tensors are views of it
                    copied as one
device memory  | weight 0 | weight 1 | ...     views of it stand in the module's places meanwhile
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from memload.device.interface import Interface
from memload.tensors import is_dense

_ALIGNMENT = 256  # of each tensor, enough for any kernel
_SLICE = 2**26  # bytes of one copy, so that batches of a loader are copied between two of them
_MOST_UNIT_BYTES = 2**30
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(eq=False)
class Held:
    """One parameter or buffer, and each place in the module that holds it.

    Attributes:
        tensor: the module's own tensor, on the CPU.
        owners: the submodules that have it, with its name in each; several if weights are tied.
        offset: its offset in its unit, in bytes.
        placed: the tensor on the device that replaces it; None: it is not on the device.
        version: the version of `placed` at first.
    """

    tensor: torch.Tensor
    owners: list[tuple[nn.Module, str]]
    offset: int = 0
    placed: torch.Tensor | None = None
    version: int = 0
    shape: tuple[int, ...] = field(init=False)
    stride: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = tuple(self.tensor.shape)
        self.stride = self.tensor.stride() if is_dense(self.tensor) else torch.empty(self.shape, device="meta").stride()

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor."""
        return self.tensor.numel() * self.tensor.element_size()

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """Return its view of a unit's memory, uint8; the version counters of such views are separate."""
        run = memory[self.offset : self.offset + self.nbytes].view(self.tensor.dtype)
        return run.as_strided(self.shape, self.stride).data

    def put(self, tensor: torch.Tensor) -> None:
        """Put this tensor into the module, wherever the parameter or buffer is used."""
        for owner, name in self.owners:
            setattr(owner, name, tensor)

    @property
    def changed(self) -> bool:
        """Whether `placed` may have been written to; kernels of batch norm do not count their writes."""
        if self.placed is None:
            return False
        is_buffer = not isinstance(self.tensor, nn.Parameter)
        return self.placed._version != self.version or (is_buffer and any(one.training for one, _ in self.owners))


class Unit:
    """Tensors that are copied to the device and freed together.

    Args:
        held: the tensors; their data is moved into pinned RAM, and stays there.
        interface: the device.
    """

    def __init__(self, held: Sequence[Held], interface: Interface) -> None:
        self.held, self._interface = list(held), interface
        end = 0
        for one in self.held:
            one.offset, end = end, -(-(end + one.nbytes) // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = end
        self._host = interface.pinned(end)
        with torch.no_grad():
            for one in self.held:
                pinned = one.within(self._host)
                pinned.copy_(one.tensor)
                one.tensor.data = pinned

    def copy(self, memory: torch.Tensor, stream: Any) -> None:
        """Start copying all tensors to the device."""
        for begin in range(0, self.nbytes, _SLICE):
            part = slice(begin, min(begin + _SLICE, self.nbytes))
            self._interface.copy(memory[part], self._host[part], stream)

    def arrive(self, memory: torch.Tensor) -> None:
        """Make the module use the weights in this memory."""
        for one in self.held:
            placed = one.within(memory)
            if isinstance(one.tensor, nn.Parameter):
                placed = nn.Parameter(placed, requires_grad=False)
            one.placed, one.version = placed, placed._version
            one.put(placed)

    def leave(self, stream: Any) -> None:
        """Restore the module's own tensors, including what was written to them on the device.

        Raises:
            RuntimeError: a tensor was replaced by one of another shape or dtype.
        """
        changed = []
        for one in self.held:
            if one.placed is None:
                continue
            now = getattr(*one.owners[0])
            if now.shape != one.tensor.shape or now.dtype != one.tensor.dtype:
                changed.append(one.owners[0][1])
            elif now is not one.placed or one.changed:
                self._interface.launch(stream, _write_back, one.tensor, now.detach())
            one.put(one.tensor)
            one.placed = None
        if changed:
            raise RuntimeError(f"{', '.join(changed)} got another shape or dtype on the device; that cannot be kept")


def _write_back(own: torch.Tensor, now: torch.Tensor) -> None:
    with torch.no_grad():
        own.copy_(now)


def held_by(module: nn.Module) -> list[Held]:
    """Return all parameters and buffers of a module, each once.

    Raises:
        TypeError: a tensor is sparse, quantised, or of a subclass.
    """
    found: dict[int, Held] = {}
    for prefix, owner in module.named_modules():
        for name, tensor in itertools.chain(owner._parameters.items(), owner._buffers.items()):
            if tensor is not None:
                _check(f"{prefix}.{name}".lstrip("."), tensor)
                found.setdefault(id(tensor), Held(tensor, [])).owners.append((owner, name))
    return list(found.values())


def check_frozen(module: nn.Module) -> None:
    """Raise ValueError if a parameter is to be trained."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            raise ValueError(
                f"{name} requires a gradient: offloaded modules are only read. Freeze the module "
                "first: module.requires_grad_(False)"
            )


def _check(name: str, tensor: torch.Tensor) -> None:
    if type(tensor) not in (nn.Parameter, torch.Tensor, getattr(nn, "Buffer", torch.Tensor)):
        raise TypeError(f"{name} is a {type(tensor).__name__}; only plain parameters and buffers can be offloaded")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta":
        raise TypeError(f"{name} is {tensor.layout} on {tensor.device}; only dense tensors can be offloaded")


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the submodules that are probably called one after the other.

    The elements of ModuleList, ModuleDict and Sequential are layers; outside of these, the largest submodules without
    such containers.
    """
    return list(dict.fromkeys(_descend(module, inside=type(module) in _CONTAINERS)))


def _descend(module: nn.Module, inside: bool) -> Iterator[nn.Module]:
    for child in module.children():
        contained = type(child) in _CONTAINERS
        if contained or (not inside and any(type(one) in _CONTAINERS for one in child.modules())):
            yield from _descend(child, contained)
        elif any(True for _ in itertools.chain(child.parameters(), child.buffers())):
            yield child


@dataclass(frozen=True)
class Division:
    """The tensors of a module, divided by the time at which they have to be on the device.

    Attributes:
        always: tensors that are there all the time.
        by_layer: tensors that are there while a layer is called.
    """

    always: list[Held]
    by_layer: dict[nn.Module, list[Held]]

    @classmethod
    def of(cls, module: nn.Module, layers: Iterable[nn.Module]) -> Division:
        """Return the division by layers; tensors that two layers share, or no layer has, are there all the time.

        Raises:
            ValueError: a layer is no submodule, or is inside of another layer.
        """
        layer_of: dict[nn.Module, nn.Module] = {}
        own = set(module.modules())
        for layer in layers:
            for inner in layer.modules():
                if inner not in own:
                    raise ValueError(f"layerwise= names a {type(layer).__name__} that is not in the module")
                if inner in layer_of:
                    raise ValueError(f"layerwise= names a {type(layer).__name__} that has a submodule of another layer")
                layer_of[inner] = layer
        always: list[Held] = []
        by_layer: dict[nn.Module, list[Held]] = {}
        for held in held_by(module):
            users = {layer_of.get(owner) for owner, _ in held.owners}
            user = users.pop()
            if user is None or users:
                always.append(held)
            else:
                by_layer.setdefault(user, []).append(held)
        return cls(always, {layer: by_layer[layer] for layer in layers if layer in by_layer})


def units_of(held: Sequence[Held], interface: Interface) -> list[Unit]:
    """Return the tensors in units of at most 1 GiB, or of one tensor."""
    groups: list[list[Held]] = []
    room = 0
    for one in held:
        if one.nbytes > room or not groups:
            groups.append([])
            room = _MOST_UNIT_BYTES
        groups[-1].append(one)
        room -= one.nbytes
    return [Unit(group, interface) for group in groups]


def nbytes_of(held: Iterable[Held]) -> int:
    """Return the bytes that tensors take on the device."""
    return sum(math.ceil(one.nbytes / _ALIGNMENT) * _ALIGNMENT for one in held)
