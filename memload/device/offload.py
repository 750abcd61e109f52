"""memload.offload: keeps a frozen module in RAM, and on a device only while it is needed.

prefetch()   allocates memory in the loop's stream; copies begin in a stream of their own
with         the loop's stream waits for the copies; the module has its weights on the device
end          the module has its own weights in RAM again; the memory goes back to the loop's stream
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from memload.device.devices import device_of, raise_device_error
from memload.device.interface import Interface
from memload.device.layerwise import SLOTS, Turns
from memload.device.torch_interface import torch_interface
from memload.device.weights import Division, Unit, check_frozen, held_by, layers_of, nbytes_of, units_of
from memload.sizes import format_size

M = TypeVar("M", bound=nn.Module)


def offload(
    module: M, device: torch.device | str | int | None = None, *, layerwise: bool | Sequence[nn.Module] = False
) -> Offloaded[M]:
    """Return a frozen module that lives in pinned RAM, and on a GPU only within ``with``.

    This is for a teacher, a perceptual loss or an encoder whose weights should leave the GPU's memory to the trained
    model. Its results are bit-identical to those of a module that stays on the GPU. Weights are copied in a stream of
    their own: call ``prefetch()`` before other work is queued on the GPU, and the copy runs during that work.

    Args:
        module: a module whose parameters are all frozen (``requires_grad_(False)``). This call moves its weights to
            pinned RAM. Tied weights stay tied; buffers that the module writes to are copied back.
        device: the GPU; default: the current one. Without a GPU the module stays where it is, and ``with`` does
            nothing; a warning says so once.
        layerwise: whether layers have their weights on the GPU one after the other, each while it computes and the next
            one's are copied; for modules larger than the GPU's memory, and without gradients only. True: layers are the
            elements of ModuleList, ModuleDict and Sequential, and submodules beside these; or a list of submodules.
            Weights of no layer, and weights that several layers share, stay on the GPU within ``with``.

    Raises:
        ValueError: a parameter is to be trained; a layer is not in the module.
        TypeError: it is no module, or has sparse or quantised tensors, or subclasses of tensors.
        DeviceError: the GPU cannot be used from this process.

    Example:
        >>> import memload, torch
        >>> teacher = torch.nn.Linear(8, 2).eval().requires_grad_(False)
        >>> teacher = memload.offload(teacher, "cuda" if torch.cuda.is_available() else "cpu")
        >>> for _ in range(2):
        ...     teacher.prefetch()
        ...     with teacher as module, torch.no_grad():
        ...         logits = module(torch.zeros(3, 8, device=teacher.device))
        >>> logits.shape
        torch.Size([3, 2])
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"offload takes a torch.nn.Module, got {type(module).__name__}")
    target = _target(device)
    interface = None if target.type == "cpu" else torch_interface(target.index)  # with a stream of copies of its own
    return Offloaded(module, interface, layerwise)


def _target(device: torch.device | str | int | None) -> torch.device:
    wanted = device_of("cpu") if device == "cpu" else torch.device("cuda" if device is None else device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        _warn_of_no_gpu()
        return torch.device("cpu")
    if wanted.type not in ("cpu", "cuda"):
        raise ValueError(f"offload serves CUDA devices, got {device!r}")
    return device_of(wanted)


@functools.cache
def _warn_of_no_gpu() -> None:
    warnings.warn(
        "memload.offload: torch finds no CUDA device, so modules stay where they are, and `with` does nothing",
        RuntimeWarning,
        stacklevel=4,
    )


class Offloaded(Generic[M]):
    """A module in RAM that is on a device within ``with``, as `offload` returns it; for one thread at a time.

    Attributes:
        module: the module. Outside of ``with`` its weights are on the CPU, and pinned.
        device: the device on which it computes within ``with``.
    """

    def __init__(self, module: M, interface: Interface | None, layerwise: bool | Sequence[nn.Module]) -> None:
        self.module, self._interface = module, interface
        division = Division.of(module, layers_of(module) if layerwise is True else list(layerwise or ()))
        check_frozen(module)
        self._resident: list[Unit] = []
        self._turns: Turns | None = None
        self._depth = 0
        self._transfer: _Transfer | None = None
        if interface is None:
            self.device = torch.device("cpu")
            return
        self.device = interface.device
        try:
            self._resident = units_of(division.always, interface)
            units = {layer: Unit(held, interface) for layer, held in division.by_layer.items()}
        except RuntimeError as error:
            raise_device_error(error, f"pinning {format_size(self.nbytes)} of weights", self.device)
        self._turns = Turns(units, interface, interface.copies) if units else None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in RAM; torch's pinned allocator rounds each run of up to 1 GiB up to a power of two."""
        return nbytes_of(held_by(self.module))

    @property
    def device_nbytes(self) -> int:
        """The bytes on the device within ``with``: those of all weights; layer by layer, those of two slots."""
        slots = 0 if self._turns is None else SLOTS * self._turns.slot_bytes
        return sum(unit.nbytes for unit in self._resident) + slots

    def prefetch(self) -> None:
        """Start copying the weights to the device, so that they are there when ``with`` begins; returns at once.

        The copy runs after the work that was queued in the current stream before this call, and beside the work that is
        queued after it. Layer by layer, only the first layers are copied. The memory is in use until the next ``with``
        ends.
        """
        if self._interface is not None and self._transfer is None:
            try:
                self._transfer = _Transfer(self._interface, self._resident, self._turns)
            except RuntimeError as error:
                raise_device_error(error, f"copying {format_size(self.device_nbytes)} of weights", self.device)

    def __enter__(self) -> M:
        if self._interface is not None and self._depth == 0:
            check_frozen(self.module)
            self.prefetch()
            assert self._transfer is not None
            self._transfer.begin()
        self._depth += 1
        return self.module

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if self._transfer is not None and self._depth == 0:
            transfer, self._transfer = self._transfer, None
            transfer.end()

    def __repr__(self) -> str:
        name = type(self.module).__name__
        if self._interface is None:
            return f"memload.offload({name}): without a GPU; the module stays where it is"
        how = "layer by layer" if self._turns is not None else "as a whole"
        return (
            f"memload.offload({name}): {format_size(self.nbytes)} in pinned RAM; within `with` "
            f"{format_size(self.device_nbytes)} on {self.device}, {how}"
        )


class _Transfer:
    """The weights on the device, from the first copy to the end of ``with``.

    Their memory belongs to the loop's stream, so later work in that stream reuses it.
    """

    def __init__(self, interface: Interface, resident: Sequence[Unit], turns: Turns | None) -> None:
        self._interface, self._resident, self._turns = interface, resident, turns
        self._home, self._arrived = interface.current(), None
        self._memory = [interface.empty(unit.nbytes, self._home) for unit in resident]
        interface.wait(interface.copies, interface.record(self._home))  # earlier work there may still use that memory
        for unit, memory in zip(resident, self._memory, strict=True):
            unit.copy(memory, interface.copies)
        self._arrived = interface.record(interface.copies)
        if turns is not None:
            turns.prepare(self._home)

    def begin(self) -> None:
        """Make the current stream wait for the weights, and put them into the module."""
        self._interface.wait(self._interface.current(), self._arrived)
        for unit, memory in zip(self._resident, self._memory, strict=True):
            unit.arrive(memory)
        if self._turns is not None:
            self._turns.begin()

    def end(self) -> None:
        """Restore the module's own weights, and free the device memory to its stream."""
        stream = self._interface.current()
        for unit in self._resident:
            unit.leave(stream)
        self._release(stream)

    def _release(self, stream: Any) -> None:
        memory, self._memory = self._memory, []
        if self._turns is not None:
            memory += self._turns.end(stream)
        if stream != self._home:
            for one in memory:
                self._interface.hold(one, stream)

    def __del__(self) -> None:
        if getattr(self, "_memory", None) and self._arrived is not None:  # prefetched, but never used
            self._interface.wait(self._home, self._arrived)
            self._release(self._home)
