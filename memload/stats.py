"""Counters that show how a loader spent its time, and advice that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from memload.sizes import counted, format_size

_STARVED = 0.1  # of the wall time: above this share, waiting is worth a sentence
# From these shares on the disk is the limit: of the time to gather, in pieces for which it was read; and of the bytes,
# since what is read ahead is not waited for there.
_DISK_SECONDS, _DISK_BYTES = 0.5, 0.25
_EXPLAINED = 0.5  # of the loop's waiting: what took less time than that, over all threads, is not what it waited for
_LEAST_SAMPLING = 0.01  # seconds; any sampler takes a large share of a pass of a millisecond
_LEAST_FRESH = 3  # batches without a free slot; fewer are no habit


@dataclass(frozen=True)
class LoaderStats:
    """Counters of a loader's native passes, including a running one. Sizes are in bytes, times in seconds.

    Attributes:
        batches: batches that the loop received.
        rows: rows in them.
        bytes_in: bytes read from the dataset for them.
        bytes_out: bytes written for them; more than ``bytes_in`` if a cast widens.
        gather_seconds: time that threads spent copying, casting and decoding, summed over threads.
        decode_seconds: the part of ``gather_seconds`` that decoding compressed chunks took.
        consumer_wait_seconds: time that the loop waited for batches inside ``next()``, without the time of its sampler;
            near 0: the loader is ahead; near ``wall_seconds``: the loop starves.
        ring_full_seconds: time in which nothing was gathered because every slot was filled or in use by the loop; near
            ``wall_seconds``: the loop is the limit, and the loader could go faster.
        transform_seconds: time that the user's functions took, summed over background threads; with ``device=`` also
            inside ``next()``, without the kernels that they queue on a GPU.
        transform_wait_seconds: time that was waited for the batches that functions are given, by one thread at a time.
        wall_seconds: time from the start of each pass to its last batch.
        fresh_batches: batches in newly allocated memory, since the loop kept more batches than there are slots.
        helped_pieces: pieces of batches that the loop's own thread gathered while it waited.
        sampler_seconds: time that the sampler took for the order of rows, in the loop's own thread.
        major_faults: reads that had to wait for the disk; 0 when the data is in the page cache.
        disk_bytes: bytes that threads read from the disk for batches, including read-ahead and the bytes around rows;
            0: all was in memory, or the file system does not count them (some network file systems).
        disk_seconds: the part of ``gather_seconds`` spent on pieces of batches for which the disk was read.
        advised_rows: rows that the kernel was asked to read ahead, since reads went to the disk.
        direct_bytes: bytes read past the page cache, including batches that the loop never took; near ``bytes_in``: the
            next pass will not find them in memory.
        cached_bytes: bytes copied out of the cache of the hybrid tier; near ``bytes_in``: little is read from files.
        decoded_chunks: chunks of compressed files (HDF5, Zarr, shards) that were decoded, including those for batches
            that the loop never took. With `memload.BlockShuffle` as many as the file has, in each pass; more: chunks
            are decoded again for further batches.
        reused_bytes: the part of ``bytes_in`` that was not read, since its chunk was kept decoded.
        copied_bytes: bytes copied to the device.
        copies: how many copies to the device native threads started while they gathered.
        copy_wait_seconds: time that the loop waited inside ``next()`` for a slot that was still being copied; near
            ``consumer_wait_seconds``: the bus is the limit.
        device_wait_seconds: time that the loop waited inside ``next()`` for its device, which was two batches behind:
            for the loop's own kernels, or for copies; not part of ``consumer_wait_seconds``. Near ``wall_seconds``: the
            device is the limit.
        streaming: whether batches were written past the cache.
        advice: the cast that would replace a function of the user, once two batches have shown that it gives the same;
            "" if no cast is known to.
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
    sampler_seconds: float = 0.0
    wall_seconds: float = 0.0
    fresh_batches: int = 0
    helped_pieces: int = 0
    major_faults: int = 0
    disk_bytes: int = 0
    disk_seconds: float = 0.0
    advised_rows: int = 0
    direct_bytes: int = 0
    cached_bytes: int = 0
    decoded_chunks: int = 0
    reused_bytes: int = 0
    copied_bytes: int = 0
    copies: int = 0
    copy_wait_seconds: float = 0.0
    device_wait_seconds: float = 0.0
    streaming: bool = False
    advice: str = ""

    def __add__(self, other: LoaderStats) -> LoaderStats:
        summed: dict[str, Any] = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        said = {"streaming": self.streaming or other.streaming, "advice": self.advice or other.advice}
        return LoaderStats(**{**summed, **said})

    @property
    def limit(self) -> str:
        """One sentence that names the bottleneck of this loader, gives its figures, and says what to change."""
        if self.batches == 0:
            return "Nothing was loaded natively so far."
        if self.fresh_batches >= _LEAST_FRESH and self.fresh_batches > self.batches // 4:
            return (
                f"{self.fresh_batches} of {self.batches} batches needed memory of their own, since the loop keeps "
                "batches: keep results instead, or give depth= the number of batches you keep."
            )
        wall = max(self.wall_seconds, 1e-9)
        if self.sampler_seconds > max(_STARVED * wall, self.consumer_wait_seconds, _LEAST_SAMPLING):
            return (
                f"The sampler took {self.sampler_seconds / wall:.0%} of the time, in the loop's own thread: make "
                "one of your own cheaper, without Python for each row (RandomSampler, BatchSampler); that of "
                "shuffle=True takes so little that only an almost empty loop shows it."
            )
        if self.device_wait_seconds > max(_STARVED * wall, self.consumer_wait_seconds):
            return self._behind(wall)
        if self.consumer_wait_seconds < _STARVED * wall:
            return (
                f"The loop is the limit: it waited {self.consumer_wait_seconds / wall:.1%} of the time, and every slot "
                f"was full for {self.ring_full_seconds / wall:.0%} of it."
            )
        return f"The loop waited {self.consumer_wait_seconds / wall:.0%} of the time {self._waited_for(wall)}"

    def _behind(self, wall: float) -> str:
        """Return the sentence about a device that is behind the loop."""
        copies = f", or copies to it, at {self.copied_bytes / wall / 1e9:.1f} GB/s" if self.copied_bytes else ""
        return (
            f"The device is the limit: the loop waited {self.device_wait_seconds / wall:.0%} of the time for what was "
            f"queued there, its own kernels{copies}."
        )

    def _waited_for(self, wall: float) -> str:
        """Return the reason why the loop waited, as the end of a sentence."""
        if self.copy_wait_seconds > self.consumer_wait_seconds / 2:
            return (
                f"for copies to the device, at {self.copied_bytes / wall / 1e9:.1f} GB/s: the bus is the limit; store "
                "what crosses it in fewer bytes (uint8 rather than float32, cast on the device)."
            )
        if self.transform_seconds and self.transform_wait_seconds < self.consumer_wait_seconds / 2:
            return (
                f"for the transform, which took {self.transform_seconds / self.batches:.2g} s a batch: make it "
                "cheaper; if it is heavy in pure Python, map(..., in_processes=True)."
            )
        disk_bytes, disk_seconds = self.disk_shares
        if self._decodes_most and disk_seconds < _DISK_SECONDS:
            disk = f", {disk_bytes:.0%} of which came from the disk" if disk_bytes >= _DISK_BYTES else ""
            return (
                f"for rows that are stored compressed{disk}: {self.decode_seconds / self.gather_seconds:.0%} of the "
                "time to gather them went into decoding; more threads would help, or memload.write without a codec, "
                "once."
            )
        if disk_bytes >= _DISK_BYTES or disk_seconds >= _DISK_SECONDS:
            time = (
                f", {disk_seconds:.0%} of the time to gather them" if disk_seconds else ""
            )  # of direct reads: unknown
            return (
                f"for rows that come from the disk ({disk_bytes:.0%} of their bytes{time}): a faster disk, a tier in "
                "RAM, or more memory for its cache, would help."
            )
        if not self.gather_seconds:  # no CPU thread gathers rows of a device-resident dataset
            return "to hand the kernels that gather its batches to the device: fewer, larger batches take less of it."
        if self.gather_seconds < _EXPLAINED * self.consumer_wait_seconds:
            return (
                "for threads to begin and to hand over, more than for what they do: the pass is short, or batches are "
                "so small that handing them over takes the time; a larger batch_size= helps."
            )
        return "for the copy of its batches: memory and the threads that copy are the limit; see threads=."

    @property
    def _decodes_most(self) -> bool:
        """Whether decoding takes most of the time to gather, and that explains what the loop waited."""
        explains = self.gather_seconds >= _EXPLAINED * self.consumer_wait_seconds
        return explains and self.decode_seconds > self.gather_seconds / 2

    @property
    def disk_shares(self) -> tuple[float, float]:
        """The shares of the disk in the bytes of batches and in the time to gather them; each from 0 to 1.

        Example:
            >>> LoaderStats(bytes_in=1000, disk_bytes=1, gather_seconds=2.0, disk_seconds=0.5).disk_shares
            (0.001, 0.25)
        """
        of_bytes = self.disk_bytes / self.bytes_in if self.bytes_in else 0.0
        of_time = self.disk_seconds / self.gather_seconds if self.gather_seconds else 0.0
        return min(1.0, of_bytes), min(1.0, of_time)

    def __str__(self) -> str:
        wall = max(self.wall_seconds, 1e-9)
        return (
            f"{counted(self.batches, 'batch', 'batches')}, {counted(self.rows, 'row')}, "
            f"{format_size(self.bytes_out)} in {self.wall_seconds:.2f} s "
            f"({format_size(self.bytes_out / wall)}/s). {self.limit} {self.advice}".rstrip()
        )
