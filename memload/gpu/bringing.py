"""Fields brought where a GPU gathers them by itself: into its memory, or into RAM that it reads.

files or arrays -> frames, each once -> chunks, by native threads -> table -> fields on that table
                   frames.py            loading.py                          near.py, pinned_memory.py
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from memload.errors import DeviceError, MemorySpaceError
from memload.fields import Field
from memload.gpu.devices import raise_in_words
from memload.gpu.frames import FrameIndex, Numbers, frames_of
from memload.gpu.loading import fill
from memload.gpu.memory import gpu_memory
from memload.gpu.near import NearColumn, NearField, near_device
from memload.gpu.pinned_memory import PinnedField, PinnedMemory
from memload.memory import budget
from memload.progress import Bar, byte_bar
from memload.ragged_rows.fields import RaggedField
from memload.sizes import format_size
from memload.tiers.tier import Tier


def brought(fields: Mapping[str, Field], device: torch.device, tier: Tier, progress: bool | None) -> dict[str, Field]:
    """Return the fields with their bytes in a device's memory (Tier.DEVICE), or pinned for it (Tier.PINNED).

    Args:
        fields: by name, in files or arrays.
        device: that gathers them.
        tier: which of the two.
        progress: whether to show a bar; None: if standard error is a terminal.

    Raises:
        MemorySpaceError: the bytes do not fit; the message has the figures.
        DeviceError: they cannot be pinned.
        ValueError: rows differ in length, or lie on a device already.
    """
    _check(fields)
    plans = {name: _Plan.of(field) for name, field in fields.items()}
    wanted = {name: plan.nbytes for name, plan in plans.items()}
    check_fits(wanted, device if tier is Tier.DEVICE else torch.device("cpu"))
    where = str(device) if tier is Tier.DEVICE else f"pinned for {device}"
    try:
        with byte_bar(where, sum(wanted.values()), progress) as shown:
            made = {name: plan.carried_out(device, tier, shown) for name, plan in plans.items()}
    except DeviceError:
        raise
    except RuntimeError as error:
        raise_in_words(error, "bringing a dataset", device)
    return made


def _check(fields: Mapping[str, Field]) -> None:
    ragged = [name for name, field in fields.items() if isinstance(field, RaggedField)]
    if ragged:
        raise ValueError(
            f"rows of {', '.join(map(repr, ragged))} differ in length, and are not gathered on a device: leave them "
            "out by as_tuple(...), or keep the dataset in files and give the loader device="
        )
    if (there := near_device(fields)) is not None:
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

    def carried_out(self, device: torch.device, tier: Tier, shown: Bar) -> Field:
        if tier is Tier.PINNED:
            return self._pinned(device, shown)
        table = torch.empty((len(self.rows), self.frames.row_bytes), dtype=torch.uint8, device=device)
        fill(table, self.frames, self.rows, shown)
        column = NearColumn(table, self.index)
        return NearField(self.field.dtype, self.field.shape, column, digest=self.field.digest)

    def _pinned(self, device: torch.device, shown: Bar) -> Field:
        memory = PinnedMemory(len(self.rows), self.frames.row_bytes, device)
        fill(memory.table, self.frames, self.rows, shown)
        memory.pin()
        return PinnedField.of(self.field, memory, self.index)


def check_fits(wanted: Mapping[str, int], device: torch.device) -> None:
    """Raise MemorySpaceError, with figures, if so many bytes by field do not fit into the memory of a device."""
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
        raise MemorySpaceError(does_not_fit(wanted, str(device), total, free), need=need, free=free)


def does_not_fit(wanted: Mapping[str, int], device: str, total: int, free: int) -> str:
    """Return the message for bytes by field that do not fit into a device's memory."""
    by_field = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in wanted.items())
    return (
        f"{format_size(sum(wanted.values()))} of rows ({by_field}) do not fit on {device}: {format_size(free)} of "
        f"{format_size(total)} are available. Bring a part (ds.select(rows), ds.as_tuple(...)), or keep the dataset "
        "in files and give the loader device=, which streams it"
    )
