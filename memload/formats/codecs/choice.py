"""Choose the codec that suits given data: a sample is compressed in several ways, and the fastest way to read it wins.

Rows on a disk arrive at the rate of the disk times the ratio, while the cores decode at their own rate. So a byte of a
row takes 1 / disk_rate plainly, and max(1 / (ratio * disk_rate), 1 / (threads * decode_rate)) compressed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memload._core import Storage, bench_decode
from memload.columns.fields import Field
from memload.formats.codecs.by_field import SMALLEST_ROW
from memload.formats.codecs.codec import Codec
from memload.sizes import counted, format_size, parse_size

DISK_RATE = 10**9  # bytes per second, of a common NVMe disk
_SAMPLE_BYTES = 2**23
_RUNS = 16  # places of the field from which the sample is taken
_WORTH = 1.1  # times as soon as without a codec
_ALIKE = 1.05  # nobody would notice the difference: then the fewer bytes
_DECODE_SECONDS = 0.05


@dataclass(frozen=True)
class Trial:
    """The result of one codec on the sample: `ratio` of plain to stored bytes, `decode_rate` in plain bytes per second
    and core, and the gain in rows per second over no codec.
    """

    codec: Codec
    ratio: float
    decode_rate: float
    gain: float

    def __str__(self) -> str:
        return f"{self.codec}: {self.ratio:.2f} times smaller, decoded at {format_size(self.decode_rate)}/s per core"


@dataclass(frozen=True)
class CodecChoice:
    """The codec that suits a field, None for none, and the trials that show it, the best ratio first."""

    codec: Codec | None
    trials: tuple[Trial, ...]
    sample_bytes: int
    disk_rate: int
    threads: int

    def without_rows(self) -> CodecChoice:
        """Return the same choice without a number of rows per block."""
        trials = tuple(replace(trial, codec=replace(trial.codec, rows=None)) for trial in self.trials)
        return replace(self, codec=self.codec and replace(self.codec, rows=None), trials=trials)

    def __str__(self) -> str:
        """Return one sentence: ratio, decode rate and the choice."""
        where = f"from a disk of {format_size(self.disk_rate)}/s with {counted(self.threads, 'thread')}"
        if not self.trials:
            return f"not compressed: its rows have less than {SMALLEST_ROW} bytes"
        chosen = next((trial for trial in self.trials if trial.codec == self.codec), None)
        sample = f"a sample of {format_size(self.sample_bytes)}"
        if chosen is None:
            best = max(self.trials, key=lambda trial: trial.gain)
            gain = f"gives {best.gain:.2f} times the rows per second {where}"
            return f"not compressed: the best for {sample}, {best}, {gain}"
        return f"{chosen}, by {sample}: {chosen.gain:.1f} times the rows per second {where}"


def choose_codec(
    fields: Mapping[str, Field], *, disk_rate: int | str = DISK_RATE, threads: int | None = None
) -> dict[str, CodecChoice]:
    """Return for each field the codec with which its rows arrive soonest from a disk, measured on a sample.

    A few megabytes of each field are read from sixteen places, compressed by each codec with each shuffle that may
    help, and decoded, which takes a second or two for each field. Data that stays in memory is best left as it is.

    Args:
        fields: the fields by name, such as `dataset.fields`.
        disk_rate: the rate of the disk or network from which rows will be read, in bytes per second, or as "200MB".
        threads: the number of threads that will decode; None: one for each core that this process may use.

    Raises:
        ShardReadError: a file cannot be read.

    Example:
        >>> import memload, torch
        >>> from memload.formats.codecs.choice import choose_codec
        >>> noise = torch.randint(0, 256, (100, 5000), dtype=torch.uint8)
        >>> choose_codec(memload.from_arrays(x=noise).fields)["x"].codec is None
        True
    """
    rate, threads = parse_size(disk_rate), threads or len(os.sched_getaffinity(0))
    return {name: _choice(field, rate, threads) for name, field in fields.items()}


def _choice(field: Field, disk_rate: int, threads: int) -> CodecChoice:
    if field.row_bytes < SMALLEST_ROW or not field.rows:
        return CodecChoice(None, (), 0, disk_rate, threads)
    trials, sampled = [], 0
    for codec in _candidates(field):
        blocks = _sample(field, codec.rows or 1)
        sampled = max(sampled, sum(map(len, blocks)))
        trials.append(_trial(field, codec, blocks, disk_rate, threads))
    worth = [trial for trial in trials if trial.gain >= _WORTH]
    best = max((trial.gain for trial in worth), default=0)
    alike = [trial for trial in worth if trial.gain * _ALIKE >= best]
    chosen = max(alike, key=lambda trial: (trial.ratio, trial.decode_rate), default=None)
    trials.sort(key=lambda trial: -trial.ratio)
    return CodecChoice(chosen.codec if chosen else None, tuple(trials), sampled, disk_rate, threads)


def _candidates(field: Field) -> Iterator[Codec]:
    shuffles = ("none", "bit") if field.dtype.itemsize == 1 else ("none", "byte", "bit")
    for name in ("lz4", "zstd", "blosc2"):
        for shuffle in shuffles:
            yield Codec(name, shuffle=shuffle).of(field.dtype, field.shape)


def _sample(field: Field, block_rows: int) -> list[bytes]:
    """Return blocks of adjacent rows from sixteen places."""
    blocks = -(-field.rows // block_rows)
    wanted = max(1, min(blocks, _SAMPLE_BYTES // (block_rows * field.row_bytes)))
    runs = min(_RUNS, wanted)
    starts = np.linspace(0, blocks - wanted // runs, runs).astype(np.int64)
    numbers = np.unique(starts[:, None] + np.arange(wanted // runs))
    return [_block(field, int(number) * block_rows, block_rows) for number in numbers]


def _block(field: Field, start: int, rows: int) -> bytes:
    numbers: NDArray[np.int64] = np.arange(start, min(start + rows, field.rows))
    block = np.empty(len(numbers) * field.row_bytes, dtype=np.uint8)
    field.check_in_place()
    field.column.gather(numbers, block.ctypes.data, block.nbytes)
    return block.tobytes()


def _trial(field: Field, codec: Codec, blocks: list[bytes], disk_rate: int, threads: int) -> Trial:
    chain = codec.chain(field.dtype.itemsize)
    encoded = [codec.encode(chain, block) for block in blocks]
    stored = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    sizes = np.array([len(block) for block in encoded])
    plain = np.array([len(block) for block in blocks])
    table = np.stack([np.zeros_like(sizes), np.cumsum(sizes) - sizes, sizes, plain], axis=1)
    storage = Storage.borrow(stored, stored.ctypes.data, stored.nbytes, "a sample")
    run = bench_decode([storage], table, 1, _DECODE_SECONDS, chain)
    ratio, rate = plain.sum() / sizes.sum(), run["bytes"] / max(run["cpu_seconds"], 1e-9)
    seconds = max(1 / (ratio * disk_rate), 1 / (threads * rate))
    return Trial(codec, float(ratio), float(rate), float(1 / disk_rate / seconds))
