"""Where the time of a loader went, and what to change."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from memload.sizes import format_size

_STARVED = 0.1  # of the wall time: above this share, waiting is worth a sentence


@dataclass(frozen=True)
class LoaderStats:
    """Counters of a loader's native passes, those under way included. Sizes in bytes, times in seconds.

    Attributes:
        batches: batches that the loop received.
        rows: rows in them.
        bytes_in: bytes read from the dataset for them.
        bytes_out: bytes written for them; more than ``bytes_in`` where a cast widens.
        gather_seconds: time that threads spent copying, casting and decoding, added up over threads.
        decode_seconds: how much of that went into decoding chunks that are stored compressed.
        consumer_wait_seconds: time that the loop waited for batches inside ``next()``, without the time of its sampler;
            near 0: the loader is ahead, near ``wall_seconds``: the loop starves.
        ring_full_seconds: time in which nothing was gathered because every slot was filled or in use by the loop; near
            ``wall_seconds``: the loader could go faster, the loop is the limit.
        transform_seconds: time that the user's functions took in background threads, added up over threads.
        transform_wait_seconds: time that these threads waited for gathered batches; at most one of them waits at once.
        wall_seconds: time from the start of each pass to its last batch.
        fresh_batches: batches in newly allocated memory, since the loop kept more batches than there are slots.
        helped_pieces: pieces of batches that the loop's own thread gathered while it waited.
        major_faults: reads that had to wait for the disk; 0 when the data is in the page cache.
        advised_rows: rows that the kernel was asked to read ahead, since reads went to the disk.
        direct_bytes: bytes read past the page cache, including batches that the loop never took; near ``bytes_in``: the
            next pass will not find them in memory.
        cached_bytes: bytes copied out of the cache of the hybrid tier; near ``bytes_in``: hardly anything is read.
        copied_bytes: bytes copied to the device.
        copies: how many copies to the device native threads started while they gathered.
        copy_wait_seconds: time that the loop waited inside ``next()`` for a slot that was still being copied; near
            ``consumer_wait_seconds``: the bus is the limit.
        streaming: whether batches were written past the cache.
    """

    batches: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    gather_seconds: float = 0.0
    decode_seconds: float = 0.0
    consumer_wait_seconds: float = 0.0
    ring_full_seconds: float = 0.0
    transform_seconds: float = 0.0
    transform_wait_seconds: float = 0.0
    wall_seconds: float = 0.0
    fresh_batches: int = 0
    helped_pieces: int = 0
    major_faults: int = 0
    advised_rows: int = 0
    direct_bytes: int = 0
    cached_bytes: int = 0
    copied_bytes: int = 0
    copies: int = 0
    copy_wait_seconds: float = 0.0
    streaming: bool = False

    def __add__(self, other: LoaderStats) -> LoaderStats:
        summed: dict[str, Any] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return LoaderStats(**{**summed, "streaming": self.streaming or other.streaming})

    @property
    def limit(self) -> str:
        """One sentence: what the bottleneck of this loader is, and what to change."""
        if self.batches == 0:
            return "Nothing was loaded natively so far."
        if self.fresh_batches > self.batches // 4:
            return (
                f"{self.fresh_batches} of {self.batches} batches needed memory of their own, since the loop keeps "
                "batches: keep results instead, or give depth= the number of batches you keep."
            )
        wall = max(self.wall_seconds, 1e-9)
        if self.consumer_wait_seconds < _STARVED * wall:
            return (
                f"The loop is the limit: it waited {self.consumer_wait_seconds / wall:.1%} of the time, and every slot "
                f"was full for {self.ring_full_seconds / wall:.0%} of it."
            )
        waited = f"The loop waited {self.consumer_wait_seconds / wall:.0%} of the time"
        if self.copy_wait_seconds > self.consumer_wait_seconds / 2:
            return (
                f"{waited} for copies to the device, at {self.copied_bytes / wall / 1e9:.1f} GB/s: the bus is the "
                "limit; store what crosses it in fewer bytes (uint8 rather than float32, cast on the device)."
            )
        if self.transform_seconds and self.transform_wait_seconds < self.consumer_wait_seconds / 2:
            return (
                f"{waited} for the transform, which took {self.transform_seconds / self.batches:.2g} s a batch in "
                "background threads: make it cheaper; if it is heavy in pure Python, map(..., in_processes=True)."
            )
        if self.major_faults or self.advised_rows or self.direct_bytes:
            return (
                f"{waited} for rows that come from the disk: a faster disk, or more memory for its cache, would help."
            )
        if self.decode_seconds > self.gather_seconds / 2:
            return (
                f"{waited} for rows that are stored compressed: more threads would help, or memload.write without a "
                "codec, once."
            )
        return f"{waited} for the copy of its batches: memory and the threads that copy are the limit; see threads=."

    def __str__(self) -> str:
        wall = max(self.wall_seconds, 1e-9)
        return (
            f"{self.batches} batches, {self.rows} rows, {format_size(self.bytes_out)} in {self.wall_seconds:.2f} s "
            f"({format_size(self.bytes_out / wall)}/s). {self.limit}"
        )
