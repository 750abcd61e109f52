"""Which way to pin memory is copied from faster here: huge pages registered with the driver, or the driver's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memload import _core

PROBED_BYTES = 16 << 20

_WORTH = 0.98  # the driver's own memory is simpler: registered huge pages have to be faster than this share of it


@dataclass(frozen=True)
class PinningRates:
    """What a short probe found.

    Attributes:
        registered: bytes per second from huge pages that are registered with the driver; 0 if it refuses.
        allocated: the same from memory that the driver allocates.
    """

    registered: float
    allocated: float

    @property
    def registers(self) -> bool:
        """Whether slots are registered huge pages."""
        return self.registered > 0 and self.registered >= _WORTH * self.allocated

    @property
    def fastest(self) -> float:
        """Bytes per second of the better one; 0 if neither can be had."""
        return max(self.registered, self.allocated)


def measured_rates(native: _core.Device, stream: int, memory: torch.Tensor) -> PinningRates:
    """Measure how fast copies are from memory that is pinned in either way; takes some 20 ms.

    Args:
        native: the device.
        stream: the handle of a stream of it.
        memory: of the device, uint8; its length is that of the copies.
    """
    return PinningRates(_rate(native, stream, memory, True), _rate(native, stream, memory, False))


def _rate(native: _core.Device, stream: int, memory: torch.Tensor, registered: bool) -> float:
    try:
        seconds = _core.copy_seconds(native, stream, memory.data_ptr(), memory.nbytes, registered)
    except RuntimeError:  # refused: the ring says so when it has to do without
        return 0.0
    return memory.nbytes / max(seconds, 1e-9)
