"""memload.to_device: the raw bytes of a dataset, brought where a GPU gathers them by itself.

files or arrays -> frames, each once -> chunks, by native threads -> table on the device -> a dataset on that table
                   frames.py            loading.py                  near.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from memload.dataset import Dataset
from memload.errors import DeviceError
from memload.fields import Field
from memload.gpu.devices import device_of, raise_in_words
from memload.gpu.frames import FrameIndex, Numbers, frames_of
from memload.gpu.loading import fill
from memload.gpu.memory import gpu_memory
from memload.gpu.near import NearColumn, NearField, near_device
from memload.graphs import GraphDataset
from memload.memory import budget
from memload.progress import Bar, byte_bar
from memload.ragged_fields import RaggedField
from memload.row_numbers import kind
from memload.sizes import format_size


def to_device(ds: Dataset, device: Any = "cuda", *, progress: bool | None = None) -> Dataset:
    """Return the dataset with its raw bytes in a device's memory, where batches are gathered and cast by the device.

    No byte crosses the bus any more while a loop runs, and the CPU only draws row numbers: 100 GB of uint8 pictures fit
    an H200 beside a model. What comes back is a dataset like any other: `FastLoader` takes it, with or without
    ``device=``, and gives the same batches in the same order as from files, on the device; states of loaders go from
    one to the other. ``select``, ``split``, ``with_lags``, ``windows``, ``as_tuple``, ``only`` and `memload.zip` with
    others of its device are index arithmetic there, too. ``ds[i]`` is a sample on the device.

    Bytes are kept as they are stored, so a cast costs no memory here: give it to the loader. Frames are stored once,
    however many rows or windows they are part of, and frames that no row has are left out.

    Args:
        ds: a dataset in files or arrays. Joined datasets are joined first: rows that were brought at different times
            lie apart, and are not joined there.
        device: such as "cuda", "cuda:1" or, to try it without a GPU, "cpu".
        progress: whether to show a progress bar; None: if standard error is a terminal. Rows are brought in chunks of
            64 MB, of which three are in this machine's memory at a time.

    Raises:
        DeviceError: there is no such GPU, torch cannot use it, or the bytes do not fit; the message has the figures.
        TypeError: `ds` is no dataset of memload's.
        ValueError: rows of a field differ in length, or they lie on a device already.

    Example:
        >>> import memload, torch
        >>> movie = memload.from_arrays(stim=torch.arange(60, dtype=torch.uint8).reshape(20, 3))
        >>> near = memload.to_device(movie, "cpu").with_lags(stim=range(2))
        >>> next(iter(memload.FastLoader(near, batch_size=4)))["stim"].shape
        torch.Size([4, 2, 3])
    """
    _check(ds)
    where = device_of(device)
    plans = {name: _Plan.of(field) for name, field in ds.fields.items()}
    check_fits({name: plan.nbytes for name, plan in plans.items()}, where)
    try:
        with byte_bar(f"to {where}", sum(plan.nbytes for plan in plans.values()), progress) as shown:
            fields = {name: plan.carried_out(where, shown) for name, plan in plans.items()}
    except RuntimeError as error:
        raise_in_words(error, "bringing a dataset", where)
    return replace(ds, fields=fields)


def _check(ds: object) -> None:
    if not isinstance(ds, Dataset):
        raise TypeError(
            f"to_device takes a dataset of memload's, got {kind(ds)}: memload.open(...) and memload.from_arrays(...) "
            "make one. Functions of samples (ds.map) are left out here, and given to the loader as batch_transform="
        )
    ragged = [name for name, field in ds.fields.items() if isinstance(field, RaggedField)]
    if ragged or isinstance(ds, GraphDataset):
        raise ValueError(
            f"rows of {', '.join(map(repr, ragged)) or 'graphs'} differ in length, and are not gathered on a device: "
            "leave them out by as_tuple(...), or keep the dataset in files and give the loader device="
        )
    if (there := near_device(ds.fields)) is not None:
        raise ValueError(f"the dataset lies on {there} already; bring the one that it was made of")


class _Plan:
    """What is to be brought of a field, before anything is.

    Attributes:
        frames: the field of what is stored.
        rows: which of them are wanted.
        index: what the field's rows are of those.
    """

    def __init__(self, frames: Field, rows: Numbers | range, index: FrameIndex, field: Field) -> None:
        self.frames, self.rows, self.index, self.field = frames, rows, index, field

    @classmethod
    def of(cls, field: Field) -> _Plan:
        frames, index = frames_of(field)
        return cls(frames, *index.compact(frames.rows), field)

    @property
    def nbytes(self) -> int:
        return len(self.rows) * self.frames.row_bytes

    def carried_out(self, device: torch.device, shown: Bar) -> NearField:
        table = torch.empty((len(self.rows), self.frames.row_bytes), dtype=torch.uint8, device=device)
        fill(table, self.frames, self.rows, shown)
        column = NearColumn(table, self.index)
        return NearField(self.field.dtype, self.field.shape, column, digest=self.field.digest)


def check_fits(wanted: Mapping[str, int], device: torch.device) -> None:
    """Raise DeviceError, with figures, if so many bytes by field do not fit into the memory of a device."""
    need = sum(wanted.values())
    if device.type == "cpu":
        memory = budget.memory()
        total, free = memory.limit or memory.total, memory.free
    else:
        found = gpu_memory(device)
        if found is None:
            return
        total, free = found.total, found.available
    if need > free:
        raise DeviceError(does_not_fit(wanted, str(device), total, free))


def does_not_fit(wanted: Mapping[str, int], device: str, total: int, free: int) -> str:
    """Return the message for bytes by field that do not fit into a device's memory."""
    by_field = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in wanted.items())
    return (
        f"{format_size(sum(wanted.values()))} of rows ({by_field}) do not fit on {device}: {format_size(free)} of "
        f"{format_size(total)} are available. Bring a part (ds.select(rows), ds.as_tuple(...)), or keep the dataset "
        "in files and give the loader device=, which streams it"
    )
