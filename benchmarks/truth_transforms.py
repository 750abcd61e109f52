"""Cases of `memory_truth.py`: functions of samples and batches, moved pixels and compressed files, over 8 passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from truth_case import Case

import memload

PASSES, BATCHES = 8, 12
ROW_BYTES, ROWS = 1 << 19, 400
IMAGES = (512, 3, 256, 256)
OPTIONS = memload.EngineOptions(threads=2, depth=2, transform_threads=2, direct=False)

Function = Callable[[Any], Any]
Data = Callable[[Path], Any]


def floats(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A new dtype."""
    return {"data": sample["data"].float()}


def squares(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Two fields, one of memory that is not lent."""
    data = sample["data"].float()
    return {"data": data, "squares": data**2}


def scaled(sample: dict[str, Any]) -> dict[str, Any]:
    """A numpy array."""
    return {"data": sample["data"].numpy().astype(np.float32) / 255}


def normalised(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch of another dtype, by three operations."""
    return {"data": (batch["data"].float() - 127) / 255}


def make_rows(folder: Path) -> None:
    """Rows of 512 KB of uint8."""
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.uint8, (ROWS, ROW_BYTES))
    rows[:] = np.arange(ROW_BYTES) % 251


def make_images(folder: Path) -> None:
    """Images of 3 x 256 x 256 pixels."""
    np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, IMAGES)[:] = 7


def make_hdf5(**filters: Any) -> Callable[[Path], None]:
    """Rows that compress to about half, in chunks of one row."""

    def make(folder: Path) -> None:
        rows = np.random.default_rng(0).integers(0, 16, (ROWS, ROW_BYTES), dtype=np.uint8)
        with h5py.File(folder / "rows.h5", "w") as file:
            file.create_dataset("data", data=rows, chunks=(1, ROW_BYTES), **filters)

    return make


def rows_of(folder: Path) -> Any:
    """The rows as they are stored."""
    return memload.from_arrays(data=np.load(folder / "rows.npy", mmap_mode="r"))


def mapped(function: Function) -> Data:
    """The rows after a function of one sample."""
    return lambda folder: rows_of(folder).map(function)


def images_of(folder: Path) -> Any:
    """The images."""
    return memload.from_arrays(data=np.load(folder / "images.npy", mmap_mode="r"))


def case(name: str, data: Data, make: Callable[[Path], None], quick: bool = False, **settings: Any) -> Case:
    """A case of 8 passes of a loader."""
    settings = {"shuffle": True, "options": OPTIONS, **settings}

    def predict(folder: Path) -> dict[str, Any]:
        return {"predicted": memload.plan(data(folder), ram="16GB", **settings).ram.predicted}

    def run(folder: Path) -> None:
        loader = memload.FastLoader(data(folder), **settings)
        for _ in range(PASSES):
            for number, batch in enumerate(loader, 1):
                batch["data"].view(-1)[0].item()
                if number == BATCHES:
                    break

    return Case(f"transforms: {name}", run, predict, make, quick=quick)


def moved(**augment: Any) -> dict[str, memload.Cast]:
    """A cast to float32 that moves pixels."""
    return {"data": memload.Cast(torch.float32, augment=memload.Augment(**augment))}


def hdf5_of(folder: Path) -> Any:
    """The rows of the HDF5 file."""
    return memload.open(folder / "rows.h5")


CASES = [
    case("map to float32, batches of 8", mapped(floats), make_rows, batch_size=8),
    case("map to float32, batches of 32", mapped(floats), make_rows, batch_size=32),
    case("map to two fields, batches of 16", mapped(squares), make_rows, batch_size=16, quick=True),
    case("map to numpy arrays, batches of 8", mapped(scaled), make_rows, batch_size=8),
    case("batch_transform, batches of 16", rows_of, make_rows, batch_size=16, batch_transform=normalised),
    case("Augment, crop", images_of, make_images, batch_size=32, cast=moved(crop=224)),
    case("Augment, crop and flip", images_of, make_images, batch_size=64, cast=moved(crop=224, flip=0.5)),
    case("Augment, random part resized", images_of, make_images, batch_size=64, cast=moved(resize=224, scale=(0.1, 1))),
    case("HDF5, gzip", hdf5_of, make_hdf5(compression="gzip", compression_opts=1), batch_size=16),
    case("HDF5, lzf", hdf5_of, make_hdf5(compression="lzf"), batch_size=16),
]
