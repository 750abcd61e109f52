"""The data that benchmarks run on: W1 to W4, made once in a folder, and each field's cast in each variant.

W1  4,000 images of 425 x 425 x 3 uint8, batch 32: raw, f32, bf16
W2  20,000 x stim (32, 56, 56) uint8 and robs (256,) f32, batch 256: f32, bf16
W3  200 volumes of 2,250,000 f32, batch 8
W4  1,000,000 vectors of 64 f32, batch 1024
I224  4,000 images of 224 x 224 x 3 uint8, batch 64: f32, bf16, and both as NCHW
C4  500,000 rows of 4 KB, batch 256: read from a cold disk
C100  20,000 rows of 100 KB, batch 64: the same
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import memload
from memload.casts.rule import Cast
from memload.dataset.dataset import Dataset
from memload.memory.budget import disk_free

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Workload:
    """A data set and how it is read: `fields` holds (name, shape of a row, numpy's name of the dtype)."""

    name: str
    rows: int
    batch_size: int
    fields: tuple[tuple[str, tuple[int, ...], str], ...]
    variants: tuple[str, ...] = ("raw",)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, all fields."""
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self.fields)

    def quick(self) -> Workload:
        """The same with four batches of an eighth of the rows, for a run that only shows that it runs."""
        batch_size = max(4, self.batch_size // 8)
        return replace(self, batch_size=batch_size, rows=4 * batch_size)

    def casts(self, variant: str) -> dict[str, Cast]:
        """What becomes of the uint8 fields in a variant."""
        if variant == "raw":
            return {}
        dtype, _, layout = variant.partition("-")
        placed = {"channels": -1, "layout": layout} if layout else {}
        cast = Cast(DTYPES[dtype], norm_removed=True, **placed)
        return {name: cast for name, _, dtype in self.fields if dtype == "uint8"}

    def make(self, cache: Path) -> Path:
        """The folder of the data set under `cache`, written if it is not there.

        Raises:
            OSError: the disk has no room for it.
        """
        folder = cache / f"{self.name}-{self.rows}"
        if folder.exists():
            return folder
        need = int(self.rows * self.row_bytes * 1.2)
        if disk_free(cache) < need:
            raise OSError(f"{cache}: {need / 1e9:.1f} GB are needed, {disk_free(cache) / 1e9:.1f} GB are free")
        rng = np.random.default_rng(0)
        block = max(1, min(self.rows, _BLOCK_BYTES // self.row_bytes))
        with memload.ShardWriter(folder, shard_bytes="4GB", rows=self.rows) as writer:
            for begin in range(0, self.rows, block):
                count = min(block, self.rows - begin)
                writer.extend(**{name: _noise(rng, (count, *shape), dtype) for name, shape, dtype in self.fields})
        return folder

    def shard(self, folder: Path) -> Path:
        """The one file with the rows."""
        (path,) = folder.glob("*.safetensors")
        return path

    def open(self, folder: Path) -> Dataset:
        """The data set as memload opens it."""
        return memload.open(folder)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "uint8":
        return rng.integers(0, 256, shape, np.uint8)
    return rng.standard_normal(shape, np.float32)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", 4_000, 32, (("stim", (425, 425, 3), "uint8"),), ("raw", "f32", "bf16")),
        Workload("W2", 20_000, 256, (("stim", (32, 56, 56), "uint8"), ("robs", (256,), "float32")), ("f32", "bf16")),
        Workload("W3", 200, 8, (("volume", (2_250_000,), "float32"),)),
        Workload("W4", 1_000_000, 1024, (("x", (64,), "float32"),)),
        Workload("I224", 4_000, 64, (("stim", (224, 224, 3), "uint8"),), ("f32", "f32-NCHW", "bf16", "bf16-NCHW")),
        Workload("C4", 500_000, 256, (("x", (1024,), "float32"),)),
        Workload("C100", 20_000, 64, (("x", (100_000,), "uint8"),)),
    )
}
