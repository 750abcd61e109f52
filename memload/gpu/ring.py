"""The ring of pinned slots: how it is pinned, and what is said when it is not."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

from memload import _core
from memload.gpu.interface import Interface
from memload.sizes import format_size

_PROBED_BYTES = 16 << 20
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


@functools.cache
def pinning_rates(interface: Interface) -> PinningRates:
    """Measure, once for each device, how fast copies from memory are that is pinned in either way; takes some 20 ms."""
    memory = interface.empty(_PROBED_BYTES, interface.copies)
    assert interface.native is not None
    rates = []
    for registered in (True, False):
        stream = interface.handle(interface.copies)
        try:
            seconds = _core.copy_seconds(interface.native, stream, memory.data_ptr(), _PROBED_BYTES, registered)
            rates.append(_PROBED_BYTES / max(seconds, 1e-9))
        except RuntimeError:  # refused: what the ring says when it has to do without
            rates.append(0.0)
    return PinningRates(*rates)


class PinnedRing:
    """Where the slots of a pass come from.

    Args:
        interface: the device that reads them.
        slots: the native source of memory.
    """

    def __init__(self, interface: Interface, slots: _core.PinnedSlots) -> None:
        self._interface = interface
        self.slots = slots
        self._warned = False

    @classmethod
    def of(cls, interface: Interface, limit: int | None) -> PinnedRing:
        """Return a ring that pins at most `limit` bytes, in the way that is faster here."""
        assert interface.native is not None
        return cls(interface, _core.PinnedSlots(interface.native, pinning_rates(interface).registers, limit))

    def warn_of_refusal(self) -> None:
        """Warn once if slots are pageable."""
        if self._warned or not (why := self.slots.refusal):
            return
        self._warned = True
        warnings.warn(
            f"slots are not all pinned: {why}. {format_size(self.slots.pinned_bytes)} are; copies from the others to "
            f"{self._interface.device} are several times slower. Give a smaller batch_size or depth, allow more by "
            "EngineOptions(pinned_bytes=...), or let the machine (a container's memory limit, `ulimit -l`) allow it",
            RuntimeWarning,
            stacklevel=2,
        )
