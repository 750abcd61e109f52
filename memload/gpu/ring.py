"""The ring of pinned slots: how it is pinned, and what is said when it is not."""

from __future__ import annotations

import warnings

from memload import _core
from memload.gpu.interface import Interface
from memload.sizes import format_size


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
        return cls(interface, _core.PinnedSlots(interface.native, interface.pinning.registers, limit))

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
