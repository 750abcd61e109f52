"""memload.to_device: a dataset whose bytes are in memory from which a GPU gathers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memload.columns.numbers import kind
from memload.dataset.dataset import Dataset
from memload.device.devices import device_of
from memload.device.loading import loaded
from memload.engine.tiers.tier import Tier


def to_device(
    ds: Dataset, device: Any = "cuda", *, tier: Tier | str = Tier.DEVICE, progress: bool | None = None
) -> Dataset:
    """Copy a dataset's stored bytes into a device's memory, and return a dataset that is gathered and cast there.

    While a loop runs, no data crosses the bus, and the CPU only draws row numbers: 100 GB of uint8 images fit an H200
    beside a model. A `FastLoader`, with or without ``device=``, gives the same batches in the same order as from files,
    on the device; the state of a loader over one can be loaded into a loader over the other. ``select``, ``split``,
    ``with_lags``, ``windows``, ``as_tuple``, ``only`` and `memload.zip` with other datasets on its device are index
    arithmetic there, too. ``ds[i]`` is a sample on the device.

    Bytes stay as they are stored: give a cast to the loader, where it takes no memory. Each frame is copied once, even
    if many rows or windows contain it, and frames that belong to no row are left out.

    Args:
        ds: a dataset in files or arrays. Join datasets before the call: copies on a device cannot be joined.
        device: the device, such as "cuda", "cuda:1" or, to try it without a GPU, "cpu".
        tier: "device"; or "pinned" for sets that do not fit into the device's memory: the bytes stay in RAM that is
            pinned for the device. For the CPU that is a dataset in RAM like any other, which can be joined with others.
            A `FastLoader` with ``device=`` lets the GPU gather rows across the bus, or copies them through its ring,
            whichever a short trial at the start finds faster or, where that keeps the CPUs busy, cheaper; `loader.why`
            says which.
        progress: whether to show a progress bar; None: if standard error is a terminal. Rows are copied in chunks of
            64 MB, of which three are in this machine's memory at a time; to a GPU of 32 MB, of which five are pinned.

    Raises:
        DeviceError: there is no such GPU, or torch cannot use it.
        MemorySpaceError: the bytes do not fit; the message has the figures.
        TypeError: `ds` is not a memload dataset.
        ValueError: rows of a field differ in length, or they are on a device already.

    Example:
        >>> import memload, torch
        >>> movie = memload.from_arrays(stim=torch.arange(60, dtype=torch.uint8).reshape(20, 3))
        >>> resident = memload.to_device(movie, "cpu").with_lags(stim=range(2))
        >>> next(iter(memload.FastLoader(resident, batch_size=4)))["stim"].shape
        torch.Size([4, 2, 3])
    """
    if not isinstance(ds, Dataset):
        raise TypeError(
            f"to_device takes a dataset of memload's, got {kind(ds)}: memload.open(...) and memload.from_arrays(...) "
            "make one. Functions of samples (ds.map) are left out here, and given to the loader as batch_transform="
        )
    if tier not in (Tier.DEVICE, Tier.PINNED):
        raise ValueError(f'tier is "device" or "pinned" here, got {tier!r}; others are given by memload.open(tier=...)')
    return replace(ds, fields=loaded(ds.fields, device_of(device), Tier(tier), progress))
