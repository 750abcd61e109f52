"""Where the rows of a dataset are kept while they are read: the tiers."""

from __future__ import annotations

from enum import Enum

LEAST_CACHE_BYTES = 1 << 20
"""The smallest cache of the hybrid tier."""


class Tier(str, Enum):
    """Where rows are kept while a loader reads them. Results are the same for every tier.

    Example:
        >>> import memload
        >>> memload.Tier("ram") is memload.Tier.RAM, str(memload.Tier.RAM)
        (True, 'ram')
    """

    MMAP = "mmap"
    """In files, mapped: the system's page cache keeps what it can, and planned rows are read ahead. The default."""
    DIRECT = "direct"
    """In files, read past the page cache: for sets larger than RAM, and for leaving the cache to others."""
    RAM = "ram"
    """Loaded once into huge pages, as stored or already cast; ranks of one machine can share one copy."""
    HYBRID = "hybrid"
    """In files, behind a cache of a fixed number of bytes that keeps whole rows."""
    PINNED = "pinned"
    """In RAM that a GPU reads by itself."""
    DEVICE = "device"
    """In a GPU's own memory."""
    SPLIT = "split"
    """In a GPU's own memory as far as a number of bytes allows, and the others in RAM that the GPU reads by itself."""
    AUTO = "auto"
    """Whichever of the others suits the sizes and what is free; it says why."""

    def __str__(self) -> str:
        return self.value


ON_GPU = (Tier.PINNED, Tier.DEVICE, Tier.SPLIT)
"""The tiers whose rows a GPU gathers."""
