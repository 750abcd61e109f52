"""The loops that memload is compared with: torch's own DataLoader over a mapped shard, in each fast way to use it.

This module uses neither memload's datasets nor its loader, only the safetensors format and torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from memload.cli.measure import run_epoch
from memload.progress import bar

Batch = dict[str, torch.Tensor]
CastFn = Callable[[torch.Tensor], torch.Tensor]

STYLES = ("items", "getitems", "batch_sampler")
WORKERS = (0, 1, 2)

_KINDS = {"U8": np.uint8, "F32": np.float32}


def map_shard(path: Path) -> dict[str, np.memmap[Any, np.dtype[Any]]]:
    """Return the fields of one shard as arrays over the mapped file; `.offset` says where in the file each begins."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        name: np.memmap(path, _KINDS[entry["dtype"]], "c", 8 + length + entry["data_offsets"][0], tuple(entry["shape"]))
        for name, entry in header.items()
    }


class Items(Dataset[Batch]):
    """One row of a mapped shard per item, or the rows of a list of indices; no copy before collate's own."""

    def __init__(self, shard: Path) -> None:
        self._fields = {name: torch.from_numpy(array) for name, array in map_shard(shard).items()}

    def __len__(self) -> int:
        return len(next(iter(self._fields.values())))

    def __getitem__(self, row: int | list[int]) -> Batch:
        return {name: values[row] for name, values in self._fields.items()}


class BatchedItems(Items):
    """A whole batch at once, by the hook that torch's fetcher looks for."""

    def __getitems__(self, rows: list[int]) -> Batch:
        return self[rows]


@dataclass(frozen=True)
class StockSetting:
    """One way to use the stock loader: `style` is one of STYLES, `workers` its num_workers."""

    style: str
    workers: int

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"style is one of {', '.join(STYLES)}, not {self.style!r}")

    def __str__(self) -> str:
        words = {"items": "plain items", "getitems": "batched __getitems__", "batch_sampler": "BatchSampler as sampler"}
        return f"{words[self.style]}, num_workers={self.workers}"


class StockLoop:
    """The stock loader's loop: shuffled batches of dicts, with some fields cast behind it.

    Args:
        shard: the file with the rows.
        batch_size: rows per batch; a last smaller batch is dropped.
        setting: how the loader is used.
        casts: functions applied to fields of each batch, by name.
        seed: the seed of the generator, set anew for every epoch.
    """

    def __init__(
        self, shard: Path, batch_size: int, setting: StockSetting, casts: Mapping[str, CastFn], seed: int = 0
    ) -> None:
        self._seed = seed
        self._casts = casts
        self._generator = torch.Generator()
        self._workers_are_seeded = False
        self.setting = setting
        self.loader = _loader(shard, batch_size, setting, self._generator)

    def __iter__(self) -> Iterator[Batch]:
        reseed(self._generator, self._seed, workers_are_seeded=self._workers_are_seeded)
        self._workers_are_seeded = self.loader.persistent_workers
        for batch in self.loader:
            for name, cast in self._casts.items():
                batch[name] = cast(batch[name])
            yield batch


def reseed(generator: torch.Generator, seed: int, *, workers_are_seeded: bool) -> None:
    """Reset a generator, so that every epoch draws as the first did: persistent workers are seeded once."""
    generator.manual_seed(seed)
    if workers_are_seeded:
        torch.empty((), dtype=torch.int64).random_(generator=generator)


def _loader(shard: Path, batch_size: int, setting: StockSetting, generator: torch.Generator) -> DataLoader[Batch]:
    workers: dict[str, Any] = {"num_workers": setting.workers, "persistent_workers": setting.workers > 0}
    if setting.style == "batch_sampler":
        items = Items(shard)
        sampler = BatchSampler(RandomSampler(items, generator=generator), batch_size, drop_last=True)
        return DataLoader(items, batch_size=None, sampler=sampler, generator=generator, **workers)
    if setting.style == "getitems":
        common: dict[str, Any] = {"shuffle": True, "drop_last": True, "generator": generator, "collate_fn": _unchanged}
        return DataLoader(BatchedItems(shard), batch_size, **common, **workers)
    return DataLoader(Items(shard), batch_size, shuffle=True, drop_last=True, generator=generator, **workers)


def _unchanged(batch: Batch) -> Batch:
    return batch


def find_best(
    shard: Path,
    batch_size: int,
    casts: Mapping[str, CastFn],
    *,
    settings: Sequence[StockSetting] | None = None,
    seconds: float = 0.4,
    seed: int = 0,
) -> StockLoop:
    """Return the fastest of the settings (default: all styles and numbers of workers), each tried for `seconds`."""

    def rate(loop: StockLoop) -> float:
        run_epoch(loop, limit=2)  # warms up: workers started, memory and pages touched
        return run_epoch(loop, seconds=seconds).rate

    tried = settings or [StockSetting(style, workers) for style in STYLES for workers in WORKERS]
    best, best_rate = None, -1.0
    with bar("settings", len(tried), None, unit=" settings") as shown:
        for setting in tried:  # one by one, so that the workers of a slower loop end before the next
            loop = StockLoop(shard, batch_size, setting, casts, seed)
            if (found := rate(loop)) > best_rate:
                best, best_rate = loop, found
            shown.update(1)
    if best is None:
        raise ValueError("no setting was given to choose from")
    return best


def plain_cast(dtype: torch.dtype, *, planes: bool = False) -> CastFn:
    """Return a cast in plain torch: to `dtype`, then normalised; `planes` brings (B, H, W, C) to (B, C, H, W) first."""
    return lambda x: (_laid_out(x, planes).to(dtype) - 127) / 255.0


def best_cast(dtype: torch.dtype, example: torch.Tensor, *, planes: bool = False) -> tuple[CastFn, str]:
    """Return `plain_cast`, compiled for batches like `example` if torch can, else in place; and its name."""
    try:
        compiled: CastFn = torch.compile(plain_cast(dtype, planes=planes), dynamic=False)
        compiled(example)
    except Exception:  # such as no C++ compiler, or no torch.compile for this Python
        return lambda x: _laid_out(x, planes).to(dtype).sub_(127).div_(255.0), "cast in place"
    return compiled, "compiled cast"


def _laid_out(x: torch.Tensor, planes: bool) -> torch.Tensor:
    return x.permute(0, 3, 1, 2).contiguous() if planes else x
