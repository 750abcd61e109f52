"""Which tier suits a dataset on a machine: the matrix of docs/tiers.md, as one function."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memload.engine.tiers.tier import Tier
from memload.memory.limits import ADDRESSES, MemoryLimit
from memload.sizes import format_size

CACHED_SHARE = 0.75
"""Of free memory, what the page cache can be trusted to keep."""
RAM_SHARE = 0.5
"""Of free memory, what loading ahead may take."""
LEAST_CACHE = 0.05
"""Of a dataset, below which a cache of its rows is not worth having."""
ON_DISK = 1.2
"""Free bytes of a disk for each byte that is written to it."""


@dataclass(frozen=True)
class Needs:
    """What a dataset asks for. Sizes in bytes.

    Attributes:
        rows: of all rows as batches have them, before any cast.
        stored: of them in files; less where they are compressed, 0 where they are in memory already.
        decoded: whether rows are decoded for every batch.
        cast: of all rows once they are cast as `ram_dtype` says; 0 if nothing is.
        transformed: of what a deterministic function makes of all rows, if that can be kept; 0 if there is none.
        written: whether that lies in files already.
        shared: whether processes of one machine have one copy of it in RAM; else each has its own.
    """

    rows: int
    stored: int
    decoded: bool = False
    cast: int = 0
    transformed: int = 0
    written: bool = False
    shared: bool = True


@dataclass(frozen=True)
class TierChoice:
    """A tier, and why it is that one.

    Attributes:
        tier: never AUTO.
        reason: a sentence with the figures that decided.
        cache_bytes: of HYBRID, how much each process is to keep; 0 for the others.
        of_results: whether it is the tier of what a function makes of the rows, rather than of the rows.
        not_in_ram: why rows that are cast are not kept in RAM, with figures; empty where they are, or are not cast.
    """

    tier: Tier
    reason: str
    cache_bytes: int = 0
    of_results: bool = False
    not_in_ram: str = ""


def choose(
    needs: Needs, free_ram: int, free_disk: int = 0, processes: int = 1, own: MemoryLimit | None = None
) -> TierChoice:
    """Return the tier for a dataset, as the matrix of docs/tiers.md has it; looks at nothing but its arguments.

    Args:
        needs: of the dataset.
        free_ram: bytes that the processes can still take together: `memload.memory.budget.memory().free_together`.
        free_disk: bytes free where a cache of transformed rows would go; 0 if there is no such place.
        processes: of this machine that keep the same dataset. The page cache, and rows in RAM, are there once for all;
            each has a cache of its own.
        own: the limit that each process has for itself, if any; what lies in the page cache does not count there.

    Example:
        >>> choose(Needs(rows=10**9, stored=10**9), free_ram=8 * 10**9).reason
        'mmap: 1 GB in files, which the page cache keeps: 8 GB of RAM are free'
    """
    if needs.transformed:
        return _for_transformed(needs, free_ram, free_disk, processes, own)
    free, rows, room = format_size(free_ram), format_size(needs.rows), _Room.of(free_ram, 1, own)
    if needs.stored == 0:
        return TierChoice(Tier.RAM, f"ram: the {rows} of rows are in memory already")
    if needs.cast and needs.cast <= RAM_SHARE * room.nbytes:
        return TierChoice(Tier.RAM, f"ram: {format_size(needs.cast)} once they are cast, which half of {room} can hold")
    if needs.cast:
        too_large = f"cast, rows are {format_size(needs.cast)}, too much for half of {room}"
        return replace(choose(replace(needs, cast=0), free_ram, free_disk, processes, own), not_in_ram=too_large)
    if needs.decoded and needs.rows <= RAM_SHARE * room.nbytes:
        return TierChoice(Tier.RAM, f"ram: decoded once, rows are {rows}, which half of {room} can hold")
    if needs.stored <= CACHED_SHARE * free_ram:
        return TierChoice(
            Tier.MMAP,
            f"mmap: {format_size(needs.stored)} in files, which the page cache keeps: {free} of RAM are free",
        )
    room = _Room.of(free_ram, processes, own, mapped=needs.stored)
    cache = int(RAM_SHARE * room.nbytes)
    each = f" in each of {processes} processes" if processes > 1 else ""
    each += f", in {room}," if room.limited else ""
    if cache >= LEAST_CACHE * needs.stored:
        return TierChoice(
            Tier.HYBRID,
            f"hybrid: {format_size(needs.stored)} in files are more than the page cache keeps of them with {free} of "
            f"RAM free; a cache of {format_size(cache)}{each} holds {cache / needs.stored:.0%} of the rows",
            cache_bytes=cache,
        )
    return TierChoice(
        Tier.DIRECT,
        f"direct: of {format_size(needs.stored)} in files, a cache{each} in the {free} of free RAM would hold less "
        f"than {LEAST_CACHE:.0%}",
    )


@dataclass(frozen=True)
class _Room:
    """What one process can take for itself; as a text, with what leaves it that much."""

    nbytes: int
    limited: str = ""

    @classmethod
    def of(cls, free_ram: int, processes: int, own: MemoryLimit | None, mapped: int = 0) -> _Room:
        """Of bytes that so many processes share; files are yet to be mapped, which takes addresses."""
        share = free_ram // processes
        if own is None:
            return cls(share)
        left = max(0, own.left - mapped) if own.name == ADDRESSES else own.left
        return cls(left, own.name) if left < share else cls(share)

    def __str__(self) -> str:
        size = format_size(self.nbytes)
        return f"the {size} that {self.limited} leaves" if self.limited else f"the {size} free"


def fits_on_disk(nbytes: int, free_disk: int) -> bool:
    """Return whether so many bytes may be written where so many are free."""
    return ON_DISK * nbytes <= free_disk


def _for_transformed(
    needs: Needs, free_ram: int, free_disk: int, processes: int, own: MemoryLimit | None
) -> TierChoice:
    """Where the results of a function are kept that gives the same for a row every time."""
    copies = 1 if needs.shared else processes
    made, room = format_size(needs.transformed), _Room.of(free_ram, copies, own)
    of = f"{room}" if room.limited else f"the {format_size(free_ram)} free"
    made += f" in each of {copies} processes" if copies > 1 else ""
    if needs.transformed <= RAM_SHARE * room.nbytes:
        return TierChoice(Tier.RAM, f"ram: the transform makes {made}, which half of {of} can hold", of_results=True)
    if needs.written or fits_on_disk(needs.transformed, free_disk):
        disk = f"written once, it fits on the disk, where {format_size(free_disk)} are free"
        of = of if room.limited else f"the {format_size(free_ram)} of free RAM"
        reason = f"mmap: the transform makes {made}, too much for half of {of}; "
        return TierChoice(Tier.MMAP, reason + ("it is in files already" if needs.written else disk), of_results=True)
    without = choose(Needs(needs.rows, needs.stored, needs.decoded, needs.cast), free_ram, processes=processes, own=own)
    before = f"{without.reason}; " if needs.rows else ""
    return TierChoice(
        without.tier,
        f"{before}the transform makes {made}, which fits neither RAM nor the disk, and runs for every batch",
        without.cache_bytes,
    )
