"""memload.to_device: a dataset whose bytes are in memory from which a GPU gathers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memload.columns.numbers import kind
from memload.dataset.dataset import Dataset
from memload.device.on_request import loaded_there
from memload.engine.tiers.tier import ON_GPU, Tier


def to_device(
    ds: Dataset,
    device: Any = "cuda",
    *,
    tier: Tier | str | None = None,
    bytes: int | str | None = None,  # noqa: A002 - bytes="60GB"
    weights: Any = None,
    progress: bool | None = None,
    group: Any = None,
) -> Dataset:
    """Copy a dataset's stored bytes to where a GPU gathers them, and return a dataset that is gathered and cast there.

    While a loop runs, the CPU only draws row numbers: 100 GB of uint8 images fit an H200 beside a model. A
    `FastLoader`, with or without ``device=``, gives the same batches in the same order as from files, on the device;
    the state of a loader over one can be loaded into a loader over the other. ``select``, ``split``, ``with_lags``,
    ``windows``, ``as_tuple``, ``only`` and `memload.zip` with other datasets on its device are index arithmetic there,
    too. ``ds[i]`` is a sample on the device.

    Bytes stay as they are stored: give a cast to the loader, where it takes no memory. Each frame is copied once, even
    if many rows or windows contain it, and frames that belong to no row are left out.

    With ``bytes=``, a dataset may be larger than the GPU's memory: it keeps so many bytes of rows, and the others stay
    in pinned RAM. One kernel gathers a batch from both, one batch ahead of the loop. It reads the rows in RAM across
    the bus, or the copy engine brings them, whichever the first batches of a pass find faster. With several devices,
    each row lies on one of them, and any of them gathers from all. So it is with ``group=`` for the processes of a
    machine, of which each has a GPU, as under torchrun.

    Args:
        ds: a dataset in files or arrays. Join datasets before the call: copies on a device cannot be joined.
        device: the device, such as "cuda", "cuda:1" or, to try it without a GPU, "cpu". Or several GPUs of this machine
            that can read each other's memory, such as ["cuda:0", "cuda:1"]: the rows are spread over all of them, with
            ``bytes=`` as the most of each. The first gathers, or the one that a loader's ``device=`` names.
        tier: "device": in the GPU's memory, the default without ``bytes=``. "split": as far as ``bytes=`` allows, the
            default with it. "pinned": all bytes stay in RAM that is pinned for the device. For the CPU that is a
            dataset in RAM like any other, which can be joined with others; a `FastLoader` with ``device=`` lets the GPU
            gather rows across the bus.
        bytes: how many bytes of rows each device keeps, such as 60 << 30 or "60GB"; at least one row. Leave room for
            the model and for four batches. Fields with rows of less than 512 bytes come first, since they gain most;
            the others keep the same share of their rows.
        weights: with ``bytes=`` or several devices, how often each row is drawn, in any unit: numbers of the shape
            (rows,), or a sampler that has such ``weights``, as `memload.WeightedSampler`. The devices keep the rows
            that are drawn most. None: they keep the first rows. The choice is made once; other weights later change
            only the speed.
        progress: whether to show a progress bar; None: if standard error is a terminal. Rows are copied in chunks of
            64 MB, of which three are in this machine's memory at a time; to a GPU of 32 MB, of which five are pinned.
        group: a group of torch.distributed whose processes are on this machine and all make this call, with the same
            dataset and a device of their own. Each row then lies once: on the GPU of one of them, or in RAM that all
            have pinned. Each process gathers from all, so that a DistributedSampler shuffles the whole dataset.
            Memory of a process that others still read is freed when they have dropped the dataset, too.

    Raises:
        DeviceError: there is no such GPU, torch cannot use it, devices cannot read each other's memory, the driver
            refuses to pin the RAM or to share memory with other processes, or another process of the group failed.
        MemorySpaceError: the bytes do not fit, of a GPU or of RAM; the message has the figures, and nothing was copied.
        TypeError: `ds` is not a memload dataset, or ``bytes=`` and ``weights=`` are not for the tier.
        ValueError: rows of a field differ in length, or they are on a device already; ``bytes=`` is no size, or less
            than one row; ``weights=`` are not one for each row; a device is named twice; or processes of the group are
            on several machines, or have different datasets.

    Example:
        >>> import memload, torch
        >>> movie = memload.from_arrays(stim=torch.arange(60, dtype=torch.uint8).reshape(20, 3))
        >>> resident = memload.to_device(movie, "cpu").with_lags(stim=range(2))
        >>> next(iter(memload.FastLoader(resident, batch_size=4)))["stim"].shape
        torch.Size([4, 2, 3])
        >>> parts = memload.to_device(movie, "cpu", bytes=30)  # the first ten rows, and the other ten in pinned RAM
        >>> parts.tier, parts[19]["stim"].tolist()
        (<Tier.SPLIT: 'split'>, [57, 58, 59])
    """
    if not isinstance(ds, Dataset):
        raise TypeError(
            f"to_device takes a dataset of memload's, got {kind(ds)}: memload.open(...) and memload.from_arrays(...) "
            "make one. Functions of samples (ds.map) are left out here, and given to the loader as batch_transform="
        )
    for name, field in ds.fields.items():
        if getattr(field.column, "draws", False):
            raise ValueError(
                f"field {name!r}: the starts of its slices are drawn anew in each pass, so there are no rows to keep "
                "on a device: slice by hop=, or leave the rows where they are and give the loader device="
            )
    several = isinstance(device, list | tuple)
    if several and group is not None:
        raise TypeError("with group= each process names the one device that it has; got several")
    where = _tier(tier, splits=several or bytes is not None or group is not None)
    if weights is not None and where is not Tier.SPLIT:
        raise TypeError("weights= choose which rows a device keeps of those that it cannot keep all: give bytes=, too")
    return replace(ds, fields=loaded_there(ds.fields, device, where, bytes, weights, progress, group))


def _tier(given: Tier | str | None, *, splits: bool) -> Tier:
    if given is None:
        return Tier.SPLIT if splits else Tier.DEVICE
    if given not in ON_GPU:
        raise ValueError(
            f'tier is "device", "pinned" or "split" here, got {given!r}; others are given by memload.open(tier=...)'
        )
    if splits and given != Tier.SPLIT:
        raise TypeError(f'bytes=, several devices and group= are for tier="split"; the tier here is "{Tier(given)}"')
    if given == Tier.SPLIT and not splits:
        raise TypeError(
            'tier="split" takes bytes=, the bytes of rows on each device, such as "60GB", several devices or group='
        )
    return Tier(given)
